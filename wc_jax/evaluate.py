"""The held-out score of a run's newest checkpoint, or of the starting model when there is none yet.

    python -m wc_jax.evaluate CONFIG [key=value ...]

Prints one JSON object. Changes nothing in the run folder. Exit codes as in `wc_jax.train`.
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from configs import ConfigError, load
from wc_jax.assemble import read_inputs, start_machinery
from wc_jax.checkpoint import Checkpoints
from wc_jax.config import Config
from wc_jax.evaluation import evaluate_policy
from wc_jax.exits import run_command
from wc_jax.learner import Learner
from wc_jax.multihost import DistributedConfig
from wc_jax.processes import ALONE
from wc_jax.progress import Progress
from wc_jax.run_folder import check_run_folder


def evaluate(config: Config) -> dict[str, Any]:
    """One row as in evaluations.jsonl. Raises `ConfigError` before anything is started."""
    if config.distributed != DistributedConfig():
        raise ConfigError("wc_jax.evaluate is one process; leave out distributed.*")
    folder = check_run_folder(config)
    inputs = read_inputs(config)
    state, step = Learner(config, inputs.policy).init(inputs.params), 0
    checkpoints = Checkpoints(folder=folder.checkpoints)
    if checkpoints.steps():
        state, position = checkpoints.restore(state)
        step = position.step
    with contextlib.ExitStack() as stack:
        log_path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / folder.engine_log().name
        progress = Progress(num_steps=1, done=0)
        stack.callback(progress.close)
        machinery = stack.enter_context(start_machinery(config, inputs, log_path, _to_stderr))
        machinery.publish(state.params, step)
        with progress.phase("eval", total=len(inputs.heldout_tasks) * config.evaluation.rollouts_per_task):
            found = evaluate_policy(
                machinery.heldout_attempts,
                inputs.heldout_tasks,
                config,
                step=step,
                on_done=lambda _: progress.advance(),
                processes=ALONE,
            )
    return found.row


def _to_stderr(text: str) -> None:
    print(text, file=sys.stderr)


def main(argv: list[str]) -> int:
    """The command line. Returns the exit code."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv else 2
    return run_command(lambda: print(json.dumps(evaluate(load(argv[0], argv[1:], Config)), indent=1)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
