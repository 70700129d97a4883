"""Sums, counts and quotients under a mask, safe against NaN behind it.

The rule: what is masked is replaced *before* any function that could make it infinite. A `where` after
`log` or `exp` keeps NaN out of the value and lets it into the gradient.
"""

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Float, Shaped
from wc_jax.types import AnyArray


def safe(x: Shaped[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], fill: float) -> Float[Array, "*shape"]:
    """`x` where the mask is true, `fill` elsewhere; float32. No gradient reaches what is masked.

    >>> float(jnp.sum(jnp.log(safe(jnp.array([1.0, 0.0]), jnp.array([True, False]), 1.0))))
    0.0
    """
    x = jnp.asarray(x).astype(jnp.float32)
    return jnp.where(jnp.asarray(mask).astype(bool), x, jnp.full((), fill, jnp.float32))


def masked_sum(x: Shaped[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"]) -> Float[Array, ""]:
    """Sum over the true positions; 0 when there are none.

    >>> float(masked_sum(jnp.array([1.0, jnp.nan]), jnp.array([True, False])))
    1.0
    """
    return jnp.sum(safe(x, mask, 0.0))


def masked_count(mask: Shaped[AnyArray, "*shape"]) -> Float[Array, ""]:
    """How many positions are true. Counted in integers: float32 loses units above 2**24."""
    return jnp.sum(jnp.asarray(mask).astype(bool), dtype=jnp.int32).astype(jnp.float32)


def masked_max(x: Shaped[AnyArray, "*shape"], mask: Shaped[AnyArray, "*shape"], empty: float = 0.0) -> Float[Array, ""]:
    """Largest value at the true positions, but at least `empty`."""
    return jnp.max(safe(x, mask, empty), initial=empty)


def quotient(total: Shaped[AnyArray, "*shape"], count: Shaped[AnyArray, "*shape"]) -> Float[Array, "*shape"]:
    """total / count, and 0 where the count is 0. A fractional count is itself, never clamped to 1.

    >>> float(quotient(jnp.array(0.25), jnp.array(0.5))), float(quotient(jnp.array(0.0), jnp.array(0.0)))
    (0.5, 0.0)
    """
    total, count = (jnp.asarray(a).astype(jnp.float32) for a in (total, count))
    is_some = count > 0
    return jnp.where(is_some, total / jnp.where(is_some, count, 1.0), 0.0)


def all_finite(tree: dict[str, jax.Array]) -> jax.Array:
    """bool []: no NaN and no infinity anywhere."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
