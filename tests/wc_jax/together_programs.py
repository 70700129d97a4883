"""What the processes of `test_multihost.py` do: `-m tests.wc_jax.together_programs NAME INDEX COUNT PORT ...`."""

import os
import signal
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.wc_jax.together import TIMEOUT_S
from wc_jax.exits import run_command
from wc_jax.multihost import DistributedConfig, Processes, join


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
        raise ValueError("the sandbox burned down\nand all in it")
    meet(processes, where)


def die(processes: Processes, culprit: str, where: str) -> None:
    """One is gone without a word."""
    meet(processes, "device")
    if processes.index == int(culprit):
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


def main(name: str, index: str, count: str, port: str, *arguments: str) -> int:
    config = DistributedConfig(
        coordinator=f"127.0.0.1:{port}",
        num_processes=int(count),
        process_id=int(index),
        start_timeout_s=20.0 if name != "alone" else 2.0,
        failure_timeout_s=TIMEOUT_S,
    )

    def work() -> None:
        with join(config) as processes:
            try:
                globals()[name](processes, *arguments)
            finally:
                print("closed", flush=True)

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
