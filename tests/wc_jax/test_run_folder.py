"""The run folder: whose it is, what a resume undoes, what starting over removes."""

import dataclasses
import json
from pathlib import Path

import pytest

from configs import ConfigError
from rollout.agent import AgentConfig
from wc_jax.config import Config, ModelConfig, RolloutConfig
from wc_jax.run_folder import RunFolder, check_run_folder, record_start


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(
        run_dir=tmp_path / "run",
        seed=0,
        num_steps=3,
        model=ModelConfig(folder=tmp_path),
        agent=AgentConfig(window_tokens=512),
    )


def start(config: Config) -> RunFolder:
    run = check_run_folder(config)
    run.claim()
    record_start(run, config)
    run.release()
    return run


def test_checking_writes_nothing(config: Config) -> None:
    check_run_folder(config)
    assert not config.run_dir.exists()


def test_the_same_config_resumes_and_may_go_on_longer(config: Config) -> None:
    start(config)
    check_run_folder(config)
    check_run_folder(dataclasses.replace(config, num_steps=9))
    environment = json.loads((config.run_dir / "environment.json").read_text())
    assert environment["packages"]["jax"] and environment["python"]


def test_another_config_is_refused_with_the_difference_and_the_ways_out(config: Config) -> None:
    start(config)
    other = dataclasses.replace(config, rollout=RolloutConfig(group_size=4), seed=1)
    with pytest.raises(ConfigError) as caught:
        check_run_folder(other)
    text = str(caught.value)
    assert "seed is 0 there and 1 now" in text and "rollout.group_size is 8 there and 4 now" in text
    assert "choose another run_dir" in text and "fresh=true" in text
    check_run_folder(dataclasses.replace(other, fresh=True))


def test_a_folder_of_something_else_is_refused_even_with_fresh(config: Config) -> None:
    config.run_dir.mkdir()
    (config.run_dir / "thesis.tex").write_text("x")
    with pytest.raises(ConfigError, match=r"holds 'thesis\.tex' but no config\.yaml"):
        check_run_folder(dataclasses.replace(config, fresh=True))
    with pytest.raises(ConfigError, match="is a file"):
        check_run_folder(dataclasses.replace(config, run_dir=config.run_dir / "thesis.tex"))


def test_two_processes_can_not_share_a_folder(config: Config) -> None:
    first, second = check_run_folder(config), check_run_folder(config)
    first.claim()
    with pytest.raises(ConfigError, match="another process is using"):
        second.claim()
    first.release()
    second.claim()
    second.release()


def test_forget_after_cuts_lines_rollouts_and_pages(config: Config) -> None:
    run = start(config)
    run.metrics.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "rew')
    run.evaluations.write_text('{"step": 0}\n{"step": 5}\n')
    for name in ("step_00000/eval", "step_00002/train", "step_00003/train", "step_00010/train"):
        (run.rollouts / name).mkdir(parents=True)
    run.pages.mkdir()
    for name in ("0.json", "0.best.png", "5.json", "5.best.png"):
        (run.pages / name).write_text("")
    run.forget_after(2)
    assert run.metrics.read_text() == '{"step": 1}\n{"step": 2}\n'
    assert run.evaluations.read_text() == '{"step": 0}\n'
    assert sorted(path.name for path in run.rollouts.iterdir()) == ["step_00000", "step_00002"]
    assert sorted(path.name for path in run.pages.iterdir()) == ["0.best.png", "0.json"]


def test_clear_removes_the_run_and_nothing_else(config: Config) -> None:
    run = start(config)
    run.metrics.write_text("{}\n")
    (run.checkpoints / "step_1").mkdir(parents=True)
    (run.path / "notes.txt").write_text("mine")
    run.clear()
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "notes.txt"]
