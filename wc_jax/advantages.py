"""Credit: rewards of a group and potentials at context boundaries -> one advantage per segment.

The formulas are WebCoder's eq. 5 to 7, in the reading of method.md section 2. All functions are pure, work under
jit, grad and vmap, and give 0 wherever there is nothing to say. Padding, of segments or of rollouts, changes no bit
of what real ones get.
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
    """(reward - mean) / (std + eps) over the valid rollouts of each group (WebCoder eq. 7); population std.

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
    # Safe input first: the root's slope at 0 is infinite, and the variance of tiny rewards underflows to 0.
    has_spread = has_signal & (variance > 0)
    std = jnp.where(has_spread, jnp.sqrt(jnp.where(has_spread, variance, 1.0)), 0.0)
    return jnp.where(is_valid & has_signal[group_ids], centered / (std[group_ids] + eps), 0.0)


def segment_returns(
    potentials: Shaped[AnyArray, "R K"], segment_mask: Shaped[AnyArray, "R K"], *, gamma: float = 0.995
) -> Float[Array, "R K"]:
    """Discounted sums of the shaping rewards r_k = gamma * potential[k+1] - potential[k], the last r being 0 (eq. 5).

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
    factors = jnp.full((mask.shape[1],), gamma, jnp.float32)
    _, powers = jax.lax.scan(_multiply, jnp.ones((), jnp.float32), factors)
    return jnp.where(use, powers[remaining] * last - values, 0.0)


def redistribute(
    returns: Shaped[AnyArray, "R K"], token_counts: Shaped[AnyArray, "R K"], *, clip_offset: float = 5.0
) -> Float[Array, "R K"]:
    """Offsets that move credit between the segments of a rollout: center, clip to +-clip_offset, center (eq. 6).

    Weights are the trained tokens, so that sum(token_counts * offset) = 0 in every rollout, to 1e-6 of
    sum(token_counts * |offset|). A segment with 0 tokens takes no part and gets 0. The second centering may
    leave an offset slightly outside the clip.

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
    total = _row_sums(counts)

    def center(x: jax.Array) -> jax.Array:
        return jnp.where(use, x - quotient(_row_sums(counts * x), total), 0.0)

    offsets = center(jnp.clip(center(values), -clip_offset, clip_offset))
    # Once more, for what float32 lost: one token against 60,000 leaves a sum of 2e-6 of its terms, not of 1e-6.
    return center(offsets)


def segment_advantages(
    rollout_advantages: Shaped[AnyArray, "R"],
    potentials: Shaped[AnyArray, "R K"],
    segment_mask: Shaped[AnyArray, "R K"],
    token_counts: Shaped[AnyArray, "R K"],
    *,
    gamma: float = 0.995,
    clip_offset: float = 5.0,
) -> Float[Array, "R K"]:
    """The rollout's advantage plus the segment's offset (eq. 6); 0 at padding.

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


def _row_sums(x: jax.Array) -> jax.Array:
    """[R, K] -> [R, 1], from left to right: `jnp.sum` adds in another order when K grows, padding or not."""
    return jax.lax.scan(_add, jnp.zeros(x.shape[:1], x.dtype), x.T)[0][:, None]


def _add(total: jax.Array, more: jax.Array) -> tuple[jax.Array, None]:
    return total + more, None


def _multiply(product: jax.Array, factor: jax.Array) -> tuple[jax.Array, jax.Array]:
    return product * factor, product
