"""What the processes of `test_multihost.py` do: `-m tests.wc_jax.together_programs NAME INDEX COUNT PORT ...`."""

import os
import resource
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.wc_jax.together import TIMEOUT_S, announce, this_process
from wc_jax.checkpoint import Checkpoints, Position
from wc_jax.exits import run_command
from wc_jax.multihost import DistributedConfig, join
from wc_jax.processes import Processes


def rows_of(index: int) -> list[float]:
    """Process 0 has three samples, process 1 none, process 2 one."""
    return [[1.0, 2.0, 3.0], [], [7.0]][index]


def learn(processes: Processes) -> None:
    """w goes to the mean of all samples by gradient steps on a global batch; padding has weight 0."""
    mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
    mine = rows_of(processes.index)
    height = processes.agree_max(-(-len(mine) // 2) * 2, what="rows")
    values, weights = np.zeros(height, np.float32), np.zeros(height, np.float32)
    values[: len(mine)], weights[: len(mine)] = mine, 1.0
    batch = [global_array(mesh, x) for x in (values, weights)]

    @jax.jit
    def step(w: jax.Array, values: jax.Array, weights: jax.Array) -> jax.Array:
        grad = jnp.sum(weights * (w - values)) / jnp.sum(weights)
        return w - 0.5 * grad

    w = jax.device_put(jnp.zeros(()), NamedSharding(mesh, PartitionSpec()))
    for _ in range(20):
        w = step(w, *batch)
    print(f"rows {height} w {float(w).hex()} of {jax.device_count()} devices")


def fail(processes: Processes, culprit: str, where: str) -> None:
    """One raises in its second step; the others wait for it, in a collective or in a gathering."""
    meet(processes, "device")
    if processes.index == int(culprit):
        announce()
        raise ValueError("the sandbox burned down\nand all in it")
    meet(processes, where)


def die(processes: Processes, culprit: str, where: str) -> None:
    """One is gone without a word."""
    meet(processes, "device")
    if processes.index == int(culprit):
        announce()
        os.kill(os.getpid(), signal.SIGKILL)
    meet(processes, where)


def stop(processes: Processes) -> None:
    """Somebody presses Ctrl-C on process 1."""
    meet(processes, "device")
    if processes.index == 1:
        os.kill(os.getpid(), signal.SIGINT)
    meet(processes, "store")


def wedge(processes: Processes) -> None:
    """Process 1 raises; process 0 does not come out of its `finally`."""
    meet(processes, "device")
    if processes.index == 1:
        announce()
        raise ValueError("boom")
    try:
        meet(processes, "store")
    finally:
        time.sleep(60)


def alone(_processes: Processes) -> None:
    """Nobody else comes."""
    raise AssertionError("can't be reached")


def disagree(processes: Processes) -> None:
    """A mistake of ours: the processes are at different places."""
    processes.gather(1, what="rows" if processes.index else "metrics")


def numbers() -> dict[str, np.ndarray]:
    """What the checkpoints of these tests hold, with bits that a cast would lose."""
    grid = np.arange(8 * 12, dtype=np.float32).reshape(8, 12)
    odd = np.array([np.nan, -0.0, 1e-40, 3.0], np.float32)
    return {"cut": grid**0.5, "both": np.sin(grid), "half": grid.astype(jnp.bfloat16), "odd": odd, "step": np.int32(3)}


def on_mesh(values: dict[str, np.ndarray], data: int, tensor: int) -> dict[str, jax.Array]:
    """The numbers, spread over `data * tensor` devices."""
    mesh = jax.make_mesh((data, tensor), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    specs = {"cut": ("data",), "both": ("tensor", "data"), "half": (None, ("tensor", "data")), "odd": ("data",)}

    def place(name: str, value: np.ndarray) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*specs.get(name, ())))
        return jax.make_array_from_callback(value.shape, sharding, lambda index: value[index])

    return {name: place(name, value) for name, value in values.items()}


def save_numbers(processes: Processes, folder: str, data: str, tensor: str) -> None:
    """Writes step 1."""
    checkpoints = Checkpoints(folder=Path(folder), keep=1, processes=processes)
    for step in (0, 1):
        position = Position(step=step, seed=1, num_tasks_dealt=2, policy_version=3)
        checkpoints.save(on_mesh(numbers(), int(data), int(tensor)), position)
    assert checkpoints.steps() == [1]


def restore_numbers(processes: Processes, folder: str, data: str, tensor: str) -> None:
    """Reads the newest step, compares each part that lies here bit for bit, and writes the next step."""
    checkpoints = Checkpoints(folder=Path(folder), keep=1, processes=processes)
    nothing = on_mesh({name: np.zeros_like(value) for name, value in numbers().items()}, int(data), int(tensor))
    restored, position = checkpoints.restore(nothing)
    for name, value in numbers().items():
        assert restored[name].sharding == nothing[name].sharding and restored[name].dtype == value.dtype
        for part in restored[name].addressable_shards:
            assert np.asarray(part.data).tobytes() == value[part.index].tobytes(), name
    checkpoints.save(restored, replace(position, step=position.step + 1))
    print("equal")


def fill_disk(processes: Processes, folder: str) -> None:
    """The second save does not fit the disk of process 1."""
    checkpoints = Checkpoints(folder=Path(folder), keep=1, processes=processes)

    def save(step: int) -> None:
        values = {"a": np.arange(400_000, dtype=np.float32) ** 0.5}
        mesh = jax.make_mesh((len(jax.devices()),), ("data",), axis_types=(AxisType.Auto,))
        state = {"a": global_array(mesh, np.split(values["a"], processes.count)[processes.index])}
        checkpoints.save(state, Position(step=step, seed=0, num_tasks_dealt=0, policy_version=0))

    save(1)
    if processes.index == 1:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, resource.RLIM_INFINITY))
    save(2)


def global_array(mesh: Mesh, mine: np.ndarray) -> jax.Array:
    """One part of the rows from each process."""
    return jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), mine)


def meet(processes: Processes, where: str) -> None:
    if where == "store":
        processes.wait(what="meeting")
        return
    mesh = Mesh(np.asarray(jax.devices()), ("data",), axis_types=(AxisType.Auto,))
    ones = global_array(mesh, np.ones(len(jax.local_devices()), np.float32))
    assert float(jax.jit(jnp.sum)(ones)) == jax.device_count()


def slurm(index: str, count: str, port: str) -> dict[str, str]:
    """What Slurm tells each task; JAX makes the port of the coordinator from the job's number."""
    return {
        "SLURM_JOB_ID": port,
        "SLURM_STEP_NODELIST": "localhost",
        "SLURM_NTASKS": count,
        "SLURM_STEP_NUM_TASKS": count,
        "SLURM_PROCID": index,
        "SLURM_LOCALID": index,
    }


def main(name: str, index: str, count: str, port: str, *arguments: str) -> int:
    config = this_process(index, count, port, start_timeout_s=2.0 if name == "alone" else 30.0)
    if name == "learn_on_slurm":
        os.environ |= slurm(index, count, port)
        name, config = "learn", DistributedConfig(auto=True, start_timeout_s=30.0, failure_timeout_s=TIMEOUT_S)

    def work() -> None:
        with join(config) as processes:
            try:
                globals()[name](processes, *arguments)
            finally:
                print("closed", flush=True)

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
