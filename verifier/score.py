"""One project against one task: build, render, measure. Also remembers identical work."""

import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace

from rollout.sandbox.protocol import SandboxFactory
from verifier.browser import Browser
from verifier.build import BuildTemplate, build_inputs, build_project
from verifier.entry import missing_entry
from verifier.reward import score_evidence, with_time_penalty
from verifier.serve import files_digest
from verifier.tasks import task_to_json
from verifier.types import Report, Task


class ScoreCache:
    """Reports by content: task, files that reach the build, build command. Thread-safe.

    Two equal projects at the same time are judged once; the second waits for the first. Failures
    of the infrastructure are not remembered.
    """

    def __init__(self, max_reports: int = 512) -> None:
        if max_reports < 1:
            raise ValueError(f"max_reports must be 1 or more, got {max_reports}")
        self._max_reports = max_reports
        self._reports: OrderedDict[str, Report] = OrderedDict()
        self._in_work: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def get(self, key: str, judge: Callable[[], Report]) -> Report:
        """The report for `key`; `judge` makes it if it is not known."""
        with self._lock:
            mine = self._in_work.setdefault(key, threading.Lock())
        with mine:
            with self._lock:
                if key in self._reports:
                    self.hits += 1
                    self._reports.move_to_end(key)
                    return self._reports[key]
                self.misses += 1
            try:
                report = judge()
                with self._lock:
                    self._reports[key] = report
                    while len(self._reports) > self._max_reports:
                        self._reports.popitem(last=False)
                return report
            finally:
                with self._lock:
                    self._in_work.pop(key, None)


def score_key(task: Task, files: Mapping[str, bytes], template: BuildTemplate) -> str:
    """Equal exactly when the same judgement must come out."""
    parts = (
        json.dumps(task_to_json(task), sort_keys=True),
        files_digest(build_inputs(files, template)),
        json.dumps([*template.build_argv, str(template.node_modules)]),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def score_project(
    task: Task,
    files: Mapping[str, bytes],
    *,
    template: BuildTemplate,
    make_sandbox: SandboxFactory,
    browser: Browser,
    time_exhausted: bool = False,
    cache: ScoreCache | None = None,
    screenshot: bool = True,
    build_timeout_s: float = 60.0,
) -> Report:
    """Judges the project `files` (relative path -> bytes) by its running application.

    InfrastructureError when that could not be done: never a reward of 0 then.
    `screenshot` False leaves the picture out, which no deterministic measure here needs.
    """

    def judge() -> Report:
        built = build_project(files, template, make_sandbox, timeout_s=build_timeout_s)
        page = None
        if built.ok and not missing_entry(built.dist):
            page = browser.render(built.dist, screenshot=screenshot)
        started = time.monotonic()
        report = score_evidence(task, built, page)
        measured = {**report.seconds, "measure": time.monotonic() - started}
        return replace(report, seconds=measured)

    if cache is None:
        report = judge()
    else:
        key = f"{score_key(task, files, template)}-{screenshot}"
        report = cache.get(key, judge)
    return with_time_penalty(report) if time_exhausted else report
