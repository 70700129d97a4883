"""Groups of judged rollouts -> training rows, each with its advantage (method.md sections 2 and 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rollout.samples import build_samples, segment_token_counts
from rollout.types import Rollout, Sample
from wc_jax.advantages import group_advantages, segment_advantages


@dataclass(frozen=True, kw_only=True)
class CreditConfig:
    """From rewards and potentials to one advantage per segment."""

    gamma: float = 0.995
    """Discount of potential gains over segments."""
    clip_offset: float = 5.0
    """Largest |offset| before the last centring."""
    redistribute_in_zero_variance_groups: bool = True
    """False: a group of equal rewards is not trained at all, not even within its rollouts."""
    max_paths: int = 6
    """Context branches of one rollout that are trained."""
    max_sample_tokens: int = 65_536
    """A longer path keeps its most recent tokens."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")
        for name in ("clip_offset", "max_paths", "max_sample_tokens"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Credited:
    """The rows of one step, aligned: `advantages[i]` is worth of every trained token of `samples[i]`."""

    samples: tuple[Sample, ...]
    advantages: tuple[float, ...]
    sample_ids: tuple[str, ...]
    """`<rollout id>#<segment>`"""
    rollouts: tuple[int, ...]
    """Counted from 0: samples with one number come from one rollout."""
    by_rollout: dict[str, list[float]]
    """Rollout id -> the advantage of each segment, 0 for one that is not trained."""


def credit_groups(groups: Sequence[Sequence[Rollout]], config: CreditConfig) -> Credited:
    """Rows and advantages of all valid rollouts; a group with fewer than two valid ones gives none."""
    rollouts = [rollout for group in groups for rollout in group]
    group_ids = [index for index, group in enumerate(groups) for _ in group]
    num_valid = [sum(rollout.stop.is_valid for rollout in group) for group in groups]
    usable = [r.stop.is_valid and num_valid[g] >= 2 for r, g in zip(rollouts, group_ids, strict=True)]
    samples = [_samples(rollout, config) if ok else [] for rollout, ok in zip(rollouts, usable, strict=True)]
    advantages = np.asarray(_advantages(rollouts, group_ids, usable, samples, len(groups), config))
    rows = [(i, sample) for i, found in enumerate(samples) for sample in found]
    by_rollout = {}
    for i, rollout in enumerate(rollouts):
        trained = {sample.segment for sample in samples[i]}
        by_rollout[rollout.rollout_id] = [
            float(advantages[i, k]) if k in trained else 0.0 for k in range(len(rollout.tree.leaves))
        ]
    return Credited(
        samples=tuple(sample for _, sample in rows),
        advantages=tuple(float(advantages[i, sample.segment]) for i, sample in rows),
        rollouts=tuple(i for i, _ in rows),
        sample_ids=tuple(f"{rollouts[i].rollout_id}#{sample.segment}" for i, sample in rows),
        by_rollout=by_rollout,
    )


def _samples(rollout: Rollout, config: CreditConfig) -> list[Sample]:
    return build_samples(
        rollout.tree,
        potentials=rollout.potentials,
        max_paths=config.max_paths,
        max_tokens=config.max_sample_tokens,
    )


def _advantages(
    rollouts: Sequence[Rollout],
    group_ids: Sequence[int],
    usable: Sequence[bool],
    samples: Sequence[Sequence[Sample]],
    num_groups: int,
    config: CreditConfig,
) -> jax.Array:
    """[R, K] with K rounded up, so that the compiled function meets few shapes."""
    width = max(8, -(-max((len(r.tree.leaves) for r in rollouts), default=1) // 8) * 8)
    potentials = np.zeros((len(rollouts), width), np.float32)
    mask = np.zeros((len(rollouts), width), bool)
    counts = np.zeros((len(rollouts), width), np.float32)
    rewards = np.zeros(len(rollouts), np.float32)
    for i, rollout in enumerate(rollouts):
        if not usable[i]:
            continue
        num_segments = len(rollout.tree.leaves)
        rewards[i] = rollout.reward
        potentials[i, :num_segments] = rollout.potentials[:num_segments]
        mask[i, :num_segments] = True
        counts[i, :num_segments] = segment_token_counts(samples[i], num_segments)
    return _compiled(
        rewards,
        np.asarray(group_ids, np.int32),
        np.asarray(usable),
        potentials,
        mask,
        counts,
        num_groups=num_groups,
        gamma=config.gamma,
        clip_offset=config.clip_offset,
        in_flat_groups=config.redistribute_in_zero_variance_groups,
    )


@partial(jax.jit, static_argnames=("num_groups", "gamma", "clip_offset", "in_flat_groups"))
def _compiled(
    rewards: jax.Array,
    group_ids: jax.Array,
    usable: jax.Array,
    potentials: jax.Array,
    mask: jax.Array,
    counts: jax.Array,
    *,
    num_groups: int,
    gamma: float,
    clip_offset: float,
    in_flat_groups: bool,
) -> jax.Array:
    of_rollout = group_advantages(rewards, group_ids, usable, num_groups=num_groups)
    of_segment = segment_advantages(of_rollout, potentials, mask, counts, gamma=gamma, clip_offset=clip_offset)
    if not in_flat_groups:
        highest = jax.ops.segment_max(jnp.where(usable, rewards, -jnp.inf), group_ids, num_groups)
        lowest = jax.ops.segment_min(jnp.where(usable, rewards, jnp.inf), group_ids, num_groups)
        of_segment = jnp.where((highest > lowest)[group_ids][:, None], of_segment, 0.0)
    return of_segment
