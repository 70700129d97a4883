"""`python -m rollout.sandbox install`: whole or not at all, and clear when it cannot."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def start(home: Path, *names: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "rollout.sandbox", "install", *names],
        cwd=ROOT,
        env={**os.environ, "WEBCODER_HOME": str(home), **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_two_installs_at_once_give_one_whole_tree(tmp_path: Path) -> None:
    runs = [start(tmp_path, "vite-react-bare") for _ in range(2)]
    answers = [run.communicate(timeout=120) for run in runs]
    assert [run.returncode for run in runs] == [0, 0], answers
    (folder,) = (tmp_path / "templates").iterdir()  # no temporary folder is left
    modules = folder / "node_modules"
    assert answers[0][0] == answers[1][0] == f"vite-react-bare: {modules}\n"
    assert (modules / "vite" / "bin" / "vite.js").exists()
    assert (modules / ".vite").is_dir()
    assert (modules / ".vite-temp").is_dir()
    assert (modules / "react").stat().st_mode & 0o005 == 0o005


def test_unknown_template(tmp_path: Path) -> None:
    run = start(tmp_path, "nope")
    assert "no template 'nope'; known templates: vite-react, vite-react-bare" in run.communicate(timeout=60)[1]
    assert run.returncode == 2


def test_no_node(tmp_path: Path) -> None:
    run = start(tmp_path, "vite-react-bare", PATH=str(tmp_path))
    assert run.communicate(timeout=60)[1] == "error: node is not on PATH; install Node.js 20 or newer, npm included\n"
    assert run.returncode == 3


def test_old_node(tmp_path: Path) -> None:
    fake = tmp_path / "bin"
    fake.mkdir()
    for name, text in (("node", "echo v18.19.0"), ("npm", "exit 0")):
        (fake / name).write_text(f"#!/bin/sh\n{text}\n")
        (fake / name).chmod(0o755)
    run = start(tmp_path / "home", "vite-react-bare", PATH=f"{fake}:{os.environ['PATH']}")
    assert "says 'v18.19.0'; install Node.js 20 or newer" in run.communicate(timeout=60)[1]
    assert run.returncode == 3
    assert not list((tmp_path / "home").rglob("node_modules"))


def test_no_registry(tmp_path: Path) -> None:
    assert shutil.which("npm") is not None
    run = start(
        tmp_path / "home",
        "vite-react-bare",
        npm_config_registry="http://127.0.0.1:9/",
        npm_config_cache=str(tmp_path / "cache"),
        npm_config_fetch_retries="0",
    )
    answer = run.communicate(timeout=60)[1]
    assert answer.startswith("error: npm ci failed; the package registry must be reachable once")
    assert "ECONNREFUSED" in answer
    assert run.returncode == 3
    assert list((tmp_path / "home" / "templates").iterdir()) == []
