"""Sandboxes on this machine, by kernel namespaces (bubblewrap). No daemon, no image, no network."""

import atexit
import itertools
import logging
import threading
from pathlib import Path

from rollout.sandbox.host import open_host, sandbox_uid
from rollout.sandbox.local_sandbox import LocalSandbox
from rollout.sandbox.protocol import Files, Limits, Sandbox, SandboxError
from rollout.sandbox.rundir import remove_run_dir

log = logging.getLogger(__name__)


class LocalSandboxes:
    """A `SandboxFactory`. Call it from any thread; close it when the run ends.

        sandboxes = LocalSandboxes(Limits(memory_bytes=1 << 30))
        sandbox = sandboxes(template.files, node_modules=template.node_modules)
        sandbox.exec(["node", "--version"], timeout_s=5.0).output    # "v20.20.2\\n"
        sandboxes.close()

    Making one also removes what runs that were killed on this machine left behind.
    """

    def __init__(self, limits: Limits | None = None, *, max_boots: int = 4) -> None:
        """`max_boots`: how many sandboxes are made at one moment; more wait. SandboxError if this
        machine cannot isolate at all; what it does only in part is logged as a warning.
        """
        if max_boots < 1:
            raise ValueError(f"max_boots must be at least 1, got {max_boots}")
        self._limits = limits or Limits()
        self._host = open_host(self._limits)
        self._boots = threading.BoundedSemaphore(max_boots)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: set[LocalSandbox] = set()
        self._is_closed = False
        atexit.register(self.close)
        if self.weaknesses:
            log.warning("sandboxes are weaker than they could be: %s", "; ".join(self.weaknesses))

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """What this machine does not enforce, in words. Empty for root with the usual rights."""
        return self._host.weaknesses

    @property
    def run_dir(self) -> Path:
        """Where this run's sandboxes are mounted."""
        return self._host.run_dir

    def __call__(self, files: Files, *, node_modules: Path | None = None) -> Sandbox:
        """A new sandbox that holds `files`. SandboxError; ValueError for a path outside the project."""
        with self._boots:
            if self._is_closed:
                raise SandboxError("LocalSandboxes is closed")
            number = next(self._numbers)
            sandbox = LocalSandbox(
                self._host,
                self._limits,
                sandbox_id=f"{self._host.run_dir.name}-{number}",
                uid=None if self._host.setpriv is None else sandbox_uid(number),
                node_modules=None if node_modules is None else self._host.reachable(node_modules),
                on_close=self._forget,
            )
            with self._lock:
                self._open.add(sandbox)
            try:
                for path, data in files.items():
                    sandbox.write(path, data)
            except OSError as error:
                sandbox.close()
                raise SandboxError(f"the project does not fit into a sandbox: {error}") from error
            except ValueError:
                sandbox.close()
                raise
            return sandbox

    def close(self) -> None:
        """Closes every sandbox and removes the run's folder, mounts and groups. Safe to call twice.

        SandboxError, after all the rest is done, if the kernel does not let go of something.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            remaining = list(self._open)
        atexit.unregister(self.close)
        errors: list[SandboxError] = []
        for sandbox in remaining:
            try:
                sandbox.close()
            except SandboxError as error:  # the others must still be closed
                errors.append(error)
        remove_run_dir(self._host.run_dir, self._host.cgroups)
        if errors:
            raise errors[0]

    def _forget(self, sandbox: LocalSandbox) -> None:
        with self._lock:
            self._open.discard(sandbox)
