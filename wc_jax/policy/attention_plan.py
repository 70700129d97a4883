"""Who sees whom in a row, in one or two numbers a token, and which blocks of a row therefore must meet."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

NEVER = jnp.iinfo(jnp.int32).max
"""`since` of a key that fills up a block."""


class Visible(NamedTuple):
    """Key j is visible to the queries i with since[j] <= i < until[j]."""

    until: jax.Array
    """int32 [B, S]."""
    since: jax.Array | None = None
    """int32 [B, S]; None: causal, since[j] = j."""


def blocks_that_meet(visible: Visible, num_queries: int, start: Any, q_block: int, k_block: int) -> jax.Array:
    """bool [B, Q, C]: may a query of this block (at columns start..) see a key of that one? Whole blocks only."""
    batch, num_keys = visible.until.shape
    first = start + jnp.arange(num_queries // q_block, dtype=jnp.int32)[None, :, None] * q_block
    reach = jnp.max(visible.until.reshape(batch, 1, -1, k_block), axis=3)
    if visible.since is None:
        low = jnp.arange(num_keys // k_block, dtype=jnp.int32)[None, None, :] * k_block
    else:
        low = jnp.min(visible.since.reshape(batch, 1, -1, k_block), axis=3)
    return (reach > first) & (low < first + q_block)
