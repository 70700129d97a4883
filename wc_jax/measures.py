"""Finished rollouts -> the numbers of a step or an evaluation. Statistics are over valid rollouts only."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rollout.types import Rollout, Stop
from wc_jax.processes import Processes

_GATES = ("build", "entry", "render")


def mean(values: Sequence[float]) -> float:
    """NaN when there are none."""
    return math.fsum(values) / len(values) if values else math.nan


def spread(values: Sequence[float]) -> float:
    """Population standard deviation; NaN when there are none."""
    center = mean(values)
    return math.sqrt(mean([(value - center) ** 2 for value in values])) if values else math.nan


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is counted and shown of one rollout: small enough to be told to other processes."""

    rollout_id: str
    task_id: str
    brief: str
    stop: str
    is_valid: bool
    is_judged: bool
    reward: float
    """NaN when there is none."""
    gates: dict[str, bool]
    """Which of the verifier's gates it passed."""
    reason: str
    """Of the gates that it did not pass."""
    num_output_tokens: int
    num_prompt_tokens: int
    num_cached_tokens: int
    num_turns: int
    num_segments: int
    num_tool_errors: int


def facts_of(rollout: Rollout) -> Facts:
    """The facts of one finished rollout."""
    gates = () if rollout.report is None else rollout.report.gates
    return Facts(
        rollout_id=rollout.rollout_id,
        task_id=rollout.task.task_id,
        brief=rollout.task.brief,
        stop=rollout.stop.value,
        is_valid=rollout.stop.is_valid,
        is_judged=rollout.report is not None,
        reward=rollout.reward,
        gates={name: any(gate.name == name and gate.ok for gate in gates) for name in _GATES},
        reason="; ".join(f"{gate.name}: {gate.reason}" for gate in gates if not gate.ok),
        num_output_tokens=sum(turn.num_output_tokens for turn in rollout.turns),
        num_prompt_tokens=sum(turn.num_prompt_tokens for turn in rollout.turns),
        num_cached_tokens=sum(turn.num_cached_tokens for turn in rollout.turns),
        num_turns=len(rollout.turns),
        num_segments=len(rollout.tree.leaves),
        num_tool_errors=rollout.num_tool_errors,
    )


def gather_facts(groups: Sequence[Sequence[Rollout]], processes: Processes) -> list[list[Facts]]:
    """Those of all groups, in the order that the tasks had before they were shared out among processes."""
    mine = [[asdict(facts_of(rollout)) for rollout in group] for group in groups]
    return [[Facts(**facts) for facts in group] for group in processes.gather_shares(mine, what="rollouts")]


def measure_rollouts(rollouts: Sequence[Facts]) -> dict[str, Any]:
    """Rewards, gates, tokens, turns and stops. Failed rollouts are counted, and in nothing else.

    `tokens` are means a rollout; `gates`, `gates_passed` and `stops` are shares in [0, 1].
    """
    valid = [rollout for rollout in rollouts if rollout.is_valid]
    rewards = [rollout.reward for rollout in valid]
    stops = Counter(rollout.stop for rollout in valid)
    return {
        "reward_mean": mean(rewards),
        "reward_std": spread(rewards),
        "num_rollouts": len(valid),
        "num_failed": len(rollouts) - len(valid),
        "gates": {name: mean([float(rollout.gates[name]) for rollout in valid]) for name in _GATES},
        "gates_passed": mean([float(all(rollout.gates.values())) for rollout in valid]),
        "output_tokens_mean": mean([float(rollout.num_output_tokens) for rollout in valid]),
        "prompt_tokens_mean": mean([float(rollout.num_prompt_tokens) for rollout in valid]),
        "cached_tokens_mean": mean([float(rollout.num_cached_tokens) for rollout in valid]),
        "turns_mean": mean([float(rollout.num_turns) for rollout in valid]),
        "segments_mean": mean([float(rollout.num_segments) for rollout in valid]),
        "tool_errors_mean": mean([float(rollout.num_tool_errors) for rollout in valid]),
        "stops": {stop.value: stops[stop.value] / max(1, len(valid)) for stop in Stop if stop.is_valid},
    }


def group_spread(groups: Sequence[Sequence[Facts]]) -> dict[str, float]:
    """How much the rollouts of one task differ: what there is to learn from."""
    rewards = [[rollout.reward for rollout in group if rollout.is_valid] for group in groups]
    usable = [values for values in rewards if len(values) >= 2]
    return {
        "group_std_mean": mean([spread(values) for values in usable]),
        "num_flat_groups": float(sum(max(values) == min(values) for values in usable)),
        "num_dropped_groups": float(len(groups) - len(usable)),
    }
