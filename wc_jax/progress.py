"""One line that says what the run is doing now, and a stopwatch for each phase."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from tqdm import tqdm


class Progress:
    """A bar over steps whose text names the phase, such as `rollouts 5/32`. Silent off a terminal.

    >>> progress = Progress(num_steps=2, done=0, clock=iter([0.0, 1.5]).__next__)
    >>> with progress.phase("update"):
    ...     pass
    >>> progress.take_seconds()
    {'update': 1.5}
    """

    def __init__(
        self,
        *,
        num_steps: int,
        done: int,
        label: str = "",
        file: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`label`: opening of each line, for a process that is not the only one; it shows no bar."""
        self._label = label
        stream = sys.stderr if file is None else file
        self._bar = tqdm(
            total=num_steps,
            initial=done,
            unit="step",
            file=stream,
            disable=bool(label) or not stream.isatty(),
            dynamic_ncols=True,
        )
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._phase, self._count, self._total = "", 0, 0

    @contextmanager
    def phase(self, name: str, total: int = 0) -> Iterator[None]:
        """Names what is running; its seconds add up under `name` until `take_seconds`."""
        self._phase, self._count, self._total = name, 0, total
        self._show()
        started = self._clock()
        try:
            yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + self._clock() - started

    def advance(self) -> None:
        """One more item of the current phase is done. May be called from any thread."""
        self._count += 1
        self._show()

    def step_done(self) -> None:
        self._bar.update(1)

    def say(self, text: str) -> None:
        """A line above the bar."""
        tqdm.write(f"{self._label}{text}", file=sys.stdout)

    def take_seconds(self) -> dict[str, float]:
        """Wall seconds by phase since the last call, in the order the phases first ran."""
        taken, self._seconds = self._seconds, {}
        return taken

    def close(self) -> None:
        self._bar.close()

    def _show(self) -> None:
        count = f" {self._count}/{self._total}" if self._total else ""
        self._bar.set_postfix_str(f"{self._phase}{count}")
