"""The policy objective: per-token terms composed, masked and summed. It never divides."""

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.losses import KL_ESTIMATORS, clipped_surrogate, kl_k3, log_ratio, tis_weight
from wc_jax.masked import masked_count, masked_max, masked_sum, quotient, safe
from wc_jax.shapes import Array, Float, Shaped
from wc_jax.types import AnyArray, Stats

GAP_EDGES = np.geomspace(1e-7, 20.0, 64).astype(np.float32)
"""Nats; each is 1.35 times the one before. A quantile of the sampler gap is known to one such step."""


def policy_objective(
    logp: Shaped[AnyArray, "*shape"],
    old_logp: Shaped[AnyArray, "*shape"],
    advantage: Shaped[AnyArray, "*shape"],
    loss_mask: Shaped[AnyArray, "*shape"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    sampler_logp: Shaped[AnyArray, "*shape"] | None = None,
    tis_cap: float | None = None,
    ref_logp: Shaped[AnyArray, "*shape"] | None = None,
    kl_coef: float = 0.0,
    kl_estimator: str = "k3",
    entropy: Shaped[AnyArray, "*shape"] | None = None,
    entropy_coef: float = 0.0,
    dual_clip: float | None = None,
    token_weight: Shaped[AnyArray, "*shape"] | None = None,
    count_weight: Shaped[AnyArray, "*shape"] | None = None,
) -> tuple[Float[Array, ""], Float[Array, ""], Stats]:
    """`(loss_sum, token_count, stats)` over the trained tokens; the caller divides once, at the very end.

    Per token the term is TIS weight x clipped surrogate + kl_coef x KL estimate - entropy_coef x entropy
    (method.md section 3, WebCoder eq. 9). With `token_weight`, terms are multiplied by it; `token_count` is the
    sum of `count_weight`, by default that of `token_weight`, by default the number of trained tokens.
    `aggregation.sample_weights` gives both for the usual means. `tis_cap` needs `sampler_logp`, `kl_coef` needs
    `ref_logp`, `entropy_coef` needs `entropy`; without their option, these three are only measured. Anything may
    be NaN where the mask is false. All but `logp` and `entropy` are constants to the gradient.

    Raises:
        ValueError: an option without what it needs, out of its range, or an unknown `kl_estimator`.

    Two tokens with ratios 1.5 and 1; the first, of advantage 1, counts as 1.2, the second as -2:
    >>> logp, old_logp = jnp.log(jnp.array([0.6, 0.5])), jnp.log(jnp.array([0.4, 0.5]))
    >>> loss_sum, token_count, _ = policy_objective(logp, old_logp, jnp.array([1.0, -2.0]), jnp.array([True, True]))
    >>> round(float(loss_sum), 4), float(token_count)
    (0.8, 2.0)
    """
    _check_options(clip_low, clip_high, dual_clip, tis_cap, kl_coef, kl_estimator, entropy_coef)
    _check_arrays(tis_cap, sampler_logp, kl_coef, ref_logp, entropy_coef, entropy)
    mask = jnp.asarray(loss_mask).astype(bool)
    logp, old_logp, advantage = (safe(x, mask, 0.0) for x in (logp, old_logp, advantage))
    old_logp, advantage = jax.lax.stop_gradient((old_logp, advantage))
    loss = clipped_surrogate(logp, old_logp, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    sampler = old_logp if sampler_logp is None else safe(sampler_logp, mask, 0.0)
    if tis_cap is not None:
        loss = loss * tis_weight(old_logp, sampler, cap=tis_cap)
    ref_kl = jnp.zeros_like(loss)
    if ref_logp is not None:
        ref_kl = KL_ESTIMATORS[kl_estimator](logp, jax.lax.stop_gradient(safe(ref_logp, mask, 0.0)))
    if kl_coef:
        loss = loss + kl_coef * ref_kl
    entropies = jnp.zeros_like(loss) if entropy is None else safe(entropy, mask, 0.0)
    if entropy_coef:
        loss = loss - entropy_coef * entropies
    weight = jnp.ones_like(loss) if token_weight is None else jnp.asarray(token_weight).astype(jnp.float32)
    weight = safe(weight, mask, 0.0)
    loss_sum = jnp.sum(loss * weight)
    if count_weight is not None:
        token_count = masked_sum(count_weight, mask)
    else:
        token_count = masked_count(mask) if token_weight is None else jnp.sum(weight)
    is_sampled = jnp.zeros_like(mask) if sampler_logp is None else mask & jnp.isfinite(sampler)
    stats = _stats(
        logp,
        old_logp,
        advantage,
        mask,
        sampler,
        is_sampled,
        clip_low=clip_low,
        clip_high=clip_high,
        tis_cap=tis_cap,
    )
    stats = stats._replace(
        loss_sum=loss_sum,
        weight_sum=token_count,
        ref_kl_sum=masked_sum(ref_kl, mask),
        entropy_sum=masked_sum(entropies, mask),
    )
    return loss_sum, token_count, jax.lax.stop_gradient(stats)


def _check_options(
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    tis_cap: float | None,
    kl_coef: float,
    kl_estimator: str,
    entropy_coef: float,
) -> None:
    """Each option in its range. Written as `not (...)`, so that NaN is refused too."""
    if not 0.0 <= clip_low < 1.0:
        raise ValueError(f"clip_low must be in [0, 1), got {clip_low}; 0.2 is usual")
    if not clip_high >= 0.0:
        raise ValueError(f"clip_high must be 0 or more, got {clip_high}; 0.2 is usual")
    if dual_clip is not None and not dual_clip > 1.0:
        raise ValueError(f"dual_clip must be above 1, got {dual_clip}; 3 is usual, None is off")
    if tis_cap is not None and not tis_cap > 0.0:
        raise ValueError(f"tis_cap must be above 0, got {tis_cap}; 2 is usual, None is off")
    if kl_estimator not in KL_ESTIMATORS:
        raise ValueError(f"kl_estimator must be one of {', '.join(KL_ESTIMATORS)}, got {kl_estimator!r}")
    for name, value in (("kl_coef", kl_coef), ("entropy_coef", entropy_coef)):
        if not value >= 0.0:
            raise ValueError(f"{name} must be 0 or more, got {value}; 0 is off")


def _check_arrays(
    tis_cap: float | None,
    sampler_logp: object,
    kl_coef: float,
    ref_logp: object,
    entropy_coef: float,
    entropy: object,
) -> None:
    if tis_cap is not None and sampler_logp is None:
        raise ValueError("tis_cap is set but there is no sampler_logp to weight by")
    if kl_coef and ref_logp is None:
        raise ValueError("kl_coef is set but there is no ref_logp to stay close to")
    if entropy_coef and entropy is None:
        raise ValueError("entropy_coef is set but there is no entropy")


def _gap_counts(gap: jax.Array, is_known: jax.Array) -> jax.Array:
    """[65]: how many gaps lie above each edge and not above the next."""
    bins = jnp.searchsorted(GAP_EDGES, gap.reshape(-1))
    return jax.ops.segment_sum(is_known.reshape(-1).astype(jnp.float32), bins, GAP_EDGES.size + 1)


def _gap_quantile(counts: jax.Array, largest: jax.Array, share: float) -> jax.Array:
    """The upper edge of the bin that holds the quantile, at most `largest`; 0 without any gap."""
    reached = jnp.cumsum(counts) >= share * jnp.sum(counts)
    edges = jnp.append(GAP_EDGES, jnp.inf)
    return jnp.where(jnp.sum(counts) > 0, jnp.minimum(edges[jnp.argmax(reached)], largest), 0.0)


def _stats(
    logp: jax.Array,
    old_logp: jax.Array,
    advantage: jax.Array,
    mask: jax.Array,
    sampler: jax.Array,
    is_sampled: jax.Array,
    *,
    clip_low: float,
    clip_high: float,
    tis_cap: float | None,
) -> Stats:
    ratio = jnp.exp(log_ratio(logp, old_logp))
    gap = jnp.abs(old_logp - jnp.where(is_sampled, sampler, old_logp))
    zero = jnp.zeros((), jnp.float32)
    capped = zero
    if tis_cap is not None:
        capped = masked_count(is_sampled & (tis_weight(old_logp, sampler, cap=tis_cap) >= tis_cap))
    return Stats(
        num_tokens=masked_count(mask),
        loss_sum=zero,
        weight_sum=zero,
        ratio_sum=masked_sum(ratio, mask),
        ratio_max=masked_max(ratio, mask),
        clip_low_sum=masked_count(mask & (ratio < 1.0 - clip_low) & (advantage < 0)),
        clip_high_sum=masked_count(mask & (ratio > 1.0 + clip_high) & (advantage > 0)),
        kl_sum=masked_sum(kl_k3(old_logp, logp), mask),
        ref_kl_sum=zero,
        gap_sum=masked_sum(gap, is_sampled),
        gap_max=masked_max(gap, is_sampled),
        gap_counts=_gap_counts(gap, is_sampled),
        num_sampled=masked_count(is_sampled),
        tis_capped_sum=capped,
        advantage_abs_sum=masked_sum(jnp.abs(advantage), mask),
        advantage_abs_max=masked_max(jnp.abs(advantage), mask),
        entropy_sum=zero,
    )


def empty_stats() -> Stats:
    """Of no token at all; merging it changes nothing."""
    empty = Stats(*[jnp.zeros((), jnp.float32)] * len(Stats._fields))
    return empty._replace(gap_counts=jnp.zeros(GAP_EDGES.size + 1, jnp.float32))


def merge(a: Stats, b: Stats) -> Stats:
    """Stats of both batches together: sums add, maxima take the larger."""
    return Stats(
        *[jnp.maximum(x, y) if name.endswith("_max") else x + y for name, x, y in zip(Stats._fields, a, b, strict=True)]
    )


def summarize(stats: Stats) -> dict[str, jax.Array]:
    """The one place that divides: means, shares and maxima by name."""
    tokens, sampled = stats.num_tokens, stats.num_sampled
    return {
        "loss": quotient(stats.loss_sum, stats.weight_sum),
        "ratio_mean": quotient(stats.ratio_sum, tokens),
        "ratio_max": stats.ratio_max,
        "clip_low_share": quotient(stats.clip_low_sum, tokens),
        "clip_high_share": quotient(stats.clip_high_sum, tokens),
        "approx_kl": quotient(stats.kl_sum, tokens),
        "ref_kl": quotient(stats.ref_kl_sum, tokens),
        "sampler_gap_mean": quotient(stats.gap_sum, sampled),
        "sampler_gap_p99": _gap_quantile(stats.gap_counts, stats.gap_max, 0.99),
        "sampler_gap_max": stats.gap_max,
        "sampler_missing": tokens - sampled,
        "tis_capped_share": quotient(stats.tis_capped_sum, sampled),
        "advantage_abs_mean": quotient(stats.advantage_abs_sum, tokens),
        "advantage_abs_max": stats.advantage_abs_max,
        "entropy": quotient(stats.entropy_sum, tokens),
        "num_tokens": tokens,
    }
