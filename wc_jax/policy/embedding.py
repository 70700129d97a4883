"""Tokens to embeddings, where the table is cut over devices: nobody ever holds all of it.

Each device looks up its own columns, its own words, for the tokens of all devices that hold other columns, and trades
them for all columns of its own tokens. The backward pass is the way back, so that gradients are summed where they lie.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from wc_jax.mesh import PARTS, STATES, TOKENS, on_each_device, spec
from wc_jax.shapes import Array, Float, Int


def embed(
    table: Float[Array, "V D"], tokens: Int[Array, "B T"], dtype: jnp.dtype, mesh: Mesh | None
) -> Float[Array, "B T D"]:
    """table[tokens] in `dtype`. Its gradient is summed in the table's own dtype, also for tokens that are frequent."""
    local = partial(_local, dtype=dtype, mesh=mesh)
    return on_each_device(local, mesh, (spec("tensor", PARTS), spec(*TOKENS)), spec(*STATES))(table, tokens)


def _local(table: jax.Array, tokens: jax.Array, *, dtype: jnp.dtype, mesh: Mesh | None) -> jax.Array:
    if mesh is None:
        return table[tokens].astype(dtype)
    everybodys = jax.lax.all_gather(tokens, PARTS)
    word = everybodys - jax.lax.axis_index("tensor").astype(tokens.dtype) * table.shape[0]
    is_here = (word >= 0) & (word < table.shape[0])
    found = jnp.where(is_here[..., None], table[jnp.where(is_here, word, 0)], 0).astype(dtype)
    # Each word is on one device of `tensor`: the sum only adds zeros.
    found = jax.lax.psum(found, "tensor")
    return jax.lax.all_to_all(found, PARTS, split_axis=0, concat_axis=3, tiled=True)[0]
