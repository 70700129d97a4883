"""Where a step's numbers go, and the phases' stopwatch."""

import importlib.util
import io
import json
import math
from pathlib import Path

import pytest

from configs import ConfigError
from wc_jax.config import Config, ModelConfig, TrackConfig
from wc_jax.progress import Progress
from wc_jax.run_folder import RunFolder
from wc_jax.track import check_tracking, console_line, flatten, open_trackers


def make_config(tmp_path: Path, track: TrackConfig) -> Config:
    from rollout.agent import AgentConfig

    return Config(
        run_dir=tmp_path,
        seed=0,
        num_steps=3,
        model=ModelConfig(folder=tmp_path),
        agent=AgentConfig(window_tokens=512),
        track=track,
    )


def test_each_step_is_one_strict_json_object_and_one_console_line(tmp_path: Path) -> None:
    said: list[str] = []
    config = make_config(tmp_path, TrackConfig(tensorboard=True))
    trackers = open_trackers(config, RunFolder(path=tmp_path), done=0, say=said.append)
    trackers.log({"step": 1, "reward_mean": 0.25, "entropy": math.nan, "seconds": {"update": 2.0}})
    # Before close: a kill must not lose a logged step.
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 1, "reward_mean": 0.25, "entropy": None, "seconds": {"update": 2.0}}
    ]
    assert said == ["step 1/3  reward 0.250  2 s (update 2)"]
    assert list((tmp_path / "tensorboard").glob("events*"))
    trackers.close()


def test_tensorboard_is_off_when_told(tmp_path: Path) -> None:
    config = make_config(tmp_path, TrackConfig(tensorboard=False))
    open_trackers(config, RunFolder(path=tmp_path), done=0, say=print).close()
    assert not (tmp_path / "tensorboard").exists()


def test_wandb_without_the_package_says_what_to_install(tmp_path: Path) -> None:
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    with pytest.raises(ConfigError, match=r"pip install 'webcoder-jax\[wandb\]'"):
        check_tracking(make_config(tmp_path, TrackConfig(wandb_project="pages")))


def test_flatten_and_console_line_leave_out_what_is_no_number() -> None:
    metrics = {"step": 2, "reward_mean": math.nan, "grad_norm": 1.0, "gates": {"build": 0.5}, "note": "x"}
    assert flatten(metrics) == {"grad_norm": 1.0, "gates/build": 0.5}
    assert console_line(metrics, 9) == "step 2/9  grad 1.000"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_names_the_phase_and_counts() -> None:
    screen = Terminal()
    progress = Progress(num_steps=4, done=1, file=screen)
    with progress.phase("rollouts", total=2):
        progress.advance()
        progress.advance()
    progress.step_done()
    progress.close()
    assert "rollouts 2/2" in screen.getvalue()
    assert "2/4" in screen.getvalue()


def test_seconds_add_up_by_phase_also_when_a_phase_fails() -> None:
    ticks = iter([0.0, 1.0, 10.0, 12.0, 20.0, 23.0])
    progress = Progress(num_steps=1, done=0, file=io.StringIO(), clock=ticks.__next__)
    with progress.phase("update"):
        pass
    with pytest.raises(KeyError), progress.phase("sync"):
        raise KeyError
    with progress.phase("update"):
        pass
    assert progress.take_seconds() == {"update": 4.0, "sync": 2.0}
    assert progress.take_seconds() == {}
