"""The loops of `logprob_loops` where the unembedding is cut over devices: over tiles first, in each over chunks.

A tile's columns are fetched whole when its turn comes, and the gradient of each tile is handed back summed before the
next one starts. So no device ever holds all of the unembedding, or all of its gradient.
"""

import jax
import jax.numpy as jnp

from wc_jax.logprob_loops import (
    Chunks,
    Loops,
    Online,
    PerToken,
    d_logits_of,
    given_chunk,
    look_at,
    nothing_seen,
    num_used,
    over_devices,
    over_tiles,
    per_token,
    product,
)
from wc_jax.mesh import PARTS


def _columns(unembed: jax.Array, first: jax.Array, size: int) -> jax.Array:
    """[D / parts, V / tensor] of this device -> [D, size]."""
    part = jax.lax.dynamic_slice(unembed, (0, first), (unembed.shape[0], size))
    return jax.lax.all_gather(part, PARTS, axis=0, tiled=True)


def forward(chunks: Chunks, unembed: jax.Array, loops: Loops) -> PerToken:
    """As `logprob_loops.forward`; `unembed` is this device's part, targets are counted from its first column."""
    used = num_used(chunks.mask)

    def step(first: jax.Array, size: int, found: Online) -> Online:
        columns = _columns(unembed, first, size)

        def work(i: jax.Array, found: Online) -> Online:
            # Behind the mask the state is replaced, not the result: a NaN there must not spread.
            hidden = jnp.where(chunks.mask[i][:, None], chunks.hidden[i], 0)
            seen = jax.tree.map(lambda x: x[i], found)
            seen = look_at(columns, hidden, chunks.targets[i], first, seen, loops.temperature)
            return jax.tree.map(lambda buffer, x: buffer.at[i].set(x), found, seen)

        # How many chunks a device works on is its own affair: nothing is exchanged in here.
        return jax.lax.fori_loop(0, used, work, found)

    seen = over_tiles(step, nothing_seen(chunks.mask.shape), unembed.shape[1], loops.tile)
    return per_token(over_devices(seen, "tensor"), chunks.mask)


def backward(
    chunks: Chunks, unembed: jax.Array, loops: Loops, saved: PerToken, up: jax.Array, down: jax.Array, trains_head: bool
) -> tuple[jax.Array, jax.Array | None]:
    """As `logprob_loops.backward`: this device's part of the states' gradient, to be summed over `tensor`, and of the
    unembedding's, summed already.
    """
    used = num_used(chunks.mask)

    def step(
        first: jax.Array, size: int, carry: tuple[jax.Array, jax.Array | None]
    ) -> tuple[jax.Array, jax.Array | None]:
        d_hidden, d_unembed = carry
        columns = _columns(unembed, first, size)

        def work(i: jax.Array, carry: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array | None]:
            d_hidden, d_columns = carry
            given = given_chunk(chunks, i, saved, up, down)
            d_logits = d_logits_of(columns, first, given, loops.temperature)
            d_hidden = d_hidden.at[i].add(product(d_logits, columns, 1, 1))
            if d_columns is not None:
                d_columns = d_columns + product(given.hidden, d_logits, 0, 0)
            return d_hidden, d_columns

        start = jnp.zeros(columns.shape, jnp.float32) if trains_head else None
        d_hidden, d_columns = jax.lax.fori_loop(0, used, work, (d_hidden, start))
        if d_columns is not None and d_unembed is not None:
            d_columns = jax.lax.psum_scatter(d_columns, PARTS, scatter_dimension=0, tiled=True)
            d_columns = jax.lax.psum(d_columns, "data")
            d_unembed = jax.lax.dynamic_update_slice(d_unembed, d_columns, (0, first))
        return d_hidden, d_unembed

    start = (
        jnp.zeros(chunks.hidden.shape, jnp.float32),
        jnp.zeros(unembed.shape, jnp.float32) if trains_head else None,
    )
    return over_tiles(step, start, unembed.shape[1], loops.tile)
