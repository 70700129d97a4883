"""One Docker container: its exec streams, and its end."""

import struct
import time
from collections.abc import Callable
from typing import Any, TypeVar

import docker
import requests

from rollout.sandbox.protocol import SandboxError
from rollout.sandbox.remote_sandbox import Exchange
from rollout.sandbox.remote_wire import EXEC_ARGV

USER = "1000:1000"
_HEADER_BYTES = 8
_STDOUT, _STDERR = 1, 2
_GONE_S = 15.0
_READ_BYTES = 1 << 16

T = TypeVar("T")


def asked(what: str, call: Callable[[], T]) -> T:
    """What the engine answers. SandboxError that says `what` was wanted, and what the engine said."""
    try:
        return call()
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        said = getattr(error, "explanation", None) or error
        raise SandboxError(f"Docker could not {what}: {said}") from error


class DockerContainer:
    """A `Container` on a Docker engine; `api` is a `docker.APIClient`, which threads may share."""

    def __init__(self, api: Any, name: str) -> None:
        self._api = api
        self.name = name

    def talk(self, exchange: Exchange) -> None:
        """See `Container.talk`.

        By the raw socket: the SDK's own `exec_run` has neither input, nor a time limit, nor a cap on
        its output, and files cannot be copied into a read-only container by the engine itself.
        """
        exec_id = asked("prepare a command", lambda: self._create_exec())
        stream = asked("start a command", lambda: self._api.exec_start(exec_id, socket=True))
        try:
            ended = _carry(getattr(stream, "_sock", stream), exchange)
        except OSError as error:
            raise SandboxError(f"the line to Docker broke during a command in {self.name}: {error}") from error
        finally:
            _close(stream)
        if ended and exchange.status is None:
            # Its own end, or that of the line? A command that still runs is the latter.
            state = asked("look at a command", lambda: self._api.exec_inspect(exec_id))
            if state["Running"]:
                self.check_alive()
                raise SandboxError(f"the line to Docker ended during a command in {self.name}")

    def kill_all(self) -> None:
        """See `Container.kill_all`. By a signal to the keeper: an exec would need a free process."""
        before = self._processes()
        asked("signal a container", lambda: self._api.kill(self.name, signal="SIGUSR1"))
        deadline = time.monotonic() + _GONE_S
        while time.monotonic() < deadline:
            if len(self._processes() & before) <= 1:
                return
            time.sleep(0.02)
        raise SandboxError(f"the processes in {self.name} do not end")

    def check_alive(self) -> None:
        """See `Container.check_alive`."""
        state = asked("look at a container", lambda: self._api.inspect_container(self.name))["State"]
        if not state["Running"]:
            why = "out of memory" if state.get("OOMKilled") else f"exit code {state.get('ExitCode')}"
            raise SandboxError(f"container {self.name} has ended ({why})")

    def remove(self) -> None:
        """See `Container.remove`."""
        remove_container(self._api, self.name)

    def _create_exec(self) -> str:
        return str(self._api.exec_create(self.name, list(EXEC_ARGV), stdin=True, user=USER, workdir="/")["Id"])

    def _processes(self) -> set[str]:
        table = asked("list processes", lambda: self._api.top(self.name, ps_args="-eo pid,stat"))
        return {pid for pid, state, *_ in table["Processes"] if not state.startswith("Z")}


def remove_container(api: Any, name: str) -> None:
    """Kills and removes; a container that is gone, or just being removed by somebody else, is fine."""
    try:
        api.remove_container(name, force=True, v=True)
    except docker.errors.APIError as error:
        if error.status_code not in (404, 409):
            raise SandboxError(f"Docker could not remove container {name}: {error.explanation}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise SandboxError(f"Docker could not remove container {name}: {error}") from error


def _carry(socket: Any, exchange: Exchange) -> bool:
    """Sends all input, then takes all output. True at the stream's end, False at the deadline.

    One after the other is enough: our programs read all of their input before they say more than
    `begun`. The input has a length and the stream is never half-closed, which TLS could not do.
    """
    view = memoryview(exchange.stdin)
    received = bytearray()
    try:
        while view and exchange.left_s > 0:
            socket.settimeout(exchange.left_s)
            view = view[socket.send(view[:_READ_BYTES]) :]
    except (BrokenPipeError, ConnectionResetError):
        pass  # the program was killed before it read all: what it said, and its end, are still to come
    while (left := exchange.left_s) > 0:
        socket.settimeout(left)
        try:
            chunk = socket.recv(_READ_BYTES)
        except TimeoutError:
            continue
        if not chunk:
            return True
        received += chunk
        _take_frames(received, exchange)
    return False


def _take_frames(received: bytearray, exchange: Exchange) -> None:
    """Takes whole frames off the front: a byte that names the stream, three zeros, a length, the data."""
    while len(received) >= _HEADER_BYTES:
        kind, length = struct.unpack_from(">BxxxL", received)
        end = _HEADER_BYTES + length
        if len(received) < end:
            return
        data = bytes(received[_HEADER_BYTES:end])
        del received[:end]
        if kind == _STDERR:
            exchange.add(stderr=data)
        elif kind == _STDOUT:
            exchange.add(stdout=data)


def _close(stream: Any) -> None:
    """The HTTP answer that the stream came from, whose connection nobody can use again, and the stream."""
    response = getattr(stream, "_response", None)
    if response is not None:
        response.close()
    stream.close()
