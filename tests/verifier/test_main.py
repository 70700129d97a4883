"""The command line, as a person uses it: a process, its exit code, what it prints and leaves."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.sandbox.template import Template
from tests.verifier.site_builds import SITES, Sites
from verifier.report_json import read_report

pytestmark = [pytest.mark.browser, pytest.mark.sandbox]

TASK = str(SITES / "bakery.json")


def run(*argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "verifier", *argv],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environ},
    )


@pytest.fixture
def project(tmp_path: Path, sites: Sites, template: Template) -> Path:
    for name, data in sites.files("half").items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "project"


def test_score(project: Path, tmp_path: Path) -> None:
    done = run("score", str(project), "--task", TASK, "--out", str(tmp_path / "r.json"))
    assert done.returncode == 0, done.stderr
    report = read_report(tmp_path / "r.json")
    assert f"reward {report.reward:.4f}" in done.stdout and 0.2 < report.reward < 0.7
    assert report.screenshot.startswith(b"\x89PNG") and all(g.ok for g in report.gates)


def test_shot(project: Path, tmp_path: Path) -> None:
    done = run("shot", str(project), "--out", str(tmp_path / "shot"))
    assert done.returncode == 0, done.stderr
    assert "Rye loaf $6" in done.stdout
    assert json.loads((tmp_path / "shot/measurement.json").read_text())["ok"] is True
    assert (tmp_path / "shot/render.png").stat().st_size > 1000

    (project / "src/App.tsx").write_text("export default <")
    done = run("shot", str(project), "--out", str(tmp_path / "shot"))
    assert done.returncode == 0 and "build failed" in done.stdout
    assert not (tmp_path / "shot/render.png").exists()


@pytest.mark.parametrize(
    ("task", "says"),
    [
        ("none.json", "cannot read"),
        ({"task_id": "t"}, "requirements"),
        ({"task_id": "t", "brief": "b", "template": "vue", "requirements": [{"id": "a", "keywords": ["x"]}]}, "vue"),
    ],
)
def test_a_bad_task_is_exit_2(task: object, says: str, project: Path, tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    if isinstance(task, dict):
        path = tmp_path / "task.json"
        path.write_text(json.dumps(task))
    done = run("score", str(project), "--task", str(path))
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_bad_project_is_exit_2(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path, says in (("none", "no such project"), ("empty", "no files")):
        done = run("score", str(tmp_path / path), "--task", TASK)
        assert done.returncode == 2 and says in done.stderr
    assert run("score", TASK, "--task", TASK).returncode == 2


def test_no_browser_or_no_packages_is_exit_3(project: Path, tmp_path: Path) -> None:
    done = run("score", str(project), "--task", TASK, WEBCODER_CHROMIUM=str(tmp_path / "none"))
    assert done.returncode == 3 and "WEBCODER_CHROMIUM" in done.stderr
    done = run("score", str(project), "--task", TASK, WEBCODER_HOME=str(tmp_path))
    assert done.returncode == 3 and "python -m rollout.sandbox install" in done.stderr
    assert "Traceback" not in done.stderr
