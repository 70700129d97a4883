"""Two processes train together as one does: the same rollouts, the same numbers, one run folder."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from configs import ConfigError, load
from tests.wc_jax.small_runs import start_simulated, write_config
from tests.wc_jax.together import TIMEOUT_S, run_together, seconds_to_end
from wc_jax.assemble import read_inputs
from wc_jax.checkpoint import Checkpoints, Position
from wc_jax.config import Config
from wc_jax.learner import Learner
from wc_jax.processes import Processes
from wc_jax.run_folder import check_run_folder, check_together
from wc_jax.track import flatten
from wc_jax.train import train

TRAINING = "tests.wc_jax.together_training"

# With this eps a parameter's first updates follow its gradient and not only the sign of rounding errors.
CHANGES: dict[str, Any] = {
    "num_steps": 1,
    "batch": {"row_tokens": 512, "micro_rows": 2},
    "agent": {"max_turns": 4, "window_tokens": 512, "max_answer_tokens": 256},
    "credit": {"max_sample_tokens": 512},
    "optim": {"lr": 1e-3, "eps": 1e-2},
}


def write(folder: Path, model: Path, name: str, **changes: Any) -> Path:
    return write_config(folder / f"{name}.yaml", model, folder / name, **{**CHANGES, **changes})


def flat_rows(path: Path) -> list[dict[str, float]]:
    """All numbers but those of the time, of the machine and of who lies in a row with whom."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    own = ("seconds", "_s", "num_rows", "num_compiled", "shared_share", "padding_share")
    return [
        {k: v for k, v in flatten(row).items() if not any(part.endswith(own) for part in k.split("/"))} for row in rows
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_do_what_one_does(tiny_policy: Path, tmp_path: Path) -> None:
    alone, together = write(tmp_path, tiny_policy, "alone"), write(tmp_path, tiny_policy, "together")
    ended = run_together("sound", together, "mesh.data=2", devices=1, module=TRAINING)
    assert [process.code for process in ended] == [0, 0], ended
    # Process 0 speaks and writes for both.
    assert "step 1/1" in ended[0].out and "step 1/1" not in ended[1].out
    train(load(alone, [], Config), start_simulated)
    for name in ("metrics.jsonl", "evaluations.jsonl"):
        expected, found = (flat_rows(tmp_path / run / name) for run in ("alone", "together"))
        assert found == [pytest.approx(row, rel=1e-4, abs=1e-6) for row in expected]
    for pattern in ("rollouts/*/*/*/*/files/src/App.tsx", "pages/*.json"):
        expected, found = (contents(tmp_path / run, pattern) for run in ("alone", "together"))
        assert expected and found == expected
    expected, found = (advantages(tmp_path / run) for run in ("alone", "together"))
    assert expected and found == pytest.approx(expected, rel=1e-6)
    # One process on one device reads what two wrote on a mesh, and would go on with it.
    (left, at), (right, also_at) = (final_state(load(path, [], Config)) for path in (alone, together))
    assert at == also_at
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-6), left, right)
    check_run_folder(load(together, ["num_steps=2"], Config))


def contents(root: Path, pattern: str) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.glob(pattern)}


def advantages(run: Path) -> dict[str, float]:
    """Of every segment: groups are credited by the process that has them."""
    found = {name: json.loads(text) for name, text in contents(run, "rollouts/*/train/*/*/advantages.json").items()}
    return {f"{name}#{k}": value for name, values in found.items() for k, value in enumerate(values)}


def final_state(config: Config) -> tuple[Any, Position]:
    inputs = read_inputs(config)
    return Checkpoints(folder=config.run_dir / "checkpoints").restore(
        Learner(config, inputs.policy).init(inputs.params)
    )


@pytest.mark.slow
def test_one_without_a_valid_rollout_still_steps_and_its_bug_ends_both(tiny_policy: Path, tmp_path: Path) -> None:
    changes = {"num_steps": 2, "rollout": {"group_size": 3, "concurrency": 2, "max_retries": 0}}
    path = write(tmp_path, tiny_policy, "run", **changes)
    other, guilty = run_together("broken", path, "mesh.data=2", devices=1, module=TRAINING)
    assert other.code == 3 and guilty.code != 0
    assert "process 1 failed: RuntimeError: the world has a hole" in other.err, guilty.err
    (row,) = flat_rows(tmp_path / "run" / "metrics.jsonl")
    assert (row["num_rollouts"], row["num_failed"], row["num_dropped_groups"]) == (3, 3, 1)
    assert row["num_samples"] >= 3 and row["skipped"] == 0 and row["grad_norm"] > 0
    assert Checkpoints(folder=tmp_path / "run" / "checkpoints").steps() == [1]
    assert seconds_to_end([other, guilty]) < TIMEOUT_S + 10


def test_what_can_not_be_shared_out_is_refused_by_name(tiny_policy: Path, tmp_path: Path) -> None:
    def config(*overrides: str) -> Config:
        return load(write(tmp_path, tiny_policy, "run"), overrides, Config)

    with pytest.raises(ConfigError, match=r"tasks\.per_step=2 can't be shared out evenly among 3 processes"):
        check_together(config(), Processes(index=0, count=3, store=_Nothing()), done=0)
    inputs = read_inputs(config())
    for overrides, message in (
        (["mesh.data=64", "batch.micro_rows=64"], r"mesh\.\*: mesh .* needs 64 devices"),
        (["mesh.data=3"], r"batch\.micro_rows=2 must be a multiple of mesh\.data \* mesh\.fsdp = 3"),
        (["mesh.sequence=3"], r"batch\.row_tokens=512 must be a multiple of mesh\.sequence=3"),
    ):
        with pytest.raises(ConfigError, match=message):
            Learner(config(*overrides), inputs.policy)
    two = Processes(index=0, count=2, store=_Nothing())
    with pytest.raises(ConfigError, match=r"2 processes have 1 devices, but mesh\.\* takes 4; .* mesh\.fsdp=1"):
        Learner(config("mesh.data=4"), inputs.policy, two)
    with pytest.raises(ConfigError, match=r"mesh\.data \* mesh\.fsdp = 1 must be a multiple of the 2 processes"):
        Learner(config(), inputs.policy, two)


class _Nothing:
    """A store that must not be asked."""

    def key_value_set(self, key: str, value: str) -> None:
        raise AssertionError(key)

    def key_value_increment(self, key: str, increment: int) -> int:
        raise AssertionError(key)

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        raise AssertionError(key)

    def key_value_delete(self, key: str) -> None:
        raise AssertionError(key)
