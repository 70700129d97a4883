"""The held-out score: fixed tasks, fixed seeds, the same sampling each time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.attempt import Attempts
from rollout.collect import collect_groups, rollout_seed
from rollout.types import Rollout
from verifier.types import Task
from wc_jax.config import Config
from wc_jax.measures import Facts, gather_facts, measure_rollouts
from wc_jax.processes import Processes
from wc_jax.report import Shown


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One line of evaluations.jsonl, and what is known of each rollout, in the order of the tasks."""

    row: dict[str, Any]
    rollouts: list[Facts]


def evaluate_policy(
    attempts: Attempts,
    tasks: Sequence[Task],
    config: Config,
    *,
    step: int,
    on_done: Callable[[Rollout], None],
    processes: Processes,
) -> Evaluation:
    """Rolls out every held-out task with the weights of `step` and judges the pages, each process its share."""

    def attempt(task: Task, rollout_id: str, _: int) -> Rollout:
        # Without the step in it: two evaluations differ by their weights and not by their luck.
        seed = rollout_seed(config.seed, f"eval/{task.task_id}/{rollout_id.rpartition('/')[2]}")
        return attempts(task, rollout_id, seed)

    groups = collect_groups(
        processes.share(tasks),
        group_size=config.evaluation.rollouts_per_task,
        run_one=attempt,
        concurrency=config.rollout.concurrency,
        max_retries=config.rollout.max_retries,
        seed=config.seed,
        prefix=f"eval/{step}",
        on_done=on_done,
    )
    rollouts = [facts for group in gather_facts(groups, processes) for facts in group]
    return Evaluation(row={"step": step, **measure_rollouts(rollouts)}, rollouts=rollouts)


def best_and_worst(rollouts: Sequence[Facts], screenshot: Callable[[str], bytes]) -> list[Shown]:
    """The final pages of the highest and the lowest reward; the earlier one of equals.

    `screenshot`: rollout id -> PNG, empty when there is none.
    """
    judged = [rollout for rollout in rollouts if rollout.is_judged]
    if not judged:
        return []
    best = max(judged, key=lambda rollout: rollout.reward)
    worst = min(judged, key=lambda rollout: rollout.reward)
    return [
        Shown(
            label=label,
            task_id=rollout.task_id,
            brief=rollout.brief,
            reward=rollout.reward,
            reason=rollout.reason,
            screenshot=screenshot(rollout.rollout_id),
        )
        for label, rollout in (("best", best), ("worst", worst))
    ]
