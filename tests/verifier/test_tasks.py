import json
from pathlib import Path
from typing import Any

import pytest

from verifier.tasks import load_task, task_from_json, task_to_json
from verifier.types import TaskError


def good() -> dict[str, Any]:
    return {
        "task_id": "bakery",
        "brief": "Build a bakery page",
        "requirements": [
            {"id": "menu", "keywords": ["Rye", "$6"], "weight": 2},
            {"id": "act", "counts": {"buttons": 2}},
        ],
    }


def test_round_trip() -> None:
    task = task_from_json(good())
    assert task.requirements[0].weight == 2.0 and task.template == "vite-react-bare"
    assert task_from_json(json.loads(json.dumps(task_to_json(task)))) == task


def set_in(path: list[Any], value: object) -> dict[str, Any]:
    given = good()
    spot: Any = given
    for key in path[:-1]:
        spot = spot[key]
    spot[path[-1]] = value
    return given


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (["breif"], "x", "did you mean 'brief'"),
        (["requirements", 0, "keyword"], ["x"], r"requirements\[0\].*did you mean 'keywords'"),
        (["requirements", 1, "counts", "button"], 1, "did you mean 'buttons'"),
        (["requirements", 0, "weight"], 0, r"requirements\[0\].weight"),
        (["requirements", 0, "weight"], float("nan"), "weight"),
        (["requirements", 0, "weight"], True, "weight"),
        (["requirements", 0, "weight"], "2", "weight"),
        (["requirements", 0, "keywords"], "Rye", "list of strings"),
        (["requirements", 0, "keywords"], ["Rye", " \u200b"], r"keywords\[1\]"),
        (["requirements", 0, "keywords"], [], "asks for nothing"),
        (["requirements", 1, "counts", "buttons"], 0, "counts.buttons"),
        (["requirements", 1, "counts", "buttons"], 1.5, "counts.buttons"),
        (["requirements", 1, "id"], "menu", "unique"),
        (["requirements", 1, "id"], "", "non-empty"),
        (["requirements", 1], "menu", "needs an object"),
        (["requirements"], [], "at least one"),
        (["task_id"], None, "task_id"),
        (["kind"], "reproduction", "kind"),
    ],
)
def test_what_cannot_be_scored_is_refused_by_name(path: list[Any], value: object, says: str) -> None:
    with pytest.raises(TaskError, match=says):
        task_from_json(set_in(path, value))


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "task.json"
    with pytest.raises(TaskError, match="cannot read"):
        load_task(file)
    file.write_bytes(b"\xff{")
    with pytest.raises(TaskError, match="JSON"):
        load_task(file)
    file.write_text("[]")
    with pytest.raises(TaskError, match="JSON object"):
        load_task(file)
    file.write_text(json.dumps(good()))
    assert load_task(file).task_id == "bakery"
