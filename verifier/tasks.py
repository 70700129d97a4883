"""Task files: JSON <-> Task. Whatever cannot be scored is refused, with the field and what to type.

{"task_id": "bakery-1", "brief": "Build ...", "template": "vite-react-bare", "requirements": [
    {"id": "menu", "keywords": ["Rye", "$6"], "counts": {"buttons": 2}, "weight": 2}]}
"""

import difflib
import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, get_args

from verifier.text import normalize
from verifier.types import CountKind, Requirement, Task, TaskError

_TASK_KEYS = ("task_id", "brief", "requirements", "template", "kind")
_REQUIREMENT_KEYS = ("id", "keywords", "counts", "weight")


def _check_keys(given: Mapping[str, object], known: Collection[str], where: str) -> None:
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise TaskError(f"{where}: unknown key {key!r}; {hint}")


def _text(given: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = given.get(key, default)
    if not isinstance(value, str) or not value.strip():
        raise TaskError(f"{where}.{key}: needs a non-empty string, got {value!r}")
    return value


def _keywords(given: object, where: str) -> tuple[str, ...]:
    if not isinstance(given, list):
        raise TaskError(f"{where}.keywords: needs a list of strings, got {given!r}")
    for index, keyword in enumerate(given):
        if not isinstance(keyword, str) or not normalize(keyword):
            raise TaskError(f"{where}.keywords[{index}]: needs visible text, got {keyword!r}")
    return tuple(given)


def _counts(given: object, where: str) -> dict[CountKind, int]:
    if not isinstance(given, dict):
        raise TaskError(f"{where}.counts: needs an object like {{'buttons': 2}}, got {given!r}")
    _check_keys(given, get_args(CountKind), f"{where}.counts")
    for kind, wanted in given.items():
        if type(wanted) is not int or wanted < 1:
            raise TaskError(f"{where}.counts.{kind}: needs an integer of 1 or more, got {wanted!r}")
    return dict(given)


def _requirement(given: object, where: str) -> Requirement:
    if not isinstance(given, dict):
        raise TaskError(f"{where}: needs an object with an id and keywords or counts, got {given!r}")
    _check_keys(given, _REQUIREMENT_KEYS, where)
    weight = given.get("weight", 1.0)
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight < math.inf:
        raise TaskError(f"{where}.weight: needs a finite number above 0, got {weight!r}")
    requirement = Requirement(
        requirement_id=_text(given, "id", where),
        keywords=_keywords(given.get("keywords", []), where),
        counts=_counts(given.get("counts", {}), where),
        weight=float(weight),
    )
    if not requirement.keywords and not requirement.counts:
        raise TaskError(f"{where}: asks for nothing; give it keywords or counts")
    return requirement


def task_from_json(given: object) -> Task:
    """A task from decoded JSON. TaskError names the field that cannot be used."""
    if not isinstance(given, dict):
        raise TaskError(f"task: needs a JSON object, got {type(given).__name__}")
    _check_keys(given, _TASK_KEYS, "task")
    rows = given.get("requirements")
    if not isinstance(rows, list) or not rows:
        raise TaskError(f"task.requirements: needs at least one requirement, got {rows!r}")
    requirements = tuple(_requirement(r, f"task.requirements[{i}]") for i, r in enumerate(rows))
    seen: dict[str, int] = {}
    for index, requirement in enumerate(requirements):
        first = seen.setdefault(requirement.requirement_id, index)
        if first != index:
            raise TaskError(
                f"task.requirements[{index}].id: {requirement.requirement_id!r} is already the id "
                f"of requirements[{first}]; ids must be unique"
            )
    kind = given.get("kind", "generation")
    if kind != "generation":
        raise TaskError(f"task.kind: only 'generation' can be scored, got {kind!r}")
    return Task(
        task_id=_text(given, "task_id", "task"),
        brief=_text(given, "brief", "task"),
        requirements=requirements,
        template=_text(given, "template", "task", "vite-react-bare"),
    )


def task_to_json(task: Task) -> dict[str, Any]:
    """The inverse of `task_from_json`."""
    return {
        "task_id": task.task_id,
        "brief": task.brief,
        "template": task.template,
        "kind": task.kind,
        "requirements": [
            {
                "id": r.requirement_id,
                "keywords": list(r.keywords),
                "counts": dict(r.counts),
                "weight": r.weight,
            }
            for r in task.requirements
        ],
    }


def load_task(path: Path) -> Task:
    """Reads a task file. TaskError for anything from a missing file to a bad weight."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise TaskError(f"cannot read the task file {path}: {error.strerror}") from error
    try:
        given = json.loads(raw.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise TaskError(f"{path} is not UTF-8 JSON: {error}") from error
    try:
        return task_from_json(given)
    except TaskError as error:
        raise TaskError(f"{path}: {error}") from error
