"""Many sandboxes on one engine (Docker or Kubernetes): made a few at a time, all gone at the end."""

import atexit
import itertools
import logging
import threading
from pathlib import Path
from typing import Protocol

from rollout.sandbox.protocol import Files, Limits, Sandbox, SandboxError
from rollout.sandbox.remote_owner import machine_name, new_run_name
from rollout.sandbox.remote_sandbox import Container, RemoteSandbox

log = logging.getLogger(__name__)

DEFAULT_LIFETIME_S = 4 * 3600.0
"""A container ends itself after this, should nobody remove it: longer than any rollout."""

BUILD_IMAGE = (
    "build it with `docker build -t webcoder/sandbox rollout/sandbox/images`, or without a registry with"
    " `python -m rollout.sandbox image`"
)
_NEEDED = ("bash", "node", "tar", "grep")


class Engine(Protocol):
    """Where containers run. Every method may raise `SandboxError`."""

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """What it does not enforce, in words."""

    def start(self, name: str, run_name: str, limits: Limits, node_modules: Path | None) -> Container:
        """A container that runs the keeper, with an empty project."""

    def remove_left_over(self) -> int:
        """Takes away what dead runs left; how many that were."""

    def close(self) -> None:
        """Ends the connection."""


class RemoteSandboxes:
    """A `SandboxFactory` on an engine. Call it from any thread; close it when the run ends.

        sandboxes = RemoteSandboxes(DockerEngine(DockerSettings()), Limits(memory_bytes=1 << 30))
        sandboxes.try_out()
        sandbox = sandboxes(template.files, node_modules=template.node_modules)
        sandbox.exec(["node", "--version"], timeout_s=5.0).output    # "v20.20.2\\n"
        sandboxes.close()

    Making one also removes what dead runs left on that engine.
    """

    def __init__(self, engine: Engine, limits: Limits | None = None, *, max_boots: int = 4) -> None:
        """`max_boots`: how many sandboxes are made at one moment; more wait. Owns and closes `engine`."""
        if max_boots < 1:
            raise ValueError(f"max_boots must be at least 1, got {max_boots}")
        self._engine = engine
        self._limits = limits or Limits()
        self._boots = threading.BoundedSemaphore(max_boots)
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._open: set[RemoteSandbox] = set()
        self._is_closed = False
        self.run_name = new_run_name()
        """On the label of every container of this run."""
        engine.remove_left_over()
        atexit.register(self.close)
        if self.weaknesses:
            log.warning("sandboxes are weaker than they could be: %s", "; ".join(self.weaknesses))

    @property
    def weaknesses(self) -> tuple[str, ...]:
        """What the engine does not enforce, in words."""
        return self._engine.weaknesses

    def __call__(self, files: Files, *, node_modules: Path | None = None, persistent: bool = False) -> Sandbox:
        """A new sandbox that holds `files`. SandboxError; ValueError for a path outside the project."""
        with self._boots:
            self._check_open()
            name = f"webcoder-{machine_name()[:8]}-{self.run_name.replace('.', '-')}-{next(self._numbers)}"
            container = self._engine.start(name, self.run_name, self._limits, node_modules)
            sandbox = RemoteSandbox(container, self._limits, persistent=persistent, on_close=self._forget)
            with self._lock:
                self._open.add(sandbox)
            try:
                self._check_open()  # closed while the engine was busy with ours
                sandbox.write_all(files)
            except OSError as error:
                sandbox.close()
                raise SandboxError(f"the project does not fit into a sandbox: {error}") from error
            except BaseException:
                sandbox.close()
                raise
            return sandbox

    def try_out(self) -> None:
        """Makes one sandbox and looks for the programs that agents need. SandboxError in words for people."""
        sandbox = self({})
        try:
            script = 'for name in "$@"; do command -v "$name" >/dev/null || echo "$name"; done'
            ended = sandbox.exec(["sh", "-c", script, "sh", *_NEEDED], timeout_s=30.0)
        finally:
            sandbox.close()
        if ended.exit_code != 0 or ended.output:
            raise SandboxError(f"the sandbox image lacks {', '.join(ended.output.split()) or 'sh'}; {BUILD_IMAGE}")

    def close(self) -> None:
        """Removes every container of this run. Safe to call twice. SandboxError, after all the rest is done."""
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
        self._engine.close()
        if errors:
            raise errors[0]

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError("these sandboxes are closed")

    def _forget(self, sandbox: RemoteSandbox) -> None:
        with self._lock:
            self._open.discard(sandbox)
