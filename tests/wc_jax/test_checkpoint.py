"""Checkpoints: whole or absent, newest by number, bit for bit, and a full disk harms nothing."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.together import run_together
from tests.wc_jax.together_programs import numbers
from wc_jax.checkpoint import CheckpointError, Checkpoints, Position


def state(scale: float) -> dict[str, Any]:
    key = jax.random.key(7)
    return {
        "params": {"a": jax.random.normal(key, (3, 5)) * scale, "b": jnp.full((2,), 0.1, jnp.bfloat16)},
        "opt": (jnp.int32(3), {"mu": jnp.array([jnp.nan, -0.0, 1e-40])}),
    }


def position(step: int) -> Position:
    return Position(step=step, seed=1, num_tasks_dealt=4 * step, policy_version=step)


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def test_restores_the_newest_by_number_bit_for_bit(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, keep=3)
    for step in (2, 9, 10):
        checkpoints.save(state(step), position(step))
    restored, where = checkpoints.restore(jax.tree.map(jnp.zeros_like, state(1)))
    assert where == position(10)
    assert bits(restored) == bits(state(10))
    older, _ = checkpoints.restore(state(1), step=9)
    assert bits(older) == bits(state(9))


def test_keeps_the_newest(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, keep=2)
    for step in (8, 9, 10, 11):
        checkpoints.save(state(1), position(step))
    assert checkpoints.steps() == [10, 11]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_10", "step_11"]


def test_partial_and_foreign_folders_are_ignored(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path, keep=1)
    checkpoints.save(state(1), position(7))
    for name in ("step_8.tmp", "step_9_old", ".step_10.partial", "step_x", "notes"):
        shutil.copytree(tmp_path / "step_7", tmp_path / name)
    (tmp_path / "step_12").mkdir()
    assert checkpoints.steps() == [7]
    checkpoints.save(state(2), position(8))
    assert checkpoints.steps() == [8]


def test_another_shape_and_an_absent_step_are_refused_with_advice(tmp_path: Path) -> None:
    checkpoints = Checkpoints(folder=tmp_path)
    with pytest.raises(CheckpointError, match="no checkpoint of step None"):
        checkpoints.restore(state(1))
    checkpoints.save(state(1), position(1))
    with pytest.raises(CheckpointError, match="fresh=true"):
        checkpoints.restore({"params": {"a": jnp.zeros((4, 4))}})
    with pytest.raises(ValueError, match="keep must be 1 or more"):
        Checkpoints(folder=tmp_path, keep=0)


_FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import jax.numpy as jnp
from tests.wc_jax.together import run_together
from tests.wc_jax.together_programs import numbers
from wc_jax.checkpoint import CheckpointError, Checkpoints, Position
checkpoints = Checkpoints(folder=Path(sys.argv[1]), keep=1)
def save(step):
    position = Position(step=step, seed=0, num_tasks_dealt=0, policy_version=0)
    checkpoints.save({"a": jnp.arange(100_000.0) ** 0.5}, position)
save(1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
try:
    save(2)
except CheckpointError as error:
    print(error)
print(checkpoints.steps(), [path.name for path in Path(sys.argv[1]).iterdir()])
"""


def test_a_failed_write_is_one_message_and_leaves_the_old_one(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=True)
    message, left = done.stdout.strip().splitlines()
    assert message.startswith("could not save the checkpoint of step 2")
    assert "the checkpoint of step 1 is intact" in message
    assert left == "[1] ['step_1']"
    assert "Traceback" not in done.stderr


_KILLED = """
import os, signal, sys
from pathlib import Path
import jax.numpy as jnp
from tests.wc_jax.together import run_together
from tests.wc_jax.together_programs import numbers
from wc_jax.checkpoint import Checkpoints, Position
folder, event_name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
checkpoints = Checkpoints(folder=folder, keep=1)
def save(step):
    position = Position(step=step, seed=0, num_tasks_dealt=0, policy_version=0)
    checkpoints.save({"a": jnp.full((1000,), float(step))}, position)
save(1)
seen = 0
def hook(event, _):
    global seen
    seen += event == event_name
    if seen == count and event == event_name:
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
save(2)
"""


@pytest.mark.parametrize(
    ("event", "count", "survivor"),
    [("os.mkdir", 1, 1), ("os.rename", 2, 1), ("shutil.rmtree", 2, 2)],
    ids=["opening", "before the last rename", "while the old one goes"],
)
def test_a_kill_during_a_save_leaves_one_to_restore(tmp_path: Path, event: str, count: int, survivor: int) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path), event, str(count)]
    assert subprocess.run(command, capture_output=True).returncode == -9
    checkpoints = Checkpoints(folder=tmp_path, keep=1)
    restored, where = checkpoints.restore({"a": jnp.zeros((1000,))})
    assert where.step == survivor
    assert float(restored["a"][0]) == survivor
    checkpoints.save(restored, position(5))
    assert [path.name for path in tmp_path.iterdir()] == ["step_5"]


def test_position_is_readable_by_people(tmp_path: Path) -> None:
    Checkpoints(folder=tmp_path).save(state(1), position(3))
    assert json.loads((tmp_path / "step_3" / "position.json").read_text())["num_tasks_dealt"] == 12


@pytest.mark.slow
def test_another_number_of_processes_and_another_mesh_read_the_same_bits(tmp_path: Path) -> None:
    written = run_together("save_numbers", tmp_path, 4, 1, count=2, devices=2)
    assert [process.code for process in written] == [0, 0], written
    expected = numbers()
    # One process with one device: this one.
    restored, where = Checkpoints(folder=tmp_path).restore(jax.tree.map(jnp.zeros_like, expected))
    assert where == Position(step=1, seed=1, num_tasks_dealt=2, policy_version=3)
    assert bits(restored) == bits(expected)
    # One process with four devices on another mesh, which writes again; and back to two processes.
    for count, devices, data, tensor in ((1, 4, 2, 2), (2, 2, 1, 4)):
        read = run_together("restore_numbers", tmp_path, data, tensor, count=count, devices=devices)
        assert all(process.code == 0 and "equal" in process.out for process in read), read
    assert [path.name for path in tmp_path.iterdir()] == ["step_3"]


def test_a_full_disk_at_one_of_two_processes_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    other, full = run_together("fill_disk", tmp_path, count=2)
    assert (other.code, full.code) == (3, 3)
    assert "could not save the checkpoint of step 2" in full.err and "step 1 is intact" in full.err
    assert "process 1 failed: CheckpointError: could not save the checkpoint of step 2" in other.err
    checkpoints = Checkpoints(folder=tmp_path, keep=1)
    assert checkpoints.steps() == [1]
    checkpoints.save(state(1), position(5))
    assert [path.name for path in tmp_path.iterdir()] == ["step_5"]
