"""The token mixer of recurrent layers: short convolutions, unit-length keys, the gated delta rule; over a mesh.

With a mesh, a recurrence must see a row from its start. So where rows are cut over `sequence`, each device trades
its tokens of all heads for all tokens of some heads (as DeepSpeed-Ulysses does for attention, arXiv 2309.14509),
and back. Value heads must therefore be a multiple of tensor * sequence.
"""

from collections.abc import Callable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from wc_jax.mesh import TOKENS, on_each_device, spec
from wc_jax.policy.config import DeltaConfig
from wc_jax.policy.delta_rule import gated_delta_rule
from wc_jax.policy.short_conv import short_conv

MAX_TOKEN_HEADS = 2**17
"""Tokens times heads of one device that are worked on at once. The recurrence and its gradient take about 15 kB of
memory for each (with heads of 128), 2 GB in all; more heads than that take turns."""

Three = tuple[jax.Array, jax.Array, jax.Array]

_FEATURES, _COLUMNS, _CONV = spec(*TOKENS, "tensor"), spec(*TOKENS), spec("tensor", None)


def delta_mixer(
    qkv: Three,
    convs: Three,
    log_decay: jax.Array,
    beta: jax.Array,
    visible_until: jax.Array,
    predecessor: jax.Array,
    delta: DeltaConfig,
    chunk: int,
    mesh: Mesh | None,
) -> jax.Array:
    """[B, T, value_heads, value_dim]: what each token reads from its own path's state.

    Args:
        qkv: [B, T, heads * dim] each, before their convolutions.
        convs: their kernels, [heads * dim, width].
        log_decay, beta: [B, T, value_heads], float32, as `gated_delta_rule` takes them.
        visible_until, predecessor: [B, T], see `wc_jax.types.Batch`.
        chunk: tokens at a time. A row that is not laid out in such chunks comes out as NaN: its states would be
            those of other tokens.
    """
    local = partial(_local, delta=delta, chunk=chunk, mesh=mesh)
    places = ((_FEATURES,) * 3, (_CONV,) * 3, _FEATURES, _FEATURES, _COLUMNS, _COLUMNS)
    out = on_each_device(local, mesh, places, spec(*TOKENS, "tensor", None))
    return out(qkv, convs, log_decay, beta, visible_until, predecessor)


def _local(
    qkv: Three,
    convs: Three,
    log_decay: jax.Array,
    beta: jax.Array,
    visible_until: jax.Array,
    predecessor: jax.Array,
    *,
    delta: DeltaConfig,
    chunk: int,
    mesh: Mesh | None,
) -> jax.Array:
    """`delta_mixer` of this device's rows, columns and heads."""
    parts = 1 if mesh is None else mesh.shape["sequence"]
    dtype = qkv[2].dtype
    per_key = delta.value_heads // delta.key_heads
    if parts > 1:
        visible_until, predecessor = (_whole_row(x) for x in (visible_until, predecessor))
        log_decay, beta = _heads_for_tokens(log_decay), _heads_for_tokens(beta)

    def mixed(x: jax.Array, conv: jax.Array, dim: int, repeat: int) -> jax.Array:
        heads = x.shape[2] // dim
        x, conv = x.reshape(*x.shape[:2], heads, dim), conv.reshape(heads, dim, -1)
        if parts > 1:
            if heads % parts:
                # Too few key heads to trade: each value head takes its own copy along.
                x, conv, repeat = jnp.repeat(x, repeat, axis=2), jnp.repeat(conv, repeat, axis=0), 1
            x = _heads_for_tokens(x)
            conv = jax.lax.dynamic_slice_in_dim(conv, jax.lax.axis_index("sequence") * x.shape[2], x.shape[2])
        flat = short_conv(x.reshape(*x.shape[:2], -1), conv.reshape(-1, conv.shape[-1]), predecessor)
        return jnp.repeat(jax.nn.silu(flat.astype(jnp.float32)).reshape(x.shape), repeat, axis=2)

    q = _unit(mixed(qkv[0], convs[0], delta.key_dim, per_key))
    k = _unit(mixed(qkv[1], convs[1], delta.key_dim, per_key))
    v = mixed(qkv[2], convs[2], delta.value_dim, 1)
    rule = partial(gated_delta_rule, visible_until=visible_until, predecessor=predecessor, chunk=chunk)
    out = by_groups_of_heads(rule, (q, k, v, log_decay, beta), MAX_TOKEN_HEADS)
    out = jnp.where(_is_aligned(predecessor, chunk)[:, None, None, None], out, jnp.nan).astype(dtype)
    return out if parts == 1 else jax.lax.all_to_all(out, "sequence", split_axis=1, concat_axis=2, tiled=True)


def by_groups_of_heads(function: Callable, arrays: Sequence[jax.Array], limit: int) -> jax.Array:
    """`function` of arrays [B, T, N, ...], for so many heads at a time that tokens * heads stays below `limit`.

    The backward pass computes a group's intermediate values again, so that only one group's are in memory.
    """
    batch, length, heads = arrays[0].shape[:3]
    group = next(n for n in range(heads, 0, -1) if heads % n == 0 and (n == 1 or n * batch * length <= limit))
    if group == heads:
        return function(*arrays)

    def cut(x: jax.Array) -> jax.Array:
        return jnp.moveaxis(x.reshape(batch, length, -1, group, *x.shape[3:]), 2, 0)

    found = jax.lax.map(lambda some: jax.checkpoint(function)(*some), tuple(cut(x) for x in arrays))
    return jnp.moveaxis(found, 0, 2).reshape(batch, length, heads, *found.shape[4:])


def _heads_for_tokens(x: jax.Array) -> jax.Array:
    """[B, T / parts, N, ...] of this device -> [B, T, N / parts, ...]."""
    return jax.lax.all_to_all(x, "sequence", split_axis=2, concat_axis=1, tiled=True)


def _whole_row(x: jax.Array) -> jax.Array:
    return jax.lax.all_gather(x, "sequence", axis=1, tiled=True)


def _unit(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)


def _is_aligned(predecessor: jax.Array, chunk: int) -> jax.Array:
    """bool [B]: whether each token starts a path, follows the column before it or one of its own chunk, or is the first
    of a chunk and follows the last of another.
    """
    length = predecessor.shape[1]
    chunk = min(chunk, length)
    column = jnp.arange(length, dtype=jnp.int32)[None, :]
    near = (predecessor < 0) | (predecessor == column - 1) | (predecessor // chunk == column // chunk)
    return jnp.all(near | ((column % chunk == 0) & ((predecessor + 1) % chunk == 0)), axis=1)
