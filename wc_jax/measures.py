"""Finished rollouts -> the numbers of a step or an evaluation. Statistics are over valid rollouts only."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rollout.types import Rollout, Stop

_GATES = ("build", "entry", "render")


def mean(values: Sequence[float]) -> float:
    """NaN when there are none."""
    return math.fsum(values) / len(values) if values else math.nan


def spread(values: Sequence[float]) -> float:
    """Population standard deviation; NaN when there are none."""
    center = mean(values)
    return math.sqrt(mean([(value - center) ** 2 for value in values])) if values else math.nan


def measure_rollouts(rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Rewards, gates, tokens, turns and stops. Failed rollouts are counted, and in nothing else.

    `tokens` are means a rollout; `gates`, `gates_passed` and `stops` are shares in [0, 1].
    """
    valid = [rollout for rollout in rollouts if rollout.stop.is_valid]
    rewards = [rollout.reward for rollout in valid]
    passed = {name: mean([float(_passes(rollout, name)) for rollout in valid]) for name in _GATES}
    stops = Counter(rollout.stop for rollout in valid)
    return {
        "reward_mean": mean(rewards),
        "reward_std": spread(rewards),
        "num_rollouts": len(valid),
        "num_failed": len(rollouts) - len(valid),
        "gates": passed,
        "gates_passed": mean([float(all(_passes(rollout, name) for name in _GATES)) for rollout in valid]),
        "output_tokens_mean": mean([float(sum(t.num_output_tokens for t in r.turns)) for r in valid]),
        "prompt_tokens_mean": mean([float(sum(t.num_prompt_tokens for t in r.turns)) for r in valid]),
        "cached_tokens_mean": mean([float(sum(t.num_cached_tokens for t in r.turns)) for r in valid]),
        "turns_mean": mean([float(len(r.turns)) for r in valid]),
        "segments_mean": mean([float(len(r.tree.leaves)) for r in valid]),
        "tool_errors_mean": mean([float(r.num_tool_errors) for r in valid]),
        "stops": {stop.value: stops[stop] / max(1, len(valid)) for stop in Stop if stop.is_valid},
    }


def group_spread(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """How much the rollouts of one task differ: what there is to learn from."""
    rewards = [[r.reward for r in group if r.stop.is_valid] for group in groups]
    usable = [values for values in rewards if len(values) >= 2]
    return {
        "group_std_mean": mean([spread(values) for values in usable]),
        "num_flat_groups": float(sum(max(values) == min(values) for values in usable)),
        "num_dropped_groups": float(len(groups) - len(usable)),
    }


def _passes(rollout: Rollout, gate: str) -> bool:
    return rollout.report is not None and any(g.name == gate and g.ok for g in rollout.report.gates)
