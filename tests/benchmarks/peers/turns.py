"""Contestants take turns: each is a process that stays alive and does one update when it is told to.

Lines of JSON in both directions. A contestant that waits sleeps in `readline`, so it costs the others nothing
but memory.
"""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Measures = dict[str, float]
"""Of one update: `loss`, `grad_norm`, `logp` (mean over samples of the mean old log-probability)."""


class Updater(Protocol):
    """A contestant that is ready."""

    def warm_up(self, work: str) -> None:
        """Compile what `update` of this work needs and run it as little as possible; the policy stays as it is."""

    def update(self, work: str) -> Measures:
        """One update on the work of that name."""


def serve(prepare: Callable[[dict[str, Any]], Updater]) -> None:
    """The contestant's side: answers questions until there are no more."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print; the answers must stay alone
    settings = json.loads(sys.stdin.readline())
    # Who wants too much ends by itself, before the kernel picks somebody to end.
    resource.setrlimit(resource.RLIMIT_DATA, (settings["memory_gib"] * 2**30,) * 2)
    updater = prepare(settings)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        started, cpu = time.perf_counter(), time.process_time()
        question = json.loads(line)
        measures = (updater.warm_up if question["warm_up"] else updater.update)(question["work"]) or {}
        took = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - cpu}
        peak = {"peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20}
        print(json.dumps({**took, **peak, **measures}), file=answers)


class Contestant:
    """The benchmark's side of one process."""

    def __init__(
        self, name: str, python: Path, module: str, *, log: Path, environment: dict[str, str], settings: dict[str, Any]
    ) -> None:
        self.name, self._log = name, log
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [str(python), "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env={**os.environ, **environment},
            )
        self._ask(settings)

    def warm_up(self, work: str) -> Measures:
        return self._ask({"work": work, "warm_up": True})

    def update(self, work: str) -> Measures:
        return self._ask({"work": work, "warm_up": False})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            tail = "".join(self._log.read_text().splitlines(keepends=True)[-15:])
            raise RuntimeError(f"{self.name} ended with code {self._process.wait()}; the end of {self._log}:\n{tail}")
        return json.loads(answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
