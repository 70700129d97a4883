"""Where tasks come from: the page generator, task files, and requests of public sets.

A public set of requests says what to build, not how to check it. Requests become tasks only where a
checklist comes with them; none of the public sets that are read here has one that can be looked up in a
page's text, so they are refused as tasks by name, and read as requests with `load_requests`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollout.pages.spec import Split
from rollout.pages.tasks import page_tasks
from verifier.tasks import load_task, task_from_json
from verifier.types import Task, TaskError


@dataclass(frozen=True, kw_only=True)
class Case:
    """One check that a person or an agent can make on the running site."""

    instruction: str
    expected: str


@dataclass(frozen=True, kw_only=True)
class SiteRequest:
    """A line of WebGen-Instruct or WebGen-Bench: what to build, and in the latter how it is tried."""

    request_id: str
    """Six digits, whatever the file spells: the two sets disagree on leading zeros."""
    instruction: str
    application_type: str
    cases: tuple[Case, ...]


def load_tasks(source: str, *, split: Split = "train", count: int = 0, seed: int = 0) -> list[Task]:
    """Tasks by name.

    Args:
        source: `pages` for the generator; else a task file (.json), a .jsonl with one task a line, or a
            folder of such files, read in order of their names.
        split: of the generator; files have no splits.
        count: how many; 0 means all of a file's tasks (the generator needs a number).
        seed: of the generator.

    Raises:
        TaskError: what was wrong, where, and what to give instead.
    """
    if source == "pages":
        if count < 1:
            raise TaskError(
                f"the page generator writes as many tasks as asked for; count must be 1 or more, got {count}"
            )
        return page_tasks(split, count, seed)
    tasks = list(_tasks_below(Path(source)))
    if not tasks:
        raise TaskError(f"no task files (.json, .jsonl) in {source}")
    repeated = [task_id for task_id, times in Counter(task.task_id for task in tasks).items() if times > 1]
    if repeated:
        raise TaskError(f"{source}: task ids must be unique, {repeated[0]!r} occurs more than once")
    if count > len(tasks):
        raise TaskError(f"{source} has {len(tasks)} tasks, {count} were asked for")
    return tasks[: count or None]


def load_requests(path: Path) -> list[SiteRequest]:
    """The requests of a WebGen-Instruct or WebGen-Bench file (JSON lines), in file order.

    Raises TaskError for a line that is no request.
    """
    return [_request(row, f"{path}:{number}") for number, row in _json_lines(path)]


def _tasks_below(path: Path) -> Iterator[Task]:
    if path.is_dir():
        for file in sorted(path.iterdir()):
            if file.suffix in (".json", ".jsonl"):
                yield from _tasks_below(file)
    elif path.suffix == ".jsonl":
        for number, row in _json_lines(path):
            if isinstance(row, dict) and "instruction" in row and "requirements" not in row:
                raise TaskError(
                    f"{path}:{number} is a request without a checklist: it can be shown to an agent, not scored. "
                    "Give task files with `requirements`, or write tasks=pages"
                )
            try:
                yield task_from_json(row)
            except TaskError as error:
                raise TaskError(f"{path}:{number}: {error}") from None
    elif path.exists():
        yield load_task(path)
    else:
        raise TaskError(f"no tasks at {str(path)!r}: neither `pages` nor a .json or .jsonl file nor a folder of them")


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    """(line number from 1, decoded value) of each line that is not blank."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"cannot read {path}: {error}") from None
    # Not splitlines(): JSON strings may hold the rarer line separators.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except ValueError as error:
                raise TaskError(f"{path}:{number} is not JSON: {error}") from None


def _request(row: Any, where: str) -> SiteRequest:
    try:
        # Instructions without cases carry one empty entry.
        cases = [case for case in row.get("ui_instruct") or [] if case["task"].strip()]
        return SiteRequest(
            request_id=f"{int(row['id']):06d}",
            instruction=row["instruction"],
            application_type=row.get("application_type", ""),
            cases=tuple(Case(instruction=case["task"], expected=case["expected_result"]) for case in cases),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise TaskError(f"{where}: a request needs a numeric `id` and an `instruction` ({error!r})") from None
