"""The processes of one run, seen by one of them: who they are, what is whose, and what they tell each other.

Small values travel through a store of keys and values and not through devices, so that a process that waits can
be interrupted when another one fails.
"""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from wc_jax.watchdog import PeerFailed, Store, Watchdog

T = TypeVar("T")
_LONGEST_PAUSE_S = 0.5


class Processes:
    """The processes of this run, seen by one of them. All must make the same calls in the same order.

    >>> alone = Processes()
    >>> alone.gather(3, what="rows"), alone.agree_max(3, what="rows"), alone.share("abc")
    ([3], 3, ['a', 'b', 'c'])
    """

    def __init__(
        self, *, index: int = 0, count: int = 1, store: Store | None = None, watchdog: Watchdog | None = None
    ) -> None:
        assert (store is None) == (count == 1)
        self.index, self.count = index, count
        self._store, self._watchdog = store, watchdog
        self._num_gathered = 0

    @property
    def is_first(self) -> bool:
        """True for the one that writes what there is only one of."""
        return self.index == 0

    def gather(self, value: Any, *, what: str) -> list[Any]:
        """The small JSON value of every process, in their order. Waits for the slowest."""
        text = json.dumps([what, value])
        if self._store is None:
            return [json.loads(text)[1]]
        number = self._num_gathered
        self._num_gathered += 1
        self._store.key_value_set(f"webcoder/gather/{number}/{self.index}", text)
        pause_s = 0.005
        while len(found := self._store.key_value_dir_get(f"webcoder/gather/{number}/")) < self.count:
            time.sleep(pause_s)
            pause_s = min(1.5 * pause_s, _LONGEST_PAUSE_S)
        if number > 0:
            # Whoever wrote this time has read last time's values.
            self._store.key_value_delete(f"webcoder/gather/{number - 1}/{self.index}")
        by_process = {int(key.rpartition("/")[2]): json.loads(item) for key, item in found}
        asked = {process: item[0] for process, item in by_process.items()}
        assert set(asked.values()) == {what}, f"the processes are out of step: {asked}"
        return [by_process[process][1] for process in range(self.count)]

    def wait(self, *, what: str) -> None:
        """Until all processes are here."""
        self.gather(None, what=what)

    def agree_max(self, value: int, *, what: str) -> int:
        """The largest of all, such as the rows of a batch: a process with fewer, or none, pads."""
        return max(self.gather(int(value), what=what))

    def agree_all(self, value: bool, *, what: str) -> bool:
        return all(self.gather(bool(value), what=what))

    def agree_any(self, value: bool, *, what: str) -> bool:
        return any(self.gather(bool(value), what=what))

    def share(self, items: Sequence[T]) -> list[T]:
        """The items that this process works on, dealt one by one."""
        return list(items[self.index :: self.count])

    def gather_shares(self, mine: Sequence[Any], *, what: str) -> list[Any]:
        """What became of all items, in the order they had before `share`."""
        shares = self.gather(list(mine), what=what)
        return [shares[i % self.count][i // self.count] for i in range(sum(map(len, shares)))]

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """An exception inside is told to all others at once; one that another process caused becomes `PeerFailed`.

        Enter it last, so that it is left first: others must not wait for what this process closes.
        """
        try:
            yield
        except PeerFailed:
            raise
        except BaseException as error:
            if self._watchdog is None:
                raise
            is_news, failure = self._watchdog.report(error)
            if failure.process != self.index and isinstance(error, Exception):
                raise PeerFailed(failure) from error
            if is_news:
                print(f"{failure} (of {self.count} processes)", file=sys.stderr, flush=True)
            raise


ALONE = Processes()
"""A run of one process."""
