"""One training run, start to finish.

    python -m wc_jax.train CONFIG [key=value ...]

Run the same command again and it goes on where it stopped, whatever stopped it. Exit codes: 0 done,
2 bad input, 3 the infrastructure failed, 130 and 143 interrupted (Ctrl-C, SIGTERM).
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass

from configs import load
from rollout.collect import collect_groups
from rollout.store import save_advantages, save_rollout
from rollout.types import Rollout
from wc_jax.assemble import Inputs, Machinery, StartMachinery, read_inputs, start_machinery
from wc_jax.checkpoint import Checkpoints, Position
from wc_jax.config import Config
from wc_jax.credit import credit_groups
from wc_jax.cursor import TaskCursor
from wc_jax.evaluation import evaluate_policy
from wc_jax.exits import run_command
from wc_jax.host_memory import keep_large_buffers
from wc_jax.learner import Learner
from wc_jax.measures import group_spread, measure_rollouts
from wc_jax.progress import Progress
from wc_jax.report import read_rows, save_pages, write_report
from wc_jax.run_folder import RunFolder, check_run_folder, record_start
from wc_jax.track import JsonLines, Trackers, check_tracking, open_trackers
from wc_jax.types import TrainState


@dataclass(kw_only=True)
class Run:
    """All that the steps of one run share."""

    config: Config
    folder: RunFolder
    inputs: Inputs
    machinery: Machinery
    learner: Learner
    cursor: TaskCursor
    checkpoints: Checkpoints
    trackers: Trackers
    progress: Progress


def train(config: Config, start: StartMachinery = start_machinery) -> RunFolder:
    """Runs or goes on with `config`. Raises `ConfigError` before anything is written or started.

    `start`: what makes engine, worlds and verdicts.
    """
    folder = check_run_folder(config)
    check_tracking(config)
    inputs = read_inputs(config)
    checkpoints = Checkpoints(folder=folder.checkpoints, keep=config.checkpoint.keep)
    done = 0 if config.fresh else max(checkpoints.steps(), default=0)
    with contextlib.ExitStack() as stack:
        folder.claim()
        stack.callback(folder.release)
        progress = Progress(num_steps=config.num_steps, done=done)
        stack.callback(progress.close)
        if done >= config.num_steps:
            progress.say(f"all {done} steps are done already: {write_report(folder, num_steps=done)}")
            return folder
        with progress.phase("start"):
            # Before the folder is touched: an engine that does not come up must not cost an old run.
            machinery = stack.enter_context(start(config, inputs, folder.engine_log, progress.say))
        if config.fresh:
            folder.clear()
        learner = Learner(config, inputs.policy)
        state, position = restore_or_start(config, inputs, learner, checkpoints)
        folder.forget_after(position.step)
        record_start(folder, config)
        trackers = open_trackers(config, folder, done=position.step, say=progress.say)
        stack.callback(trackers.close)
        run = Run(
            config=config,
            folder=folder,
            inputs=inputs,
            machinery=machinery,
            learner=learner,
            cursor=TaskCursor(num_tasks=config.tasks.num_train, per_step=config.tasks.per_step, seed=config.seed),
            checkpoints=checkpoints,
            trackers=trackers,
            progress=progress,
        )
        run_steps(run, state, position)
    return folder


def restore_or_start(
    config: Config, inputs: Inputs, learner: Learner, checkpoints: Checkpoints
) -> tuple[TrainState, Position]:
    """The newest checkpoint, or the model folder's weights at step 0."""
    state = learner.init(inputs.params)
    if checkpoints.steps():
        return checkpoints.restore(state)
    return state, Position(step=0, seed=config.seed, num_tasks_dealt=0, policy_version=0)


def run_steps(run: Run, state: TrainState, position: Position) -> None:
    """From `position` to the last step. The engine is proved to hold the trainer's weights before each."""
    publish(run, state, position.policy_version)
    if not read_rows(run.folder.evaluations):
        evaluate(run, position.step)
        run.progress.take_seconds()
    for step in range(position.step + 1, run.config.num_steps + 1):
        state, position = run_step(run, state, position, step)
        run.progress.step_done()
    write_report(run.folder, num_steps=run.config.num_steps)
    run.progress.say(f"done: {run.folder.report}")


def run_step(run: Run, state: TrainState, position: Position, step: int) -> tuple[TrainState, Position]:
    """Tasks, rollouts, credit, update, sync, and what follows from them."""
    config, progress = run.config, run.progress
    tasks = [run.inputs.train_tasks[index] for index in run.cursor.take(position.num_tasks_dealt)]
    with progress.phase("rollouts", total=len(tasks) * config.rollout.group_size):
        groups = collect_groups(
            tasks,
            group_size=config.rollout.group_size,
            run_one=run.machinery.attempts,
            concurrency=config.rollout.concurrency,
            max_retries=config.rollout.max_retries,
            seed=config.seed,
            prefix=f"train/{step}",
            on_done=keep_rollout(run),
        )
    with progress.phase("update"):
        credited = credit_groups(groups, config.credit)
        for rollout_id, advantages in credited.by_rollout.items():
            save_advantages(run.folder.path, rollout_id, advantages)
        state, learned = run.learner.update(state, credited)
    position = Position(
        step=step,
        seed=config.seed,
        num_tasks_dealt=position.num_tasks_dealt + len(tasks),
        policy_version=step,
    )
    synced = publish(run, state, position.policy_version)
    is_last = step == config.num_steps
    measured = {**measure_rollouts([r for group in groups for r in group]), **group_spread(groups)}
    if step % config.evaluation.every == 0 or is_last:
        measured["heldout_reward_mean"] = evaluate(run, step)
    run.trackers.log({"step": step, **measured, **learned, **synced, "seconds": progress.take_seconds()})
    if step % config.checkpoint.every == 0 or is_last:
        with progress.phase("checkpoint"):
            run.checkpoints.save(state, position)
    return state, position


def publish(run: Run, state: TrainState, version: int) -> dict[str, float]:
    """The engine gets the weights; raises `PublishError` unless it can be proved to use them."""
    with run.progress.phase("sync"):
        return run.machinery.publish(state.params, version)


def evaluate(run: Run, step: int) -> float:
    """The held-out mean reward of the published weights; adds a line, two pages and a new report."""
    config = run.config
    num_rollouts = len(run.inputs.heldout_tasks) * config.evaluation.rollouts_per_task
    with run.progress.phase("eval", total=num_rollouts):
        found = evaluate_policy(
            run.machinery.heldout_attempts, run.inputs.heldout_tasks, config, step=step, on_done=keep_rollout(run)
        )
        save_pages(run.folder.pages, step, found.shown)
        lines = JsonLines(run.folder.evaluations)
        lines.log(found.row)
        lines.close()
        write_report(run.folder, num_steps=config.num_steps)
    reward = float(found.row["reward_mean"])
    run.progress.say(f"held-out reward at step {step}: {reward:.3f}")
    return reward


def keep_rollout(run: Run) -> Callable[[Rollout], None]:
    """What is done with each rollout as it ends."""

    def keep(rollout: Rollout) -> None:
        save_rollout(run.folder.path, rollout)
        run.progress.advance()

    return keep


def main(argv: list[str]) -> int:
    """The command line. Returns the exit code; every expected failure is one message on stderr."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv else 2
    keep_large_buffers()
    return run_command(lambda: train(load(argv[0], argv[1:], Config)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
