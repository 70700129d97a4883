"""`python -m rollout`: bad input is one line and exit code 2; `run` makes, scores and stores an attempt."""

import json
from pathlib import Path

import pytest

from rollout.__main__ import main
from rollout.store import list_rollouts, load_rollout
from tests.rollout.chat import tiny_tokenizer
from tests.rollout.finished import a_task
from verifier.tasks import task_to_json

PAGE = """@write src/App.tsx
export default function App() {
  return <main><h1>Nils &amp; Daughters</h1><button>Order</button><button>Call</button></main>
}
@end
@webshot"""


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Path]:
    """A task, a model folder with a tokenizer, and a script of two answers."""
    model = tmp_path / "model"
    model.mkdir()
    tiny_tokenizer().save(str(model / "tokenizer.json"))
    (model / "config.json").write_text(json.dumps({"max_position_embeddings": 8192}))
    (tmp_path / "task.json").write_text(json.dumps(task_to_json(a_task())))
    (tmp_path / "script.json").write_text(json.dumps([PAGE, "@finish"]))
    return {"task": tmp_path / "task.json", "model": model, "script": tmp_path / "script.json", "out": tmp_path / "out"}


def run_arguments(inputs: dict[str, Path], **changed: str) -> list[str]:
    named = {
        "task": str(inputs["task"]),
        "engine": f"script:{inputs['script']}",
        "model": str(inputs["model"]),
        "out": str(inputs["out"]),
        **changed,
    }
    return ["run", *(word for name, value in named.items() for word in (f"--{name.replace('_', '-')}", value))]


@pytest.mark.sandbox
@pytest.mark.browser
def test_run_makes_scores_and_stores_attempts(inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(run_arguments(inputs)) == 0
    told = capsys.readouterr().out
    assert "finished after 2 turns" in told and "reward 1.0000" in told
    (summary,) = list_rollouts(inputs["out"])
    rollout = load_rollout(inputs["out"] / "rollouts" / summary.key)
    assert rollout.files["src/App.tsx"].startswith(b"export default function App")
    assert rollout.report is not None and rollout.report.screenshot.startswith(b"\x89PNG")
    assert "Nils & Daughters" in rollout.tree.nodes[4].text, "the webshot showed the page"
    assert rollout.potentials[0] == 0.0 and rollout.potentials[-1] == 1.0
    assert rollout.error == ""


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"task": "absent.json"}, "absent.json"),
        ({"model": "absent"}, "--model absent"),
        ({"engine": "localhost:8000"}, "--engine is the URL"),
        ({"engine": "http://127.0.0.1:9"}, "no engine answers at http://127.0.0.1:9"),
        ({"engine": "http://127.0.0.1:8000;"}, "is no URL"),
        ({"engine": "script:absent.json"}, "absent.json"),
        ({"prompt": "no-such"}, "--prompt"),
        ({"max_turns": "0"}, "max_turns must be above 0"),
        ({"temperature": "-1"}, "temperature must be above 0"),
    ],
)
def test_bad_input_is_one_line(
    inputs: dict[str, Path], changed: dict[str, str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(run_arguments(inputs, **changed)) == 2
    told = capsys.readouterr().err
    assert word in told and told.startswith("error: ") and told.count("\n") == 1
    assert not inputs["out"].exists()


def test_script_must_be_a_list_of_answers(inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    inputs["script"].write_text('{"answers": []}')
    assert main(run_arguments(inputs)) == 2
    assert "JSON list of answers" in capsys.readouterr().err


def test_unknown_template_is_refused(inputs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    inputs["task"].write_text(json.dumps({**task_to_json(a_task()), "template": "vue"}))
    assert main(run_arguments(inputs)) == 2
    assert "vite-react-bare" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[], ["show"], ["view"], ["view", "x", "--port", "http"], ["view", "x", "--port", "65536"]]
)
def test_wrong_command_lines_end_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
