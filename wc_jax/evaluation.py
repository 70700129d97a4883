"""The held-out score: fixed tasks, fixed seeds, the same sampling each time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rollout.attempt import Attempts
from rollout.collect import collect_groups, rollout_seed
from rollout.types import Rollout
from verifier.types import Task
from wc_jax.config import Config
from wc_jax.measures import measure_rollouts
from wc_jax.report import Shown


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One line of evaluations.jsonl, and the pages that the report shows."""

    row: dict[str, Any]
    shown: list[Shown]


def evaluate_policy(
    attempts: Attempts,
    tasks: Sequence[Task],
    config: Config,
    *,
    step: int,
    on_done: Callable[[Rollout], None],
) -> Evaluation:
    """Rolls out every held-out task with the weights of `step` and judges the pages."""

    def attempt(task: Task, rollout_id: str, _: int) -> Rollout:
        # Without the step in it: two evaluations differ by their weights and not by their luck.
        seed = rollout_seed(config.seed, f"eval/{task.task_id}/{rollout_id.rpartition('/')[2]}")
        return attempts(task, rollout_id, seed)

    groups = collect_groups(
        tasks,
        group_size=config.evaluation.rollouts_per_task,
        run_one=attempt,
        concurrency=config.rollout.concurrency,
        max_retries=config.rollout.max_retries,
        seed=config.seed,
        prefix=f"eval/{step}",
        on_done=on_done,
    )
    rollouts = [rollout for group in groups for rollout in group]
    return Evaluation(row={"step": step, **measure_rollouts(rollouts)}, shown=best_and_worst(rollouts))


def best_and_worst(rollouts: Sequence[Rollout]) -> list[Shown]:
    """The final pages of the highest and the lowest reward; the earlier one of equals."""
    judged = [rollout for rollout in rollouts if rollout.report is not None]
    if not judged:
        return []
    best = max(judged, key=lambda rollout: rollout.reward)
    worst = min(judged, key=lambda rollout: rollout.reward)
    return [_shown("best", best), _shown("worst", worst)]


def _shown(label: str, rollout: Rollout) -> Shown:
    report = rollout.report
    assert report is not None
    closed = [f"{gate.name}: {gate.reason}" for gate in report.gates if not gate.ok]
    return Shown(
        label=label,
        task_id=rollout.task.task_id,
        brief=rollout.task.brief,
        reward=rollout.reward,
        reason="; ".join(closed),
        screenshot=report.screenshot,
    )
