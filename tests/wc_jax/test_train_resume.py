"""Killed and resumed is never stopped: the same numbers, bit for bit, whatever the moment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import ConfigError, load
from tests.wc_jax.small_runs import start_simulated, write_config
from wc_jax.assemble import read_inputs
from wc_jax.checkpoint import Checkpoints
from wc_jax.config import Config
from wc_jax.learner import Learner
from wc_jax.train import train

_KILLED = """
import os, signal, sys
from configs import load
from tests.wc_jax.small_runs import start_simulated
from wc_jax.config import Config
from wc_jax.train import train
remaining = int(sys.argv[2])
def hook(event, _):
    global remaining
    if event == "os.rename":
        remaining -= 1
        if remaining == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
train(load(sys.argv[1], [], Config), start_simulated)
"""


@pytest.fixture(scope="module")
def uninterrupted(tiny_policy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    train(load(write_config(folder / "config.yaml", tiny_policy, folder / "run"), [], Config), start_simulated)
    return folder / "run"


def final_state(config: Config) -> tuple[list[bytes], Any]:
    inputs = read_inputs(config)
    state, position = Checkpoints(folder=config.run_dir / "checkpoints").restore(
        Learner(config, inputs.policy).init(inputs.params)
    )
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)], position


def numbers(path: Path) -> list[dict[str, Any]]:
    """All that does not tell the time."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.endswith(("seconds", "_s"))} for row in rows]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_twice_it_ends_as_if_never_stopped(tiny_policy: Path, uninterrupted: Path, tmp_path: Path) -> None:
    path = write_config(tmp_path / "config.yaml", tiny_policy, tmp_path / "run")
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "jax"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    for moment in (29, 41):
        command = [sys.executable, "-c", _KILLED, str(path), str(moment)]
        killed = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **cache})
        assert killed.returncode == -9, killed.stderr
    config = load(path, [], Config)
    train(config, start_simulated)
    straight = load(write_config(tmp_path / "other.yaml", tiny_policy, uninterrupted), [], Config)
    assert final_state(config) == final_state(straight)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert numbers(config.run_dir / name) == numbers(uninterrupted / name)
    for pattern in ("rollouts/*/*/*/*/advantages.json", "rollouts/*/*/*/*/files/src/App.tsx", "pages/*"):
        assert contents(config.run_dir, pattern) == contents(uninterrupted, pattern)


def contents(root: Path, pattern: str) -> dict[str, bytes]:
    found = {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob(pattern)}
    assert found
    return found


def test_a_run_folder_holds_what_was_promised(uninterrupted: Path) -> None:
    rows = numbers(uninterrupted / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(0 <= row["reward_mean"] <= 1 and row["num_failed"] == 0 for row in rows)
    assert [row["step"] for row in numbers(uninterrupted / "evaluations.jsonl")] == [0, 2, 3]
    assert rows[1]["heldout_reward_mean"] == numbers(uninterrupted / "evaluations.jsonl")[1]["reward_mean"]
    assert Checkpoints(folder=uninterrupted / "checkpoints").steps() == [2, 3]
    assert "3 of 3 steps are done" in (uninterrupted / "report.html").read_text()


def test_nothing_is_compiled_after_the_second_step(uninterrupted: Path) -> None:
    rows = numbers(uninterrupted / "metrics.jsonl")
    assert rows[1]["num_compiled"] == rows[-1]["num_compiled"] > 0


def test_a_finished_run_is_left_as_it_is_and_can_be_prolonged(
    tiny_policy: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    before = (uninterrupted / "metrics.jsonl").read_bytes()
    config = load(write_config(tmp_path / "config.yaml", tiny_policy, uninterrupted), [], Config)
    train(config, start_simulated)
    assert (uninterrupted / "metrics.jsonl").read_bytes() == before


def test_another_config_is_refused_before_anything_starts(
    tiny_policy: Path, uninterrupted: Path, tmp_path: Path
) -> None:
    path = write_config(tmp_path / "config.yaml", tiny_policy, uninterrupted)
    with pytest.raises(ConfigError, match=r"optim\.lr is 0\.001 there and 0\.002 now.*fresh=true"):
        train(load(path, ["optim.lr=0.002"], Config), start_simulated)
