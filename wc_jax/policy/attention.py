"""Causal attention within segments, in blocks of queries, with its own backward pass.

No `T x T` array exists for a whole row: one block of queries sees only the keys up to its end, and the
backward pass recomputes the block's weights from the saved log-sum-exp. All matrix products are batched
over `B*K` with the contraction innermost: the only form that XLA's CPU backend runs at full speed
(grouped query heads are folded into the query axis, so keys are never repeated).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_MASKED = -1e30  # finite, so that a fully masked score never makes inf - inf


def _blocks(num_tokens: int, block: int) -> list[tuple[int, int]]:
    return [(start, min(start + block, num_tokens)) for start in range(0, num_tokens, block)]


def _matmul(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot_general(a, b, (((2,), (1,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def _matmul_t(a: jax.Array, b: jax.Array) -> jax.Array:
    return jax.lax.dot_general(a, b, (((2,), (2,)), ((0,), (0,))), preferred_element_type=jnp.float32)


def _swap(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, 1, 2)


def _scores(q: jax.Array, k: jax.Array, segment_ids: jax.Array, start: int, stop: int, scale: float) -> jax.Array:
    """[B*K, G*block, stop]: masked scores of queries start..stop against keys 0..stop."""
    batch, groups, block = segment_ids.shape[0], q.shape[1], stop - start
    rows = q[:, :, start:stop].reshape(q.shape[0], groups * block, q.shape[3])
    scores = _matmul_t(rows, k[:, :stop]) * scale
    causal = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None, :]
    same = segment_ids[:, start:stop, None] == segment_ids[:, None, :stop]
    seen = (causal[None] & same)[:, None, None]
    scores = scores.reshape(batch, -1, groups, block, stop)
    return jnp.where(seen, scores, _MASKED).reshape(q.shape[0], groups * block, stop)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, segment_ids: jax.Array, scale: float, block: int) -> jax.Array:
    return _attend_fwd(q, k, v, segment_ids, scale, block)[0]


def _attend_fwd(q, k, v, segment_ids, scale, block):  # type: ignore[no-untyped-def]
    outs, lses = [], []
    for start, stop in _blocks(q.shape[2], block):
        scores = _scores(q, k, segment_ids, start, stop, scale)
        top = jnp.max(scores, axis=-1, keepdims=True)
        weights = jnp.exp(scores - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        out = _matmul(weights.astype(v.dtype), v[:, :stop]) / total
        outs.append(out.reshape(q.shape[0], q.shape[1], stop - start, -1))
        lses.append(top + jnp.log(total))
    out = jnp.concatenate(outs, axis=2).astype(q.dtype)
    return out, (q, k, v, segment_ids, out, lses)


def _attend_bwd(scale, block, saved, d_out):  # type: ignore[no-untyped-def]
    q, k, v, segment_ids, out, lses = saved
    merged, groups, length, dim = q.shape
    d_q: list[jax.Array] = []
    d_k = jnp.zeros((merged, dim, length), jnp.float32)
    d_v = jnp.zeros((merged, dim, length), jnp.float32)
    inner = jnp.sum(d_out.astype(jnp.float32) * out.astype(jnp.float32), axis=-1)
    for (start, stop), lse in zip(_blocks(length, block), lses, strict=True):
        flat = (merged, groups * (stop - start), dim)
        rows, d_rows = q[:, :, start:stop].reshape(flat), d_out[:, :, start:stop].reshape(flat)
        weights = jnp.exp(_scores(q, k, segment_ids, start, stop, scale) - lse)
        d_weights = _matmul_t(d_rows, v[:, :stop])
        d_scores = weights * (d_weights - inner[:, :, start:stop].reshape(merged, -1, 1)) * scale
        d_scores = d_scores.astype(q.dtype)
        d_q.append(_matmul(d_scores, k[:, :stop]).reshape(merged, groups, stop - start, dim))
        # Transposed results: the small factor is turned around, the big one stays as it lies.
        d_v = d_v.at[:, :, :stop].add(_matmul(_swap(d_rows), weights.astype(v.dtype)))
        d_k = d_k.at[:, :, :stop].add(_matmul(_swap(rows), d_scores))
    return jnp.concatenate(d_q, axis=2).astype(q.dtype), _swap(d_k).astype(k.dtype), _swap(d_v).astype(v.dtype), None


_attend.defvjp(_attend_fwd, _attend_bwd)


def segment_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    segment_ids: Int[Array, "B T"],
    *,
    block: int = 256,
) -> Float[Array, "B T N H"]:
    """Softmax attention of each token over the earlier tokens of its own segment; float32 softmax.

    Padding (segment 0) attends to padding: its output is finite and meets nothing that is trained.
    """
    batch, length, heads, dim = q.shape
    kv_heads = k.shape[2]
    groups = heads // kv_heads
    q = q.reshape(batch, length, kv_heads, groups, dim).transpose(0, 2, 3, 1, 4)
    k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)
    merged = batch * kv_heads
    out = _attend(
        q.reshape(merged, groups, length, dim),
        k.reshape(merged, length, dim),
        v.reshape(merged, length, dim),
        segment_ids,
        dim**-0.5,
        block,
    )
    out = out.reshape(batch, kv_heads, groups, length, dim).transpose(0, 3, 1, 2, 4)
    return out.reshape(batch, length, heads, dim)
