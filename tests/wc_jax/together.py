"""Starts a program as several processes of one run, and tells how each of them ended."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wc_jax.multihost import DistributedConfig

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = "tests.wc_jax.together_programs"
TIMEOUT_S = 3.0
"""`distributed.failure_timeout_s` of these runs."""


@dataclass(frozen=True)
class Ended:
    """How one process of a run ended."""

    code: int
    out: str
    err: str
    at: float
    """When, in seconds of `time.time`, at the latest."""


def seconds_to_end(all_ended: Sequence[Ended]) -> float:
    """From what one process announced to the end of all."""
    announced = [line.split()[1] for ended in all_ended for line in ended.out.splitlines() if line.startswith("NOW ")]
    return max(ended.at for ended in all_ended) - float(announced[0])


def announce() -> None:
    """Called by a program right before it fails."""
    sys.stdout.write(f"NOW {time.time()}\n")
    sys.stdout.flush()


def this_process(index: str, count: str, port: str, *, start_timeout_s: float = 30.0) -> DistributedConfig:
    """What a program tells `join`."""
    return DistributedConfig(
        coordinator=f"127.0.0.1:{port}" if int(count) > 1 else "",
        num_processes=int(count),
        process_id=int(index),
        start_timeout_s=start_timeout_s,
        failure_timeout_s=TIMEOUT_S,
    )


def run_together(
    program: str,
    *arguments: object,
    count: int = 2,
    devices: int = 2,
    started: Sequence[int] | None = None,
    port: int | None = None,
    module: str = PROGRAMS,
) -> list[Ended]:
    """All processes of one run (or only those `started`), each with so many simulated devices, awaited."""
    address = str(free_port() if port is None else port)
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", module, program, str(index), str(count), address, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **flags},
        )
        for index in (range(count) if started is None else started)
    ]
    try:
        ended = []
        for process in running:
            out, err = process.communicate(timeout=100)
            ended.append(Ended(process.returncode, out, err, time.time()))
        return ended
    finally:
        for process in running:
            process.kill()
            process.communicate()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
