"""The loops behind `path_attention`: over blocks of queries, and for each over the blocks of keys it needs.

Two numbers a token tell who may see it (`attention_plan.Visible`). No `T x T` array exists: a block of queries
meets one block of keys at a time, blocks that nothing sees are never touched, and the backward pass recomputes
the weights from the saved log-sum-exp. All matrix products are batched over `B*K` with the contraction
innermost: the form that XLA's CPU backend runs at full speed (grouped query heads are folded into the query
axis, so keys are never repeated).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wc_jax.policy.attention_plan import MASKED, Rows, Visible, blocks_that_meet, weighted_sum


class _Plan(NamedTuple):
    """Which blocks of keys each block of queries must meet."""

    order: jax.Array
    """int32 [Q, C]: key blocks, those needed first, the nearest of them first (its diagonal sets the maximum)."""
    num_needed: jax.Array
    """int32 [Q]: how many of them are needed."""


def _plan(rows: Rows, block: int) -> _Plan:
    needed = jnp.any(blocks_that_meet(rows, block, block), axis=0)
    num_blocks = needed.shape[1]
    key_block = jnp.arange(num_blocks, dtype=jnp.int32)[None, :]
    order = jnp.argsort(jnp.where(needed, -key_block, num_blocks), axis=1).astype(jnp.int32)
    return _Plan(order, jnp.sum(needed, axis=1, dtype=jnp.int32))


def _product(a: jax.Array, b: jax.Array, contract: int) -> jax.Array:
    """Batched over axis 0, contracting the last axis of `a` with axis `contract` of `b`; float32 sums."""

    def plain(a: jax.Array, b: jax.Array) -> jax.Array:
        return jax.lax.dot_general(a, b, (((2,), (contract,)), ((0,), (0,))), preferred_element_type=jnp.float32)

    if a.dtype == jnp.float32:
        return plain(a, b)
    # XLA's CPU backend has no batched product of bfloat16 with float32 sums.
    return jax.lax.platform_dependent(
        a, b, cpu=lambda a, b: plain(a.astype(jnp.float32), b.astype(jnp.float32)), default=plain
    )


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return _product(a, b, 1)


def _matmul_t(a: jax.Array, b: jax.Array) -> jax.Array:
    return _product(a, b, 2)


def _cut(x: jax.Array, index: jax.Array, size: int, axis: int) -> jax.Array:
    return jax.lax.dynamic_slice_in_dim(x, index * size, size, axis)


def _scores(
    rows: jax.Array, keys: jax.Array, visible: Visible, first: Any, key_start: jax.Array, scale: float
) -> jax.Array:
    """[B*K, G*q, c]: masked scores of one block of queries against one block of keys; visible: of these keys."""
    batch, size = visible.until.shape
    block = keys.shape[1]
    groups = rows.shape[1] // block
    query = first + jnp.arange(block, dtype=jnp.int32)
    if visible.since is None:
        key = key_start + jnp.arange(size, dtype=jnp.int32)
        begun = (key[None, :] <= query[:, None])[None]
    else:
        begun = visible.since[:, None, :] <= query[None, :, None]
    seen = begun & (query[None, :, None] < visible.until[:, None, :])
    scores = (_matmul_t(rows, keys) * scale).reshape(batch, -1, groups, block, size)
    return jnp.where(seen[:, None, None], scores, MASKED).reshape(rows.shape[0], groups * block, size)


def forward(rows: Rows, scale: float, block: int) -> tuple[jax.Array, jax.Array]:
    """`(out, log-sum-exp)`: [B*K, G, T, H] and float32 [B*K, G, T]; T and S are multiples of `block`."""
    q, k, v, visible, start = rows
    merged, groups, length, dim = q.shape
    plan = _plan(rows, block)
    flat = (merged, groups * block)

    def queries(i: jax.Array, out: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        some_q = _cut(q, i, block, 2).reshape(*flat, dim)

        def keys(j: jax.Array, carry: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            acc, top, total = carry
            c = plan.order[i, j]
            these = jax.tree.map(lambda x: _cut(x, c, block, 1), visible)
            scores = _scores(some_q, _cut(k, c, block, 1), these, start + i * block, c * block, scale)
            higher = jnp.maximum(top, jnp.max(scores, axis=-1, keepdims=True))
            weights = jnp.exp(scores - higher)
            shrink = jnp.exp(top - higher)
            total = total * shrink + jnp.sum(weights, axis=-1, keepdims=True)
            acc = acc * shrink + _matmul(weights.astype(v.dtype), _cut(v, c, block, 1))
            return acc, higher, total

        empty = (
            jnp.zeros((*flat, dim), jnp.float32),
            jnp.full((*flat, 1), MASKED, jnp.float32),
            jnp.zeros((*flat, 1), jnp.float32),
        )
        acc, top, total = jax.lax.fori_loop(0, plan.num_needed[i], keys, empty)
        outs, lses = out
        found = (acc / total).astype(q.dtype).reshape(merged, groups, block, dim)
        lse = (top + jnp.log(total)).reshape(merged, groups, block, 1)
        return (
            jax.lax.dynamic_update_slice_in_dim(outs, found, i * block, 2),
            jax.lax.dynamic_update_slice_in_dim(lses, lse, i * block, 2),
        )

    start_out = (jnp.zeros(q.shape, q.dtype), jnp.zeros((merged, groups, length, 1), jnp.float32))
    out, lse = jax.lax.fori_loop(0, length // block, queries, start_out)
    return out, lse[..., 0]


def backward(
    rows: Rows, out: jax.Array, lse: jax.Array, d_out: jax.Array, scale: float, block: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, k and v; float32."""
    q, k, v, visible, start = rows
    merged, groups, length, dim = q.shape
    plan = _plan(rows, block)
    flat = (merged, groups * block)
    inner = weighted_sum(out, d_out)

    def queries(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        d_q, d_k, d_v = carry
        some_q, d_some = (_cut(x, i, block, 2).reshape(*flat, dim) for x in (q, d_out))
        some_lse, some_inner = (_cut(x, i, block, 2).reshape(*flat, 1) for x in (lse, inner))
        some_q_t, d_some_t = jnp.swapaxes(some_q, 1, 2), jnp.swapaxes(d_some, 1, 2)

        def keys(j: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            d_some_q, d_k, d_v = carry
            c = plan.order[i, j]
            some_k, some_v = _cut(k, c, block, 1), _cut(v, c, block, 1)
            these = jax.tree.map(lambda x: _cut(x, c, block, 1), visible)
            scores = _scores(some_q, some_k, these, start + i * block, c * block, scale)
            weights = jnp.exp(scores - some_lse)
            d_scores = (weights * (_matmul_t(d_some, some_v) - some_inner) * scale).astype(q.dtype)
            d_some_q = d_some_q + _matmul(d_scores, some_k)
            # Transposed results: the small factor is turned around, the big one stays as it lies.
            more_k = _cut(d_k, c, block, 2) + _matmul(some_q_t, d_scores)
            more_v = _cut(d_v, c, block, 2) + _matmul(d_some_t, weights.astype(v.dtype))
            d_k = jax.lax.dynamic_update_slice_in_dim(d_k, more_k, c * block, 2)
            d_v = jax.lax.dynamic_update_slice_in_dim(d_v, more_v, c * block, 2)
            return d_some_q, d_k, d_v

        nothing = jnp.zeros((*flat, dim), jnp.float32)
        d_some_q, d_k, d_v = jax.lax.fori_loop(0, plan.num_needed[i], keys, (nothing, d_k, d_v))
        d_some_q = d_some_q.reshape(merged, groups, block, dim)
        return jax.lax.dynamic_update_slice_in_dim(d_q, d_some_q, i * block, 2), d_k, d_v

    zeros = jnp.zeros((merged, dim, k.shape[1]), jnp.float32)
    d_q, d_k, d_v = jax.lax.fori_loop(0, length // block, queries, (jnp.zeros(q.shape, jnp.float32), zeros, zeros))
    return d_q, jnp.swapaxes(d_k, 1, 2), jnp.swapaxes(d_v, 1, 2)
