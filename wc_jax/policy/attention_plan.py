"""Who sees whom in a row, in two numbers a token, and which blocks of a row therefore must meet."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

NEVER = jnp.iinfo(jnp.int32).max
"""`since` of a key that fills up a block."""

MASKED = -1e30
"""Score of a key that is not seen: finite, so that a fully masked row of scores never makes inf - inf."""


class Visible(NamedTuple):
    """Key j is visible to the queries i with since[j] <= i < until[j]."""

    until: jax.Array
    """int32 [B, S]."""
    since: jax.Array | None = None
    """int32 [B, S]; None: causal, since[j] = j."""

    def spelled_out(self) -> tuple[jax.Array, jax.Array]:
        """`(since, until)`, both as arrays."""
        if self.since is not None:
            return self.since, self.until
        return jnp.broadcast_to(jnp.arange(self.until.shape[1], dtype=jnp.int32), self.until.shape), self.until


class Rows(NamedTuple):
    """What the loops and the kernels work on: query heads grouped by the key head they read, whole blocks of tokens."""

    q: jax.Array
    """[B*K, N/K, T, H]."""
    k: jax.Array
    """[B*K, S, H]."""
    v: jax.Array
    """[B*K, S, H]."""
    visible: Visible
    start: Any
    """int32 []: the row's column of the first query."""


class Meetings(NamedTuple):
    """Which blocks each block must meet."""

    partner: jax.Array
    """int32 [B, blocks, partners]: for each block first those it must meet, in order; then the last of them again,
    so that nothing new is fetched for them."""
    num: jax.Array
    """int32 [B, blocks]: how many it must meet."""


def blocks_that_meet(rows: Rows, q_block: int, k_block: int) -> jax.Array:
    """bool [B, Q, C]: may a query of this block see a key of that one?

    >>> q, k = jnp.zeros((1, 1, 8, 2)), jnp.zeros((1, 8, 2))
    >>> two_samples = Visible(jnp.array([[4, 4, 4, 4, 8, 8, 8, 8]]))
    >>> blocks_that_meet(Rows(q, k, k, two_samples, 0), 2, 4).astype(int).tolist()
    [[[1, 0], [1, 0], [0, 1], [0, 1]]]
    """
    visible, num_blocks = rows.visible, rows.q.shape[2] // q_block
    batch, num_keys = visible.until.shape
    first = rows.start + jnp.arange(num_blocks, dtype=jnp.int32)[None, :, None] * q_block
    reach = jnp.max(visible.until.reshape(batch, 1, -1, k_block), axis=3)
    if visible.since is None:
        low = jnp.arange(num_keys // k_block, dtype=jnp.int32)[None, None, :] * k_block
    else:
        low = jnp.min(visible.since.reshape(batch, 1, -1, k_block), axis=3)
    return (reach > first) & (low < first + q_block)


def meetings(needed: jax.Array) -> Meetings:
    """From bool [B, blocks, partners].

    >>> found = meetings(jnp.array([[[False, True, True], [True, False, False]]]))
    >>> found.partner.tolist(), found.num.tolist()
    ([[[1, 2, 2], [0, 0, 0]]], [[2, 1]])
    """
    num = jnp.sum(needed, axis=2, dtype=jnp.int32)
    order = jnp.argsort(~needed, axis=2, stable=True).astype(jnp.int32)
    last = jnp.maximum(num[:, :, None] - 1, 0)
    place = jnp.minimum(jnp.arange(needed.shape[2], dtype=jnp.int32)[None, None, :], last)
    return Meetings(jnp.take_along_axis(order, place, axis=2), num)


def weighted_sum(out: jax.Array, d_out: jax.Array) -> jax.Array:
    """What the gradient of a softmax subtracts from each weight's: d_out . out, float32, without the last axis."""
    return jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)


def product(a: Any, b: Any, contract: tuple[int, int]) -> jax.Array:
    """Of two matrices within a kernel, contracting axis `contract[0]` of `a` with `contract[1]` of `b`; float32 sums.

    float32 factors are multiplied as float32: chips would by default round them to fewer bits.
    """
    precision = jax.lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    dimensions = (((contract[0],), (contract[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)
