"""Evidence -> report. Pure: no browser, no files, no clock.

Reward = gates x (0.6 f_det + 0.4 f_vlm), minus 0.1 when the time budget ran out, floored at 0.
Without a judge its weight goes to `f_det`.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace

from verifier.entry import missing_entry
from verifier.text import share_present
from verifier.types import Built, Census, Gate, Page, Report, Requirement, Task

DET_WEIGHT = 0.6
TIME_PENALTY = 0.1


def requirement_value(requirement: Requirement, census: Census) -> float:
    """The mean of its checks in [0, 1]; each keyword is one check, each count is one, graded."""
    checks = [share_present((keyword,), census.text) for keyword in requirement.keywords]
    for kind, wanted in requirement.counts.items():
        checks.append(min(1.0, census.counts.get(kind, 0) / wanted))
    if not checks:
        raise ValueError(f"requirement {requirement.requirement_id!r} asks for nothing")
    return math.fsum(checks) / len(checks)


def _weighted_mean(task: Task, values: Mapping[str, float]) -> float:
    total = math.fsum(r.weight for r in task.requirements)
    return min(1.0, math.fsum(r.weight * values[r.requirement_id] for r in task.requirements) / total)


def judge_gates(built: Built, page: Page | None) -> tuple[Gate, ...]:
    """build, entry, render, in that order; a gate behind a closed one says so."""
    build = Gate(name="build", ok=built.ok, reason="" if built.ok else failure_line(built.log))
    if not built.ok:
        skipped = "not reached: the build failed"
        return (
            build,
            Gate(name="entry", ok=False, reason=skipped),
            Gate(name="render", ok=False, reason=skipped),
        )
    missing = missing_entry(built.dist)
    entry = Gate(name="entry", ok=not missing, reason=missing)
    if page is None:
        why = "not reached: the entry point did not resolve" if missing else "not rendered"
        return build, entry, Gate(name="render", ok=False, reason=why)
    return build, entry, Gate(name="render", ok=page.ok, reason="" if page.ok else page.reason)


_TELLING = re.compile(r"^\[[\w:-]+\] |error\b[^:]*: \S|could not|cannot |unexpected|not found|failed to", re.IGNORECASE)


def failure_line(log: str) -> str:
    """The line of a build log that best says what went wrong; the last one if none stands out.

    >>> failure_line("vite\\nerror during build:\\n[UNRESOLVED] Could not resolve ./a\\n[build] exit code 1")
    'exit code 1: [UNRESOLVED] Could not resolve ./a'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if not lines:
        return "the build gave no output"
    verdict = ""
    if lines[-1].startswith("[build] "):  # written by verifier.build
        verdict = lines.pop().removeprefix("[build] ")
    telling = [line for line in lines if _TELLING.search(line)]
    found = telling[0] if telling else lines[-1] if lines else ""
    return ": ".join(part for part in (verdict, found[:300]) if part)


def score_evidence(
    task: Task,
    built: Built,
    page: Page | None,
    *,
    time_exhausted: bool = False,
    f_vlm: float | None = None,
) -> Report:
    """Judges one project. `page` is None when nothing was rendered (a gate before it is closed).

    ValueError when `f_vlm` is outside [0, 1] or the page is missing although the gates are open.
    """
    if f_vlm is not None and not 0.0 <= f_vlm <= 1.0:
        raise ValueError(f"f_vlm must be within [0, 1] or None, got {f_vlm}")
    gates = judge_gates(built, page)
    if page is None and all(gate.ok for gate in gates[:2]):
        raise ValueError("the project built and its entry resolves: a rendered page is needed")
    census = page.census if page is not None else Census(text="")
    values = {r.requirement_id: requirement_value(r, census) for r in task.requirements}
    f_det = _weighted_mean(task, values)
    legs = f_det if f_vlm is None else DET_WEIGHT * f_det + (1.0 - DET_WEIGHT) * f_vlm
    report = Report(
        task_id=task.task_id,
        reward=legs if all(gate.ok for gate in gates) else 0.0,
        gates=gates,
        f_det=f_det,
        f_vlm=f_vlm,
        requirement_values=values,
        penalty=0.0,
        screenshot=page.screenshot if page is not None else b"",
        seconds={"build": built.seconds, "render": page.seconds if page is not None else 0.0},
    )
    return with_time_penalty(report) if time_exhausted else report


def with_time_penalty(report: Report) -> Report:
    """The same judgement for a rollout that used up its wall-clock budget."""
    if report.penalty:
        return report
    return replace(report, reward=max(0.0, report.reward - TIME_PENALTY), penalty=TIME_PENALTY)
