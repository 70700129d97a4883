"""Training runs of several processes: `-m tests.wc_jax.together_training NAME INDEX COUNT PORT CONFIG ...`."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from configs import load
from rollout.sandbox.protocol import SandboxError
from rollout.types import Rollout
from tests.wc_jax.small_runs import start_simulated
from tests.wc_jax.together import announce, this_process
from verifier.types import Task
from wc_jax.assemble import Machinery, StartMachinery
from wc_jax.config import Config
from wc_jax.exits import run_command
from wc_jax.train import train


@contextlib.contextmanager
def with_a_hole(*arguments: Any) -> Iterator[Machinery]:
    """The world of process 1 gives nothing in the first step and breaks in the second."""

    def fall(_task: Task, rollout_id: str, _seed: int) -> Rollout:
        if rollout_id.startswith("train/1/"):
            raise SandboxError("no sandbox today")
        announce()
        raise RuntimeError("the world has a hole")

    with start_simulated(*arguments) as machinery:
        is_here = arguments[0].distributed.process_id == 1
        yield replace(machinery, attempts=fall) if is_here else machinery


WORLDS: dict[str, StartMachinery] = {"sound": start_simulated, "broken": with_a_hole}


def main(name: str, index: str, count: str, port: str, path: str, *overrides: str) -> int:
    config = replace(load(path, overrides, Config), distributed=this_process(index, count, port))
    return run_command(lambda: train(config, WORLDS[name]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
