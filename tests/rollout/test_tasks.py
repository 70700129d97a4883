"""Tasks by name: generated, from files, and clear words where a set has no checklist."""

import json
import os
from pathlib import Path

import pytest

from rollout.tasks import Case, load_requests, load_tasks
from tests.rollout.finished import a_task
from verifier.tasks import task_to_json
from verifier.types import TaskError


def write_tasks(path: Path, *names: str) -> None:
    rows = [json.dumps(task_to_json(a_task(name))) for name in names]
    path.write_text(rows[0] if path.suffix == ".json" else "\n\n".join(rows) + "\n")


def test_generator_is_a_source_with_disjoint_splits() -> None:
    train = load_tasks("pages", count=20, seed=1)
    assert train == load_tasks("pages", count=20, seed=1)
    heldout = load_tasks("pages", split="heldout", count=20, seed=1)
    assert len(train) == len(heldout) == 20
    assert not {task.brief for task in train} & {task.brief for task in heldout}
    with pytest.raises(TaskError, match="count must be 1 or more"):
        load_tasks("pages")


def test_files_and_folders(tmp_path: Path) -> None:
    write_tasks(tmp_path / "b.json", "b")
    write_tasks(tmp_path / "a.jsonl", "a1", "a2")
    (tmp_path / "notes.md").write_text("no task")
    assert [task.task_id for task in load_tasks(str(tmp_path))] == ["a1", "a2", "b"]
    assert [task.task_id for task in load_tasks(str(tmp_path), count=2)] == ["a1", "a2"]
    assert load_tasks(str(tmp_path / "b.json")) == [a_task("b")]
    with pytest.raises(TaskError, match="has 3 tasks, 4 were asked for"):
        load_tasks(str(tmp_path), count=4)


def test_bad_sources_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="neither `pages` nor"):
        load_tasks("page")
    with pytest.raises(TaskError, match="no task files"):
        load_tasks(str(tmp_path))
    write_tasks(tmp_path / "twice.jsonl", "x", "x")
    with pytest.raises(TaskError, match="'x' occurs more than once"):
        load_tasks(str(tmp_path))
    (tmp_path / "twice.jsonl").write_text('{"task_id": "x"}\n{')
    with pytest.raises(TaskError, match=r"twice.jsonl:1: task.requirements"):
        load_tasks(str(tmp_path))
    (tmp_path / "twice.jsonl").write_text("\n{\n")
    with pytest.raises(TaskError, match=r"twice.jsonl:2 is not JSON"):
        load_tasks(str(tmp_path))


REQUESTS: list[dict[str, object]] = [
    {
        "id": 7,
        "instruction": "Build a shop.\u2028Blue.",
        "application_type": "E-commerce",
        "ui_instruct": [{"task": "", "expected_result": ""}],
    },
    {
        "id": "000012",
        "instruction": "Build a blog.",
        "ui_instruct": [{"task": "Click Home", "expected_result": "Home opens"}],
    },
]


def test_requests_of_public_sets(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in REQUESTS))
    shop, blog = load_requests(path)
    assert (shop.request_id, shop.application_type, shop.cases) == ("000007", "E-commerce", ())
    assert (blog.request_id, blog.cases) == ("000012", (Case(instruction="Click Home", expected="Home opens"),))
    with pytest.raises(TaskError, match="a request without a checklist"):
        load_tasks(str(path))
    path.write_text('{"id": "seven", "instruction": "x"}')
    with pytest.raises(TaskError, match=r"requests.jsonl:1: a request needs"):
        load_requests(path)


@pytest.mark.skipif("WEBCODER_DATA" not in os.environ, reason="WEBCODER_DATA names no folder of public sets")
def test_public_sets_as_they_are_shipped() -> None:
    data = Path(os.environ["WEBCODER_DATA"])
    bench = load_requests(data / "webgen-bench/test.jsonl")
    assert (len(bench), sum(len(request.cases) for request in bench)) == (101, 647)
    train = load_requests(data / "webgen-instruct/train_6667.jsonl")
    assert len({request.request_id for request in train}) == 6667
    assert not any(request.cases for request in train)
