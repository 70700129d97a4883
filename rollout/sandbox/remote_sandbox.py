"""A sandbox in a container that some engine runs: commands and files by exec streams only.

Docker and Kubernetes differ in how a container is started, removed and spoken to (`Container`); what
a command or a file is, is the same here for both.
"""

import errno
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rollout.sandbox.bubblewrap import HOME, WORKSPACE
from rollout.sandbox.command import Output
from rollout.sandbox.projectfiles import split_path
from rollout.sandbox.protocol import ExecResult, Files, Limits, SandboxError
from rollout.sandbox.remote_files import MAX_LIST_BYTES
from rollout.sandbox.remote_wire import (
    MAX_STATUS_BYTES,
    MAX_TAR_BYTES,
    command_request,
    file_request,
    has_begun,
    pack,
    parse_status,
    unpack,
)

BEGIN_TIMEOUT_S = 60.0
"""A program must have begun by then: an engine under load takes seconds to start one."""
FILES_TIMEOUT_S = 120.0
"""For file work, a snapshot of 64 MiB over a slow line included."""
_GRACE_S = 10.0
_KILLED = 137

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": HOME,
    "USER": "agent",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "NO_COLOR": "1",
    "CI": "1",
    # Without these, `npm install` waits over a minute for a network that is not there.
    "npm_config_offline": "true",
    "npm_config_update_notifier": "false",
}


@dataclass(kw_only=True)
class Exchange:
    """One exec stream: what goes in, what came out so far, and when it must have ended."""

    stdin: bytes
    stdout: Output
    time_limit_s: float
    """From the moment that the program has begun."""
    stderr: Output
    deadline: float

    @staticmethod
    def new(stdin: bytes, *, max_bytes: int, time_limit_s: float) -> "Exchange":
        """An exchange that keeps `max_bytes` of what the program sends."""
        return Exchange(
            stdin=stdin,
            stdout=Output(limit=max_bytes),
            stderr=Output(limit=MAX_STATUS_BYTES),
            time_limit_s=time_limit_s,
            deadline=time.monotonic() + BEGIN_TIMEOUT_S,
        )

    def add(self, *, stdout: bytes = b"", stderr: bytes = b"") -> None:
        """Takes what came; the program's own clock starts with its first word."""
        self.stdout.add(stdout)
        had_begun = self.has_begun
        self.stderr.add(stderr)
        if self.has_begun and not had_begun:
            self.deadline = time.monotonic() + self.time_limit_s

    @property
    def has_begun(self) -> bool:
        """The program has started to run."""
        return has_begun(bytes(self.stderr.kept[:16]))

    @property
    def status(self) -> dict[str, Any] | None:
        """The program's last word, once the stream has ended; None if it was killed before."""
        return parse_status(bytes(self.stderr.kept))

    @property
    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self.deadline - time.monotonic()


class Container(Protocol):
    """A running container with our keeper as process 1. Every method may raise `SandboxError`."""

    @property
    def name(self) -> str: ...

    def talk(self, exchange: Exchange) -> None:
        """Starts a program by `remote_wire.EXEC_ARGV` and carries its stream to its end or its deadline."""

    def kill_all(self) -> None:
        """Ends every process but the keeper; they are gone when this returns."""

    def check_alive(self) -> None:
        """`SandboxError` that says why the container does not run any more."""

    def remove(self) -> None:
        """Takes the container away. Fine if it is gone."""


