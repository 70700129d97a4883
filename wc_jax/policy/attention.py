"""Attention of each token over its own path: exact, and without a `T x T` array (see `attention_loops`).

With a mesh, each device holds whole heads, its own rows and its own part of each row's queries; it fetches
the keys and values of the whole row, which grouped heads keep small, and hands their gradients back summed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from wc_jax.mesh import TOKENS, on_each_device, spec
from wc_jax.policy.attention_loops import backward, forward
from wc_jax.shapes import Array, Float, Int

_HEADS, _COLUMNS = spec(*TOKENS, "tensor", None), spec(*TOKENS)


def _fill(x: jax.Array, block: int) -> jax.Array:
    """Up to whole blocks of tokens; axis 1 is the tokens'."""
    padding = -x.shape[1] % block
    return x if padding == 0 else jnp.pad(x, ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2))


def _group(x: jax.Array, kv_heads: int, block: int) -> jax.Array:
    """[B, T, N, H] -> [B*K, N/K, T', H]."""
    x = _fill(x, block)
    batch, length, heads, dim = x.shape
    x = x.reshape(batch, length, kv_heads, heads // kv_heads, dim).transpose(0, 2, 3, 1, 4)
    return x.reshape(batch * kv_heads, heads // kv_heads, length, dim)


def _ungroup(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The way back, to [B, T, N, H]."""
    batch, length, heads, dim = shape
    x = x.reshape(batch, -1, x.shape[1], x.shape[2], dim).transpose(0, 3, 1, 2, 4)
    return x.reshape(batch, -1, heads, dim)[:, :length]


def _keys(x: jax.Array, block: int) -> jax.Array:
    """[B, S, K, H] -> [B*K, S', H]."""
    return _group(x, x.shape[2], block)[:, 0]


def _whole_row(x: jax.Array, mesh: Mesh | None) -> jax.Array:
    return x if mesh is None else jax.lax.all_gather(x, "sequence", axis=1, tiled=True)


def _start(q: jax.Array, mesh: Mesh | None) -> jax.Array:
    """The row's column of this device's first query."""
    start = jnp.zeros((), jnp.int32)
    return start if mesh is None else jax.lax.axis_index("sequence").astype(jnp.int32) * q.shape[1]


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array, block: int, mesh: Mesh | None) -> jax.Array:
    return _attend_fwd(q, k, v, until, block, mesh)[0]


def _attend_fwd(q: Any, k: Any, v: Any, until: Any, block: int, mesh: Mesh | None) -> Any:
    def local(q: jax.Array, k: jax.Array, v: jax.Array, until: jax.Array) -> tuple[jax.Array, jax.Array]:
        k, v, until = (_whole_row(x, mesh) for x in (k, v, until))
        rows = _group(q, k.shape[2], block)
        scale = q.shape[3] ** -0.5
        out, lse = forward(rows, _keys(k, block), _keys(v, block), _fill(until, block), _start(q, mesh), scale, block)
        return _ungroup(out, q.shape), _ungroup(lse, (*q.shape[:3], 1))

    out, lse = on_each_device(local, mesh, (_HEADS, _HEADS, _HEADS, _COLUMNS), (_HEADS, _HEADS))(q, k, v, until)
    return out, (q, k, v, until, out, lse)


def _attend_bwd(block: int, mesh: Mesh | None, saved: Any, d_out: Any) -> Any:
    def local(q, k, v, until, out, lse, d_out):  # type: ignore[no-untyped-def]
        num_keys, kv_heads = k.shape[1], k.shape[2]
        k, v, until = (_whole_row(x, mesh) for x in (k, v, until))
        rows, outs, lses, d_outs = (_group(x, kv_heads, block) for x in (q, out, lse, d_out))
        scale = q.shape[3] ** -0.5
        d_q, d_k, d_v = backward(
            rows,
            _keys(k, block),
            _keys(v, block),
            _fill(until, block),
            _start(q, mesh),
            outs,
            lses,
            d_outs,
            scale,
            block,
        )
        d_k, d_v = (_ungroup(x[:, None], k.shape) for x in (d_k, d_v))
        if mesh is not None and k.shape[1] != num_keys:
            d_k, d_v = (jax.lax.psum_scatter(x, "sequence", scatter_dimension=1, tiled=True) for x in (d_k, d_v))
        return tuple(d.astype(x.dtype) for d, x in ((_ungroup(d_q, q.shape), q), (d_k, k), (d_v, v)))

    specs = (_HEADS, _HEADS, _HEADS, _COLUMNS, _HEADS, _HEADS, _HEADS)
    return (*on_each_device(local, mesh, specs, (_HEADS,) * 3)(*saved, d_out), None)


_attend.defvjp(_attend_fwd, _attend_bwd)


def path_attention(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T K H"],
    v: Float[Array, "B T K H"],
    visible_until: Int[Array, "B T"],
    *,
    block: int = 256,
    mesh: Mesh | None = None,
) -> Float[Array, "B T N H"]:
    """Softmax attention of query i over the keys j with j <= i < visible_until[j]; float32 softmax.

    Query head n reads key head n // (N / K). `block`: queries and keys at a time.
    """
    longest = q.shape[1] if mesh is None else q.shape[1] // mesh.shape["sequence"]
    return _attend(q, k, v, visible_until, min(block, -(-longest // 16) * 16), mesh)
