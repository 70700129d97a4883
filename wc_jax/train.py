"""One training run, start to finish.

    python -m wc_jax.train CONFIG [key=value ...]

Run the same command again and it goes on where it stopped, whatever stopped it. Exit codes: 0 done,
2 bad input, 3 the infrastructure failed, 130 and 143 interrupted (Ctrl-C, SIGTERM).
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from configs import load
from rollout.collect import collect_groups
from rollout.store import SCREENSHOT, rollout_folder, save_advantages, save_rollout
from rollout.types import Rollout
from verifier.types import Task
from wc_jax.assemble import Inputs, Machinery, StartMachinery, read_inputs, start_machinery
from wc_jax.checkpoint import Checkpoints, Position
from wc_jax.config import Config
from wc_jax.credit import credit_groups
from wc_jax.cursor import TaskCursor
from wc_jax.evaluation import Evaluation, best_and_worst, evaluate_policy
from wc_jax.exits import run_command
from wc_jax.host_memory import keep_large_buffers
from wc_jax.learner import Learner
from wc_jax.measures import gather_facts, group_spread, measure_rollouts
from wc_jax.multihost import join
from wc_jax.processes import Processes
from wc_jax.progress import Progress
from wc_jax.report import read_rows, save_pages, write_report
from wc_jax.run_folder import RunFolder, check_run_folder, check_seen, check_together, record_start
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
    processes: Processes


def train(config: Config, start: StartMachinery = start_machinery) -> RunFolder:
    """Runs or goes on with `config`. Raises `ConfigError` before anything is written or started.

    `start`: what makes engine, worlds and verdicts.
    """
    with join(config.distributed) as processes:
        return train_together(config, start, processes)


def train_together(config: Config, start: StartMachinery, processes: Processes) -> RunFolder:
    """What each of the processes of a run does."""
    folder = check_run_folder(config)
    check_tracking(config)
    inputs = read_inputs(config)
    learner = Learner(config, inputs.policy, processes)
    checkpoints = Checkpoints(folder=folder.checkpoints, keep=config.checkpoint.keep, processes=processes)
    done = 0 if config.fresh else max(checkpoints.steps(), default=0)
    check_together(config, processes, done=done)
    with contextlib.ExitStack() as stack:
        if processes.is_first:
            folder.claim()
            stack.callback(folder.release)
        label = "" if processes.is_first else f"process {processes.index}: "
        progress = Progress(num_steps=config.num_steps, done=done, label=label)
        stack.callback(progress.close)
        if done >= config.num_steps:
            if processes.is_first:
                progress.say(f"all {done} steps are done already: {write_report(folder, num_steps=done)}")
            return folder
        with progress.phase("start"):
            # Before the folder is touched: an engine that does not come up must not cost an old run.
            machinery = stack.enter_context(start(config, inputs, folder.engine_log(processes.index), progress.say))
        state, position = prepare(config, inputs, learner, folder, checkpoints)
        trackers = Trackers([])
        if processes.is_first:
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
            processes=processes,
        )
        with processes.failing_together():
            run_steps(run, state, position)
    return folder


def prepare(
    config: Config, inputs: Inputs, learner: Learner, folder: RunFolder, checkpoints: Checkpoints
) -> tuple[TrainState, Position]:
    """The folder as it was at the newest checkpoint, and the state and position that this one holds."""
    processes = checkpoints.processes
    processes.wait(what="all engines")
    if processes.is_first and config.fresh:
        folder.clear()
    processes.wait(what="a clear folder")
    state, position = restore_or_start(config, inputs, learner, checkpoints)
    if processes.is_first:
        folder.forget_after(position.step)
        record_start(folder, config)
    processes.wait(what="a begun folder")
    check_seen(folder, config, processes)
    return state, position


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
    if not run.processes.gather(len(read_rows(run.folder.evaluations)), what="evaluations")[0]:
        evaluate(run, position.step)
        run.progress.take_seconds()
    for step in range(position.step + 1, run.config.num_steps + 1):
        state, position = run_step(run, state, position, step)
        run.progress.step_done()
    if run.processes.is_first:
        write_report(run.folder, num_steps=run.config.num_steps)
        run.progress.say(f"done: {run.folder.report}")


def run_step(run: Run, state: TrainState, position: Position, step: int) -> tuple[TrainState, Position]:
    """Tasks, rollouts, credit, update, sync, and what follows from them."""
    config, progress = run.config, run.progress
    tasks = [run.inputs.train_tasks[index] for index in run.cursor.take(position.num_tasks_dealt)]
    groups = collect(run, step, run.processes.share(tasks))
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
    facts = gather_facts(groups, run.processes)
    measured = {**measure_rollouts([each for group in facts for each in group]), **group_spread(facts)}
    if step % config.evaluation.every == 0 or is_last:
        measured["heldout_reward_mean"] = evaluate(run, step)
    run.trackers.log({"step": step, **measured, **learned, **synced, "seconds": progress.take_seconds()})
    if step % config.checkpoint.every == 0 or is_last:
        with progress.phase("checkpoint"):
            run.checkpoints.save(state, position)
    return state, position


def collect(run: Run, step: int, tasks: Sequence[Task]) -> list[list[Rollout]]:
    """The rollouts of this process's share of a step's tasks, saved."""
    config = run.config
    with run.progress.phase("rollouts", total=len(tasks) * config.rollout.group_size):
        return collect_groups(
            tasks,
            group_size=config.rollout.group_size,
            run_one=run.machinery.attempts,
            concurrency=config.rollout.concurrency,
            max_retries=config.rollout.max_retries,
            seed=config.seed,
            prefix=f"train/{step}",
            on_done=keep_rollout(run),
        )


def publish(run: Run, state: TrainState, version: int) -> dict[str, float]:
    """Each process's engine gets the weights; raises `PublishError` unless it can be proved to use them.

    What was measured is the worst of all processes.
    """
    with run.progress.phase("sync"):
        proofs = run.processes.gather(run.machinery.publish(run.learner.on_host(state), version), what="proofs")
        return {name: max(proof[name] for proof in proofs) for name in proofs[0]}


def evaluate(run: Run, step: int) -> float:
    """The held-out mean reward of the published weights; adds a line, two pages and a new report."""
    config = run.config
    num_rollouts = len(run.processes.share(run.inputs.heldout_tasks)) * config.evaluation.rollouts_per_task
    with run.progress.phase("eval", total=num_rollouts):
        found = evaluate_policy(
            run.machinery.heldout_attempts,
            run.inputs.heldout_tasks,
            config,
            step=step,
            on_done=keep_rollout(run),
            processes=run.processes,
        )
        if run.processes.is_first:
            record_evaluation(run, step, found)
    return float(found.row["reward_mean"])


def record_evaluation(run: Run, step: int, found: Evaluation) -> None:
    """Its line, its two pages and a new report."""

    def screenshot(rollout_id: str) -> bytes:
        path = rollout_folder(run.folder.path, rollout_id) / SCREENSHOT
        return path.read_bytes() if path.is_file() else b""

    save_pages(run.folder.pages, step, best_and_worst(found.rollouts, screenshot))
    lines = JsonLines(run.folder.evaluations)
    lines.log(found.row)
    lines.close()
    write_report(run.folder, num_steps=run.config.num_steps)
    run.progress.say(f"held-out reward at step {step}: {found.row['reward_mean']:.3f}")


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