class RemoteSandbox:
    """A `Sandbox` in a container; made by `RemoteSandboxes`. Closing it removes the container."""

    def __init__(
        self,
        container: Container,
        limits: Limits,
        *,
        persistent: bool,
        on_close: Callable[["RemoteSandbox"], None],
    ) -> None:
        self._container = container
        self._limits = limits
        self._persistent = persistent
        self._on_close = on_close
        self._lock = threading.Lock()
        self._is_closed = False

    @property
    def sandbox_id(self) -> str:
        """The container's name."""
        return self._container.name

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
    ) -> ExecResult:
        """Runs one command; see `Sandbox.exec`. A program that is not there gives exit code 127."""
        self._check_open()
        if not argv or any("\0" in text for text in argv):
            raise ValueError("argv must have a program and no NUL bytes")
        if timeout_s <= 0:
            raise ValueError(f"timeout_s must be positive, got {timeout_s}")
        started = time.monotonic()
        request = command_request(
            argv,
            cwd="/".join((WORKSPACE, *split_path(cwd))),
            env={**ENVIRONMENT, **(env or {})},
            timeout_s=timeout_s,
            max_output_bytes=self._limits.max_output_bytes,
            persistent=self._persistent,
            stdin=stdin or b"",
        )
        # Above its own limit: a program that does not keep it was tampered with, and is killed from outside.
        exchange = self._talk(request, max_bytes=self._limits.max_output_bytes, time_limit_s=timeout_s + _GRACE_S)
        status = exchange.status
        output = bytes(exchange.stdout.kept)
        dropped = exchange.stdout.dropped
        if status is None:  # killed, perhaps by the command itself: what it left is ended here
            timed_out = exchange.left_s <= 0
            self._container.kill_all()
            exit_code = None if timed_out else _KILLED
        else:
            exit_code = status.get("exit_code")
            timed_out = exit_code is None
            dropped += int(status.get("dropped", 0))
            if "problem" in status:
                output = f"{argv[0]}: {status['problem']}\n".encode()
        return ExecResult(
            exit_code=exit_code,
            output=output.decode(errors="replace"),
            timed_out=timed_out,
            dropped_bytes=dropped,
            seconds=time.monotonic() - started,
        )

    def read(self, path: str, *, max_bytes: int = 4 << 20) -> bytes:
        """See `ProjectFiles.read`."""
        split_path(path)
        return self._files("read", path, max_bytes=max_bytes, limit=max_bytes)

    def write(self, path: str, data: bytes) -> None:
        """See `ProjectFiles.write`."""
        if not split_path(path):
            raise IsADirectoryError(errno.EISDIR, "is the project folder", path)
        self._files("write", path, tar=pack({path: data}))

    def write_all(self, files: Files) -> None:
        """Many files in one stream; see `write`. ValueError, before any is written, for a path outside."""
        if files:
            self._files("write", ".", tar=pack(files))

    def list(self, path: str = ".") -> list[str]:
        """See `ProjectFiles.list`; names beyond 8 MiB in all are left out."""
        split_path(path)
        text = self._files("list", path, limit=2 * MAX_LIST_BYTES)
        try:
            names = json.loads(text)
        except ValueError as error:
            raise SandboxError(f"sandbox {self.sandbox_id} sent no usable list of files: {error}") from error
        return ["/".join(split_path(str(name))) for name in names]

    def snapshot(self, path: str = ".") -> dict[str, bytes]:
        """See `ProjectFiles.snapshot`."""
        split_path(path)
        return unpack(self._files("snapshot", path, limit=MAX_TAR_BYTES))

    def close(self) -> None:
        """Removes the container with all that runs in it. Safe to call twice and from any thread."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        try:
            self._container.remove()
        finally:
            self._on_close(self)

    def _files(self, operation: str, path: str, *, limit: int = 0, tar: bytes = b"", **arguments: int) -> bytes:
        """File work in the container; what it sent. OSError as the container's own system says it."""
        self._check_open()
        request = file_request(operation, WORKSPACE, tar=tar, path=path, **arguments)
        for _ in range(2):
            exchange = self._talk(request, max_bytes=limit, time_limit_s=FILES_TIMEOUT_S)
            status = exchange.status
            if status is not None and exchange.stdout.dropped == 0:
                if status.get("errno") != 0:
                    raise OSError(status.get("errno"), str(status.get("message")), path)
                return bytes(exchange.stdout.kept)
            # Something in the sandbox is in the way (no memory left, for one): it goes, and we try again.
            self._container.kill_all()
        raise SandboxError(f"sandbox {self.sandbox_id} does not answer: {operation} {path!r} was killed twice")

    def _talk(self, request: bytes, *, max_bytes: int, time_limit_s: float) -> Exchange:
        """One program, begun for certain. SandboxError if the sandbox is closed, gone or hopeless."""
        for attempt in range(2):
            exchange = Exchange.new(request, max_bytes=max_bytes, time_limit_s=time_limit_s)
            try:
                self._container.talk(exchange)
            except SandboxError:
                self._check_open()
                raise
            self._check_open()
            if exchange.status is not None:
                return exchange
            self._container.check_alive()
            if exchange.has_begun:
                return exchange
            if attempt == 0:  # no free process in there, or it was killed on its first instruction
                self._container.kill_all()
        raise SandboxError(f"sandbox {self.sandbox_id} starts no program within {BEGIN_TIMEOUT_S:.0f} s")

    def _check_open(self) -> None:
        if self._is_closed:
            raise SandboxError(f"sandbox {self.sandbox_id} is closed")
