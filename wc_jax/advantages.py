"""Credit: rewards of a group and potentials at context boundaries -> one advantage per segment.

All functions are pure, work under jit, grad and vmap, and give 0 wherever there is nothing to say.
"""

import jax
import jax.numpy as jnp

from wc_jax.masked import quotient, safe
from wc_jax.shapes import Array, Float, Shaped
from wc_jax.types import AnyArray


def group_advantages(
    rewards: Shaped[AnyArray, "R"],
    group_ids: Shaped[AnyArray, "R"],
    valid: Shaped[AnyArray, "R"] | None = None,
    *,
    num_groups: int,
    eps: float = 1e-6,
) -> Float[Array, "R"]:
    """(reward - mean) / (std + eps) over the valid rollouts of each group; population std.

    Exactly 0 for an invalid rollout (whose reward may be NaN), for a group with fewer than two valid
    rollouts, and for a group whose rewards are all equal. `group_ids` are in [0, num_groups).

    >>> [round(float(a), 3) for a in group_advantages(jnp.array([1.0, 0.0, 0.1, 0.1]), jnp.array([0, 0, 1, 1]),
    ...                                               num_groups=2)]
    [1.0, -1.0, 0.0, 0.0]
    """
    group_ids = jnp.asarray(group_ids).astype(jnp.int32)
    is_valid = jnp.ones(group_ids.shape, bool) if valid is None else jnp.asarray(valid).astype(bool)
    rewards = safe(rewards, is_valid, 0.0)

    def per_group(x: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(jnp.where(is_valid, x, 0.0), group_ids, num_groups)

    count = per_group(jnp.ones_like(rewards))
    centered = rewards - quotient(per_group(rewards), count)[group_ids]
    variance = quotient(per_group(centered * centered), count)
    # The spread decides, not the std: 0.1 three times has a std above 0 in float32.
    highest = jax.ops.segment_max(jnp.where(is_valid, rewards, -jnp.inf), group_ids, num_groups)
    lowest = jax.ops.segment_min(jnp.where(is_valid, rewards, jnp.inf), group_ids, num_groups)
    has_signal = (highest > lowest) & (count >= 2)
    # Safe input first: the root's slope at 0 is infinite.
    std = jnp.sqrt(jnp.where(has_signal, variance, 1.0))
    return jnp.where(is_valid & has_signal[group_ids], centered / (std[group_ids] + eps), 0.0)


def segment_returns(
    potentials: Shaped[AnyArray, "R K"], segment_mask: Shaped[AnyArray, "R K"], *, gamma: float = 0.995
) -> Float[Array, "R K"]:
    """Discounted sums of the shaping rewards r_k = gamma * potential[k+1] - potential[k], the last r being 0.

    The sum telescopes: for a rollout of n segments it is gamma**(n-1-k) * potential[n-1] - potential[k].
    0 at padding, and in every segment of a rollout with a missing (NaN) potential at a real segment.

    >>> segment_returns(jnp.array([[0.0, 0.5, 1.0]]), jnp.ones((1, 3), bool), gamma=0.5).tolist()
    [[0.25, 0.0, 0.0]]
    """
    mask = jnp.asarray(segment_mask).astype(bool)
    potentials = jnp.asarray(potentials).astype(jnp.float32)
    is_known = jnp.all(jnp.isfinite(potentials) | ~mask, axis=1, keepdims=True)
    use = mask & is_known
    values = safe(potentials, use, 0.0)
    num_segments = jnp.sum(mask, axis=1, keepdims=True, dtype=jnp.int32)
    last = jnp.take_along_axis(values, jnp.maximum(num_segments - 1, 0), axis=1)
    remaining = jnp.maximum(num_segments - 1 - jnp.arange(mask.shape[1], dtype=jnp.int32)[None, :], 0)
    # Multiplied out instead of a power: gamma = 0 and gamma = 1 stay exact, and no gradient meets log(0).
    powers = jnp.concatenate([jnp.ones((1,)), jnp.cumprod(jnp.full((max(mask.shape[1] - 1, 0),), gamma))])
    return jnp.where(use, powers.astype(jnp.float32)[remaining] * last - values, 0.0)


def redistribute(
    returns: Shaped[AnyArray, "R K"], token_counts: Shaped[AnyArray, "R K"], *, clip_offset: float = 5.0
) -> Float[Array, "R K"]:
    """Offsets that move credit between the segments of a rollout: center, clip to +-clip_offset, center.

    Weights are the trained tokens, so that sum(token_counts * offset) = 0 in every rollout. A segment with
    0 tokens takes no part and gets 0. The second centering may leave an offset slightly outside the clip.

    >>> redistribute(jnp.array([[1.0, 0.0]]), jnp.array([[1.0, 3.0]])).tolist()
    [[0.75, -0.25]]
    """
    counts = jnp.asarray(token_counts).astype(jnp.float32)
    use = counts > 0
    counts = jnp.where(use, counts, 0.0)
    values = safe(returns, use, 0.0)
    # Measured from one of the rollout's own values: equal returns, or a single segment, give exactly 0.
    first = jnp.argmax(use, axis=1, keepdims=True)
    values = jnp.where(use, values - jnp.take_along_axis(values, first, axis=1), 0.0)
    total = jnp.sum(counts, axis=1, keepdims=True)

    def center(x: jax.Array) -> jax.Array:
        return jnp.where(use, x - quotient(jnp.sum(counts * x, axis=1, keepdims=True), total), 0.0)

    return center(jnp.clip(center(values), -clip_offset, clip_offset))


def segment_advantages(
    rollout_advantages: Shaped[AnyArray, "R"],
    potentials: Shaped[AnyArray, "R K"],
    segment_mask: Shaped[AnyArray, "R K"],
    token_counts: Shaped[AnyArray, "R K"],
    *,
    gamma: float = 0.995,
    clip_offset: float = 5.0,
) -> Float[Array, "R K"]:
    """The rollout's advantage plus the segment's offset; 0 at padding.

    `potentials[r, k]` is the potential at the boundary that opens segment k; NaN means missing, and then the
    whole rollout falls back to its plain advantage in every segment. `segment_mask` marks real segments,
    left-aligned. `token_counts` are trained tokens: 0 for a segment that was not selected, which then has no
    part in the centering.

    >>> segment_advantages(jnp.array([1.0]), jnp.array([[0.0, 1.0]]), jnp.ones((1, 2), bool), jnp.array([[1, 1]]),
    ...                    gamma=1.0).tolist()
    [[1.5, 0.5]]
    """
    mask = jnp.asarray(segment_mask).astype(bool)
    counts = safe(token_counts, mask, 0.0)
    returns = segment_returns(potentials, mask, gamma=gamma)
    offsets = redistribute(returns, counts, clip_offset=clip_offset)
    broadcast = jnp.asarray(rollout_advantages).astype(jnp.float32)[:, None]
    return jnp.where(mask, broadcast + offsets, 0.0)
