"""One command under bubblewrap: its deadline, its output, and the end of all its processes."""

import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rollout.sandbox.protocol import SandboxError

_GONE_S = 10.0
_DRAIN_S = 2.0
_READ_BYTES = 1 << 16


@dataclass(kw_only=True)
class Output:
    """What is kept of a stream: the first `limit` bytes; the rest is only counted."""

    limit: int
    kept: bytearray = field(default_factory=bytearray)
    dropped: int = 0

    def add(self, chunk: bytes) -> None:
        room = max(0, self.limit - len(self.kept))
        self.kept += chunk[:room]
        self.dropped += max(0, len(chunk) - room)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How bubblewrap ended. `exit_code` is the command's own; None: it never started."""

    exit_code: int | None
    timed_out: bool
    output: Output
    return_code: int
    """Of bubblewrap: negative when a signal ended it."""
    first_pid: int | None
    """Process 1 of the sandbox, as the host numbers it."""


def run_command(
    argv: Sequence[str],
    *,
    pass_fds: Sequence[int],
    status_read_fd: int,
    status_write_fd: int,
    timeout_s: float,
    max_output_bytes: int,
    on_start: Callable[[subprocess.Popen[bytes]], None],
) -> Ended:
    """Runs `argv` to its end or its deadline, then waits until its whole process tree is gone.

    `status_read_fd` is the reading end of bubblewrap's `--json-status-fd`; `status_write_fd`, its
    other end, is closed here once the child has it.
    """
    deadline = time.monotonic() + timeout_s
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        # Bubblewrap's own environment is readable inside as /proc/1/environ: give it none of ours.
        env={"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
        cwd="/",
        start_new_session=True,
        pass_fds=[*pass_fds, status_write_fd],
    )
    os.close(status_write_fd)
    assert process.stdout is not None
    output = Output(limit=max_output_bytes)
    try:
        on_start(process)
        timed_out = not _read_until(process, output, deadline)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        status = _read_status(status_read_fd)
        first_pid = status.get("child-pid")
        if first_pid is not None:
            _wait_gone(first_pid)
        _drain(process.stdout.fileno(), output)
        process.stdout.close()
    return Ended(
        exit_code=status.get("exit-code"),
        timed_out=timed_out,
        output=output,
        return_code=process.returncode,
        first_pid=first_pid,
    )


def _read_until(process: subprocess.Popen[bytes], output: Output, deadline: float) -> bool:
    """Collects output until the process has ended (True) or the deadline has passed (False)."""
    assert process.stdout is not None
    stream = process.stdout.fileno()
    os.set_blocking(stream, False)
    end = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(stream, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                ready = {key.fd for key, _ in selector.select(left)}
                if stream in ready and not _read_some(stream, output):
                    selector.unregister(stream)
                if end in ready:
                    return True
            return process.poll() is not None
    finally:
        os.close(end)


def _read_some(stream: int, output: Output) -> bool:
    """One read. False at the end of the stream."""
    try:
        chunk = os.read(stream, _READ_BYTES)
    except BlockingIOError:
        return True
    output.add(chunk)
    return bool(chunk)


def _drain(stream: int, output: Output) -> None:
    """What the dead left in the pipe. All writers are gone, so this ends; the clock is for safety."""
    os.set_blocking(stream, False)
    end = time.monotonic() + _DRAIN_S
    while time.monotonic() < end:
        try:
            chunk = os.read(stream, _READ_BYTES)
        except BlockingIOError:
            return
        if not chunk:
            return
        output.add(chunk)


def _read_status(descriptor: int) -> dict[str, int]:
    """Bubblewrap's status lines, merged: `child-pid`, then `exit-code` once the command ran."""
    os.set_blocking(descriptor, False)
    try:
        text = os.read(descriptor, _READ_BYTES).decode()
    except BlockingIOError:
        return {}
    merged: dict[str, int] = {}
    for line in text.splitlines():
        merged.update({key: value for key, value in json.loads(line).items() if isinstance(value, int)})
    return merged


def _wait_gone(pid: int) -> None:
    """Until process 1 of a sandbox has ended: the kernel ends it last, after all the others.

    SandboxError after 10 s.
    """
    deadline = time.monotonic() + _GONE_S
    delay = 0.0005
    while time.monotonic() < deadline:
        _reap(pid)
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
                if stat.read().rpartition(")")[2].split()[0] in "ZX":
                    return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(delay)
        delay = min(2 * delay, 0.05)
    raise SandboxError(f"the processes of a sandbox (first: {pid}) do not end")


def _reap(pid: int) -> None:
    """Takes the exit status of `pid` if it became our child: when we are a container's process 1,
    orphans come to us, and nobody else would ever remove them.
    """
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
