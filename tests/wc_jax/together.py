"""Starts a program as several processes of one run, and tells how each of them ended."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
    seconds: float


def run_together(
    program: str,
    *arguments: object,
    count: int = 2,
    devices: int = 2,
    started: Sequence[int] | None = None,
    port: int | None = None,
) -> list[Ended]:
    """All processes of one run (or only those `started`), each with so many simulated devices, awaited."""
    address = str(free_port() if port is None else port)
    flags = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    start = time.monotonic()
    running = [
        subprocess.Popen(
            [sys.executable, "-m", PROGRAMS, program, str(index), str(count), address, *map(str, arguments)],
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
            ended.append(Ended(process.returncode, out, err, time.monotonic() - start))
        return ended
    finally:
        for process in running:
            process.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
