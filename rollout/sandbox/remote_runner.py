"""Runs one command inside a container. Standard library only: its text is sent there with each command.

The command's output goes to our standard output, cut at a limit; how it ended goes to standard
error as one line of JSON. We adopt whatever the command leaves (`PR_SET_CHILD_SUBREAPER`), so that
no `setsid` and no double fork hides a process from the end of its command.
"""

import ctypes
import errno
import json
import os
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_DRAIN_S = 2.0
_POLL_S = 0.002
_READ_BYTES = 1 << 16
# Inside the container only: we must get our turn among the command's own hundreds of processes.
_NICENESS = 10
_OOM_SCORE = "500"


def run(request: Mapping[str, Any], stdin: BinaryIO) -> dict[str, Any]:
    """Runs `request["argv"]` and says how it ended: `exit_code` (None at the time limit), `dropped`.

    `request` has argv, cwd, env, timeout_s, max_output_bytes, stdin_bytes and persistent; see
    `remote_wire.command_request`.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Commands have our user id: without this they could write to our streams through /proc.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    source = _input_file(stdin, request["stdin_bytes"])
    read_end, write_end = os.pipe()
    started = time.monotonic()
    child, problem = _start(request, source, write_end)
    os.close(write_end)
    os.close(source)
    if problem is not None:
        os.waitpid(child, 0)
        code = 126 if problem == errno.E2BIG else 127
        return {"exit_code": code, "dropped": 0, "problem": os.strerror(problem)}
    relay = Relay(read_end, request["max_output_bytes"])
    in_time = _wait(child, relay, started + request["timeout_s"])
    status = _end_tree(child, kill_rest=not (in_time and request["persistent"]))
    is_ended = relay.drain(_DRAIN_S if not request["persistent"] else 0.0)
    if not is_ended and request["persistent"]:
        _drain_for_ever(read_end)
    return {"exit_code": status if in_time else None, "dropped": relay.dropped}


class Relay:
    """Copies a pipe to standard output: the first `limit` bytes; the rest is only counted."""

    def __init__(self, pipe: int, limit: int) -> None:
        self.pipe = pipe
        self.dropped = 0
        self._left = limit
        os.set_blocking(pipe, False)

    def copy_some(self) -> bool:
        """One read. False at the end of the pipe, or when there is nothing to read now."""
        try:
            chunk = os.read(self.pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        kept = memoryview(chunk)[: self._left]
        self._left -= len(kept)
        self.dropped += len(chunk) - len(kept)
        while kept:
            kept = kept[os.write(1, kept) :]
        return bool(chunk)

    def drain(self, seconds: float) -> bool:
        """Copies what is there, and waits `seconds` for the pipe's end. False if it is still open."""
        deadline = time.monotonic() + seconds
        with select.epoll() as poll:
            poll.register(self.pipe, select.EPOLLIN)
            while True:
                events = poll.poll(max(0.0, deadline - time.monotonic()))
                if not events:
                    return False
                if not self.copy_some():
                    return True
                if time.monotonic() > deadline and not events[0][1] & select.EPOLLHUP:
                    return False  # a process that lives on may write for ever


def _input_file(stdin: BinaryIO, num_bytes: int) -> int:
    """The command's standard input, as a file that ends; a container's own stream may have no end."""
    if num_bytes == 0:
        return os.open(os.devnull, os.O_RDONLY)
    spool = os.memfd_create("input")
    while num_bytes > 0 and (chunk := stdin.read(min(num_bytes, _READ_BYTES))):
        num_bytes -= len(chunk)
        view = memoryview(chunk)
        while view:
            view = view[os.write(spool, view) :]
    os.lseek(spool, 0, os.SEEK_SET)
    return spool


def _start(request: Mapping[str, Any], source: int, output: int) -> tuple[int, int | None]:
    """The child, and the error number if it could not become the command."""
    report_read, report_write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            _become(request["argv"], request["cwd"], request["env"], source, output)
        except OSError as error:
            os.write(report_write, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(report_write)
    text = os.read(report_read, 16)
    os.close(report_read)
    return child, int(text) if text else None


def _become(argv: Sequence[str], cwd: str, env: Mapping[str, str], source: int, output: int) -> None:
    os.setsid()
    for target, descriptor in ((0, source), (1, output), (2, output)):
        os.dup2(descriptor, target)
    os.nice(_NICENESS)
    try:
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write(_OOM_SCORE)
    except OSError:  # then the kernel chooses by size alone
        pass
    # Python ignores these two; a command must not inherit that.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.chdir(cwd)
    os.execvpe(argv[0], list(argv), dict(env))


def _wait(child: int, relay: Relay, deadline: float) -> bool:
    """Relays output until the command has ended (True) or the deadline has passed (False)."""
    end = os.pidfd_open(child)
    with select.epoll() as poll:
        poll.register(end, select.EPOLLIN)
        poll.register(relay.pipe, select.EPOLLIN)
        try:
            while (left := deadline - time.monotonic()) > 0:
                ready = {descriptor for descriptor, _ in poll.poll(left)}
                if relay.pipe in ready and not relay.copy_some():
                    poll.unregister(relay.pipe)
                if end in ready:
                    return True
            return False
        finally:
            os.close(end)


def _end_tree(child: int, *, kill_rest: bool) -> int:
    """Takes the exit code of `child`, and ends all other processes that came from it if asked.

    First all are stopped, until none is found running: a stopped process cannot fork, so this ends.
    """
    status: int | None = None
    if kill_rest:
        seen: set[int] = set()
        while new := set(_descendants()) - seen:
            seen |= new
            for pid in new:
                _signal(pid, signal.SIGSTOP)
        for pid in seen:
            _signal(pid, signal.SIGKILL)
    while status is None or kill_rest:
        try:
            pid, raw = os.waitpid(-1, os.WNOHANG) if kill_rest else os.waitpid(child, 0)
        except ChildProcessError:
            break
        if pid == child:
            status = os.waitstatus_to_exitcode(raw)
        if pid == 0:  # not all are gone: perhaps one got a SIGCONT, or was adopted by us only now
            for survivor in _descendants():
                _signal(survivor, signal.SIGKILL)
            time.sleep(_POLL_S)
    assert status is not None
    return status if status >= 0 else 128 - status


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _descendants() -> list[int]:
    """All processes below this one, from the table of processes."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as stat:
                state, parent = stat.read().rpartition(b")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state not in (b"Z", b"X"):
            children.setdefault(int(parent), []).append(int(name))
    found, todo = [], [os.getpid()]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _drain_for_ever(pipe: int) -> None:
    """Leaves a process that reads what the command's background processes still write: without a
    reader, a development server would die of its next log line.
    """
    if os.fork() == 0:
        try:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            os.set_blocking(pipe, True)
            for target, descriptor in ((0, pipe), (1, null), (2, null)):
                os.dup2(descriptor, target)
            os.execvp("cat", ["cat"])
        finally:
            os._exit(127)


def main() -> None:
    """Reads a request (a length, that many bytes of JSON, the command's input) and answers it."""
    os.write(2, b"begun\n")
    stdin = sys.stdin.buffer
    request = json.loads(stdin.read(int(stdin.readline())))
    ended = run(request, stdin)
    os.write(2, json.dumps(ended).encode() + b"\n")
    # At once: Python's own farewell could be slow while others use up the container's processors.
    os._exit(0)
