"""Per-token terms of the objective, unreduced. Whoever sums them masks them; see `objective`."""

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Float, Shaped
from wc_jax.types import AnyArray

MAX_LOG_RATIO = 20.0
"""exp(20) = 5e8. Beyond it a ratio is no longer data, and an infinite one times a zero advantage is NaN."""


def log_ratio(logp: Shaped[AnyArray, "*shape"], old_logp: Shaped[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """logp - old_logp in float32, bounded to +-`MAX_LOG_RATIO`."""
    difference = jnp.asarray(logp).astype(jnp.float32) - jnp.asarray(old_logp).astype(jnp.float32)
    return jnp.clip(difference, -MAX_LOG_RATIO, MAX_LOG_RATIO)


def clipped_surrogate(
    logp: Shaped[AnyArray, "*shape"],
    old_logp: Shaped[AnyArray, "*shape"],
    advantage: Shaped[AnyArray, "*shape"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> Float[Array, "*shape"]:
    """-min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A): the term to minimize, per token.

    `dual_clip` (above 1) also bounds the term for negative advantages at dual_clip * |A|.

    >>> clipped_surrogate(jnp.log(jnp.array([1.5, 0.5])), jnp.zeros(2), jnp.array([1.0, -1.0])).tolist()
    [-1.2000000476837158, 0.800000011920929]
    """
    ratio = jnp.exp(log_ratio(logp, old_logp))
    advantage = jnp.asarray(advantage).astype(jnp.float32)
    term = jnp.minimum(ratio * advantage, jnp.clip(ratio, 1.0 - clip_low, 1.0 + clip_high) * advantage)
    if dual_clip is not None:
        term = jnp.where(advantage < 0, jnp.maximum(term, dual_clip * advantage), term)
    return -term


def tis_weight(
    old_logp: Shaped[AnyArray, "*shape"], sampler_logp: Shaped[AnyArray, "*shape"], *, cap: float = 2.0
) -> Float[Array, "*shape"]:
    """Truncated importance weight min(exp(old_logp - sampler_logp), cap); a constant to the gradient.

    1 where the sampler's log-probability is not finite.

    >>> tis_weight(jnp.array([-1.0, -1.0, -1.0]), jnp.array([-3.0, -1.0, jnp.nan])).tolist()
    [2.0, 1.0, 1.0]
    """
    sampler = jnp.asarray(sampler_logp).astype(jnp.float32)
    old = jnp.asarray(old_logp).astype(jnp.float32)
    is_known = jnp.isfinite(sampler)
    weight = jnp.minimum(jnp.exp(log_ratio(old, jnp.where(is_known, sampler, old))), cap)
    return jax.lax.stop_gradient(jnp.where(is_known, weight, 1.0))


def kl_k1(logp: Shaped[AnyArray, "*shape"], ref_logp: Shaped[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """logp - ref_logp: unbiased for KL(current || reference) on the current policy's tokens, of either sign.

    Its gradient per token is that of logp, whatever the reference: on those tokens its mean is 0, so as a penalty
    it is of little use.

    >>> float(kl_k1(jnp.array(-1.0), jnp.array(-3.0)))
    2.0
    """
    return jnp.asarray(logp).astype(jnp.float32) - jnp.asarray(ref_logp).astype(jnp.float32)


def kl_k2(logp: Shaped[AnyArray, "*shape"], ref_logp: Shaped[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """(logp - ref_logp)^2 / 2: biased as a value, never negative.

    Its gradient per token is (logp - ref_logp) times that of logp; on the current policy's tokens its mean is the
    gradient of KL(current || reference).

    >>> float(kl_k2(jnp.array(-1.0), jnp.array(-3.0)))
    2.0
    """
    return 0.5 * jnp.square(kl_k1(logp, ref_logp))


def kl_k3(logp: Shaped[AnyArray, "*shape"], ref_logp: Shaped[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """exp(d) - d - 1 with d = ref_logp - logp: unbiased for KL(current || reference) on the current policy's
    tokens, and never negative (Schulman, "Approximating KL divergence", 2020). d counts up to `MAX_LOG_RATIO`.

    Its gradient per token is (1 - exp(d)) times that of logp; on those tokens its mean is the gradient of
    KL(reference || current).

    >>> float(kl_k3(jnp.array(-1.0), jnp.array(-1.0)))
    0.0
    """
    # Bounded above only: where the policy is sure of what the reference excludes, -d must still pull it back.
    difference = jnp.minimum(-kl_k1(logp, ref_logp), MAX_LOG_RATIO)
    return jnp.expm1(difference) - difference


KL_ESTIMATORS = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
"""By name: (logp, ref_logp) -> nats per token."""
