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
from typing import Any

Measures = dict[str, float]
"""Of one update: `loss`, `grad_norm`, `logp` (mean over samples of the mean old log-probability)."""


def serve(prepare: Callable[[dict[str, Any]], Callable[[str], Measures]]) -> None:
    """The contestant's side. `prepare(settings)` gives a function that does one update of the work of that name."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print; the answers must stay alone
    settings = json.loads(sys.stdin.readline())
    update = prepare(settings)
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        started, cpu = time.perf_counter(), time.process_time()
        measures = update(json.loads(line)["work"])
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

    def update(self, work: str) -> Measures:
        return self._ask({"work": work})

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
