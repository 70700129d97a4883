"""Several processes as one run: how they find each other, and leave.

    python -m wc_jax.train CONFIG distributed.coordinator=HOST:PORT distributed.num_processes=2 distributed.process_id=0
    python -m wc_jax.train CONFIG distributed.coordinator=HOST:PORT distributed.num_processes=2 distributed.process_id=1

All of them see the same run folder. What they tell each other: `wc_jax.processes`; how they end: `wc_jax.watchdog`.
"""

import atexit
import contextlib
import functools
import itertools
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax._src import distributed
from jax.sharding import Mesh, PartitionSpec

from configs import ConfigError
from wc_jax.processes import ALONE, Processes
from wc_jax.watchdog import FAILED, PeerFailed, Watchdog


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Which process of how many this is. Left alone, a run is one process."""

    coordinator: str = ""
    """HOST:PORT on which process 0 listens and where all others reach it."""
    num_processes: int = 1
    """Processes of the run; tasks.per_step must be a multiple."""
    process_id: int = 0
    """Number of this process, from 0. Process 0 writes metrics, report and checkpoints' positions."""
    auto: bool = False
    """True: the cluster says the three above (TPU pods, Slurm, Open MPI, Kubernetes)."""
    start_timeout_s: float = 300.0
    """Give up when not all processes have met by then."""
    failure_timeout_s: float = 60.0
    """A process that is silent for so long is taken for dead; all others have left after as long again."""

    def __post_init__(self) -> None:
        for name in ("num_processes", "start_timeout_s", "failure_timeout_s"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.process_id < self.num_processes:
            raise ValueError(f"process_id must be 0 to {self.num_processes - 1}, got {self.process_id}")
        if self.auto and (self.coordinator or self.num_processes > 1):
            raise ValueError("auto=true asks the cluster; leave out coordinator, num_processes and process_id")
        if bool(self.coordinator) != (self.num_processes > 1):
            raise ValueError(
                f"coordinator={self.coordinator!r} and num_processes={self.num_processes} do not fit: write both"
                " distributed.coordinator=HOST:PORT and distributed.num_processes=2 or more, or neither"
            )
        host, _, port = self.coordinator.rpartition(":")
        if self.coordinator and not (host and port.isdigit() and 0 < int(port) < 65536):
            raise ValueError(f"coordinator must be HOST:PORT, got {self.coordinator!r}")


@contextlib.contextmanager
def join(config: DistributedConfig) -> Iterator[Processes]:
    """Meets the other processes; on leaving, all of them are done, or all of them fail.

    Enter it before JAX is asked for a device. Inside, a failure elsewhere is raised as `PeerFailed`.
    A process that is left by an exception must end: seconds later it is ended.
    Raises `ConfigError` when the processes can't meet.
    """
    if config.num_processes == 1 and not config.auto:
        yield ALONE
        return
    _connect(config)
    # JAX has no public name for its store; Orbax uses the same.
    state = distributed.global_state
    assert state.client is not None
    if state.num_processes == 1:
        yield ALONE
        return
    index, count = state.process_id, state.num_processes
    watchdog = Watchdog(state.client, index=index, count=count, timeout_s=config.failure_timeout_s)
    watchdog.start()
    processes = Processes(index=index, count=count, store=state.client, watchdog=watchdog)
    try:
        with processes.failing_together():
            yield processes
            processes.wait(what="the end")
    except PeerFailed:
        # Python would wait for the threads in which collectives wait for the failed process.
        atexit.register(_end, is_farewell_possible=watchdog.leave())
        raise
    except BaseException:
        watchdog.leave()
        raise
    watchdog.stop()
    jax.distributed.shutdown()


def introduce(mesh: Mesh, processes: Processes) -> None:
    """The first collective of each group of devices, now that all processes are here.

    On CPUs a process has 30 s to follow the others to it, and they may compile for longer than that.
    """
    if processes.count == 1 or jax.default_backend() != "cpu":
        return
    axes = [name for name, size in mesh.shape.items() if size > 1]
    everywhere = PartitionSpec()
    for group in itertools.chain.from_iterable(itertools.combinations(axes, n + 1) for n in range(len(axes))):
        add = jax.shard_map(
            functools.partial(jax.lax.psum, axis_name=group), mesh=mesh, in_specs=everywhere, out_specs=everywhere
        )
        compiled = jax.jit(add).lower(np.float32(1.0)).compile()
        processes.wait(what=f"meeting along {group}")
        jax.block_until_ready(compiled(np.float32(1.0)))


def _end(*, is_farewell_possible: bool) -> None:
    if is_farewell_possible:
        jax.distributed.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


def _connect(config: DistributedConfig) -> None:
    """`jax.distributed.initialize`, which ends the process by itself and in its own words: we come first."""
    address: dict[str, Any] = {}
    if not config.auto:
        address = {
            "coordinator_address": config.coordinator,
            "num_processes": config.num_processes,
            "process_id": config.process_id,
            "cluster_detection_method": "deactivate",
        }
        _check_port(config) if config.process_id == 0 else _await_coordinator(config)
    give_up = threading.Timer(config.start_timeout_s, _give_up, [config])
    give_up.daemon = True
    give_up.start()
    jax_timeout_s = math.ceil(2 * config.failure_timeout_s) + 10
    # JAX's preemption service would take SIGTERM for itself, and the process would run on until it is killed.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            **address,
            initialization_timeout=math.ceil(config.start_timeout_s) + 10,
            heartbeat_timeout_seconds=jax_timeout_s,
            shutdown_timeout_seconds=jax_timeout_s,
        )
    except (RuntimeError, ValueError) as error:
        advice = (
            "; no cluster says who they are: write coordinator, num_processes and process_id" if config.auto else ""
        )
        raise ConfigError(f"the processes of distributed.* can't meet: {error}{advice}") from error
    finally:
        give_up.cancel()


def _check_port(config: DistributedConfig) -> None:
    port = int(config.coordinator.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise ConfigError(
            f"port {port} of distributed.coordinator={config.coordinator} is taken ({error}); choose another one"
        ) from error


def _await_coordinator(config: DistributedConfig) -> None:
    host, _, port = config.coordinator.rpartition(":")
    deadline = time.monotonic() + config.start_timeout_s
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=config.start_timeout_s).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"process {config.process_id}: process 0 does not listen on distributed.coordinator="
                    f"{config.coordinator} after {config.start_timeout_s:g} s ({error}); start it there too"
                ) from error
            time.sleep(0.1)


def _give_up(config: DistributedConfig) -> None:
    print(
        f"infrastructure failure: not all processes came within distributed.start_timeout_s="
        f"{config.start_timeout_s:g}; start each of them once, with its own distributed.process_id",
        file=sys.stderr,
        flush=True,
    )
    os._exit(FAILED)
