"""No process of a run waits for one that is gone: beats, the first failure told to all, and a bounded end.

Each process beats in a store that all of them see. Whoever fails writes the cause there, once; a process
whose beats stop is taken for dead. The others learn of either within a beat, are interrupted with
`PeerFailed`, close what they opened, and are ended the hard way when that takes too long.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Protocol

FAILED = 3
"""Exit code of a process that had to leave because of another one."""
_FAILURE, _BEATS, _LEFT = "webcoder/failure/", "webcoder/beats/", "webcoder/left/"
_SLOWEST_BEAT_S = 0.5
_LINGER_S = 5.0


class Store(Protocol):
    """Keys and values that all processes share. Every call may raise RuntimeError: the store is gone."""

    def key_value_set(self, key: str, value: str) -> None:
        """Raises RuntimeError, too, when the key exists: the first writer wins."""

    def key_value_increment(self, key: str, increment: int) -> int: ...

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """All pairs whose key begins with this."""

    def key_value_delete(self, key: str) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why the run ends."""

    process: int
    cause: str

    def __str__(self) -> str:
        return f"process {self.process} failed: {self.cause}"


class PeerFailed(BaseException):
    """Another process failed. No ordinary `except` catches it; every `finally` runs."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


class Watchdog:
    """A thread that beats for this process and listens for the others, until `stop`."""

    def __init__(self, store: Store, *, index: int, count: int, timeout_s: float) -> None:
        """`timeout_s`: a process silent for so long is dead; having failed, all must leave in as long again."""
        self._store, self._index, self._count, self._timeout_s = store, index, count, timeout_s
        self._pause_s = min(_SLOWEST_BEAT_S, timeout_s / 6)
        self._heard = dict.fromkeys(range(count), ("", time.monotonic()))
        self._failure: Failure | None = None
        self._is_leaving = self._has_closed = False
        self._deadline = float("inf")
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self._handler = signal.signal(signal.SIGUSR1, self._interrupted)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """All processes are done: silence is fine from now on."""
        self._stopped.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._handler)

    def report(self, error: BaseException) -> tuple[bool, Failure]:
        """Finds out whose failure `error` is, tells all, and gives everybody `timeout_s` to leave.

        Returns whether this was not known before, and the failure. A broken connection is what the others
        see of a dead process, so before it counts as our own failure each of them must be heard of again.
        """
        self._is_leaving = True
        if self._failure is None and isinstance(error, Exception):
            self._wait_for_beats()
        if self._failure is not None:
            return False, self._failure
        first_line = (str(error).strip().splitlines() or [""])[0][:500]
        mine = Failure(process=self._index, cause=f"{type(error).__name__}: {first_line}")
        try:
            self._store.key_value_set(f"{_FAILURE}first", json.dumps(asdict(mine)))
            self._failure = mine
        except RuntimeError:
            # Somebody was first, or the store is gone.
            self._failure = self._posted() or mine
        self._deadline = min(self._deadline, time.monotonic() + self._timeout_s)
        return True, self._failure

    def leave(self) -> bool:
        """After all is closed: waits, within the time that is left, for the others to close, too.

        Process 0 keeps the store, and JAX's own farewell waits for all. Soon after this process ends, by itself or
        not. Returns whether all others have closed; else some are dead.
        """
        left: set[int] = set()
        self._has_closed = True
        with contextlib.suppress(RuntimeError):
            self._store.key_value_set(f"{_LEFT}{self._index}", "")
            while True:
                left = {int(key.rpartition("/")[2]) for key, _ in self._store.key_value_dir_get(_LEFT)}
                if len(left | self._silent(time.monotonic())) == self._count:
                    break
                time.sleep(self._pause_s)
        are_all_here, now = len(left) == self._count, time.monotonic()
        soon = now + _LINGER_S
        self._deadline = max(self._deadline, soon) if are_all_here else min(self._deadline, soon)
        # After that no thread of ours runs any more, but a collective that waits for a dead process may.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, self._deadline - now + _LINGER_S)
        return are_all_here

    def _watch(self) -> None:
        while not self._stopped.wait(self._pause_s):
            now = time.monotonic()
            if now > self._deadline:
                if not self._has_closed:
                    print(f"{self._failure}; this process could not close in time", file=sys.stderr, flush=True)
                os._exit(FAILED)
            try:
                self._store.key_value_increment(f"{_BEATS}{self._index}", 1)
                failure = self._look(now)
            except RuntimeError as error:
                failure = Failure(process=0, cause=f"it can't be reached any more ({str(error).splitlines()[0]})")
            if failure is not None and self._failure is None:
                self._failure, self._deadline = failure, now + self._timeout_s
                if not self._is_leaving:
                    main = threading.main_thread().ident
                    assert main is not None
                    signal.pthread_kill(main, signal.SIGUSR1)

    def _look(self, now: float) -> Failure | None:
        for key, value in self._store.key_value_dir_get(_BEATS):
            process = int(key.rpartition("/")[2])
            if self._heard[process][0] != value:
                self._heard[process] = (value, now)
        if (posted := self._posted()) is not None:
            return posted
        for process in sorted(self._silent(now)):
            return Failure(process=process, cause=f"nothing was heard of it for {self._timeout_s:g} s; it is dead")
        return None

    def _posted(self) -> Failure | None:
        with contextlib.suppress(RuntimeError):
            for _, value in self._store.key_value_dir_get(_FAILURE):
                return Failure(**json.loads(value))
        return None

    def _silent(self, now: float) -> set[int]:
        return {process for process, (_, at) in self._heard.items() if now - at > self._timeout_s}

    def _wait_for_beats(self) -> None:
        """Until all have beaten since now, or one is known to have failed."""
        start = time.monotonic()
        while self._failure is None and any(at < start for _, at in self._heard.values()):
            time.sleep(self._pause_s / 4)

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        if self._failure is not None and not self._is_leaving:
            raise PeerFailed(self._failure)
