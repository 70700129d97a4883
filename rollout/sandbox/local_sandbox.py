"""One local sandbox: a project folder on its own small file system, and commands in namespaces."""

import errno
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rollout.sandbox.bubblewrap import View, sandbox_arguments
from rollout.sandbox.cgroups import Group
from rollout.sandbox.command import Ended, run_command
from rollout.sandbox.host import Host, launcher_fds
from rollout.sandbox.mounts import mount_tmpfs, unmount
from rollout.sandbox.projectfiles import ProjectFiles, split_path
from rollout.sandbox.protocol import ExecResult, Limits, SandboxError

_NUM_INODES = 50_000
_SIGKILL_EXIT = 128 + signal.SIGKILL


class LocalSandbox:
    """A `Sandbox` on this machine; made by `LocalSandboxes`. Closing it frees everything."""

    def __init__(
        self,
        host: Host,
        limits: Limits,
        *,
        sandbox_id: str,
        uid: int | None,
        node_modules: Path | None,
        on_close: Callable[["LocalSandbox"], None],
    ) -> None:
        self.sandbox_id = sandbox_id
        self._host = host
        self._limits = limits
        self._uid = uid
        self._on_close = on_close
        self._root = host.run_dir / sandbox_id.rpartition("-")[2]
        self._group: Group | None = None
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        try:
            self._make_folders(with_modules=node_modules is not None)
            if host.cgroups is not None:
                self._group = host.cgroups.make(sandbox_id, limits)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise SandboxError(f"sandbox {sandbox_id} could not be made: {error}") from error
            raise
        self._view = View(
            project=self._root / "project",
            tmp=self._root / "tmp",
            home=self._root / "home",
            etc=host.run_dir / "etc",
            node_modules=node_modules,
            node_prefix=host.node_prefix,
        )
        self._files = ProjectFiles(self._view.project, owner=uid)

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Runs one command; see `Sandbox.exec`. A program that is not there gives exit code 127."""
        self._check_open()
        if not argv or any("\0" in text for text in argv):
            raise ValueError("argv must have a program and no NUL bytes")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        folder = "/".join(split_path(cwd))
        started = time.monotonic()
        try:
            ended = self._launch(argv, folder, env or {}, timeout_s)
        except OSError as error:
            if error.errno == errno.E2BIG:
                return ExecResult(
                    exit_code=126, output=f"{error.strerror}\n", timed_out=False, dropped_bytes=0, seconds=0.0
                )
            raise SandboxError(f"sandbox {self.sandbox_id} cannot start a command: {error}") from error
        if ended.timed_out and self._group is not None:
            self._group.kill()
        self._check_open()
        text = ended.output.kept.decode(errors="replace")
        exit_code = None if ended.timed_out else self._exit_code(ended, text)
        return ExecResult(
            exit_code=exit_code,
            output=text.removeprefix("bwrap: execvp ") if exit_code == 127 else text,
            timed_out=ended.timed_out,
            dropped_bytes=ended.output.dropped,
            seconds=time.monotonic() - started,
        )

    def read(self, path: str, *, max_bytes: int = 4 << 20) -> bytes:
        """See `ProjectFiles.read`."""
        self._check_open()
        return self._files.read(path, max_bytes=max_bytes)

    def write(self, path: str, data: bytes) -> None:
        """See `ProjectFiles.write`."""
        self._check_open()
        self._files.write(path, data)

    def list(self, path: str = ".") -> list[str]:
        """See `ProjectFiles.list`."""
        self._check_open()
        return self._files.list(path)

    def snapshot(self, path: str = ".") -> dict[str, bytes]:
        """See `ProjectFiles.snapshot`."""
        self._check_open()
        return self._files.snapshot(path)

    def close(self) -> None:
        """Ends what runs, unmounts, removes group and folder. Safe to call twice and from any thread.

        SandboxError when the kernel does not let go of something.
        """
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGKILL)
        if self._group is not None:
            self._group.kill()
        if self._host.can_mount:
            try:
                unmount(self._root)
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOENT):  # was never mounted
                    raise SandboxError(f"cannot unmount {self._root}: {error}") from error
            if self._root.exists():
                self._root.rmdir()
        else:
            shutil.rmtree(self._root, ignore_errors=True)
        if self._group is not None:
            self._group.remove()
        self._on_close(self)

    def _make_folders(self, *, with_modules: bool) -> None:
        self._root.mkdir(mode=0o700)
        owner = os.geteuid() if self._uid is None else self._uid
        if self._host.can_mount:
            mount_tmpfs(self._root, size_bytes=self._limits.disk_bytes, num_inodes=_NUM_INODES, owner=owner)
        elif self._uid is not None:
            os.chown(self._root, owner, owner)
        names = ["project", "tmp", "home"] + (["project/node_modules"] if with_modules else [])
        for name in names:
            folder = self._root / name
            folder.mkdir(mode=0o755)
            if self._uid is not None:
                os.chown(folder, owner, owner)

    def _launch(self, argv: Sequence[str], cwd: str, env: Mapping[str, str], timeout_s: float) -> Ended:
        seccomp = self._host.seccomp
        fds = launcher_fds([seccomp or b"", b""])
        status_read, status_write = os.pipe()
        try:
            options = sandbox_arguments(
                self._view, cwd=cwd, env=env, has_seccomp=seccomp is not None, seccomp_fd=fds[0]
            )
            os.write(fds[1], options)
            os.lseek(fds[1], 0, os.SEEK_SET)
            launch = self._host.launch_argv(self._group, self._uid, self._limits)
            command = self._host.command_argv(argv, self._limits)
            return run_command(
                [*launch, "--args", str(fds[1]), "--json-status-fd", str(status_write), "--", *command],
                pass_fds=fds,
                status_read_fd=status_read,
                status_write_fd=status_write,
                timeout_s=timeout_s,
                max_output_bytes=self._limits.max_output_bytes,
                on_start=self._register,
            )
        finally:
            for descriptor in (*fds, status_read):
                os.close(descriptor)
            with self._lock:
                self._running = {process for process in self._running if process.poll() is None}

    def _register(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.add(process)
            if self._is_closed:  # closed between the check and the start
                process.send_signal(signal.SIGKILL)

    def _exit_code(self, ended: Ended, text: str) -> int:
        """The command's exit code. SandboxError if it never ran and that is not its own fault."""
        if ended.exit_code is not None:
            return ended.exit_code
        if ended.return_code == -signal.SIGKILL:  # out of memory: the kernel took bubblewrap with it
            return _SIGKILL_EXIT
        # Written by bubblewrap before the command could write anything, so not forgeable by it.
        if text.startswith(("bwrap: execvp ", "bwrap: Can't chdir ")):
            return 127
        raise SandboxError(f"sandbox {self.sandbox_id} did not start (code {ended.return_code}): {text[-500:]}")

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"sandbox {self.sandbox_id} is closed")
