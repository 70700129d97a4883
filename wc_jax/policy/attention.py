"""Attention of each token over what it may see: exact, and without a `T x T` array (see `attention_loops`).

Rows are laid out depth first, so that one number a token tells who may see it: key j is visible to the queries
j..visible_until[j]-1. That covers packed samples, padding and trees of samples that share prefixes. Images see
themselves in both directions; a second number says where that begins.

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
from wc_jax.policy.attention_plan import NEVER, Visible
from wc_jax.shapes import Array, Float, Int

_HEADS, _COLUMNS = spec(*TOKENS, "tensor", None), spec(*TOKENS)


def _fill(x: jax.Array, block: int, value: int = 0) -> jax.Array:
    """Up to whole blocks of tokens; axis 1 is the tokens'."""
    padding = -x.shape[1] % block
    widths = ((0, 0), (0, padding)) + ((0, 0),) * (x.ndim - 2)
    return x if padding == 0 else jnp.pad(x, widths, constant_values=value)


def _fill_visible(visible: Visible, block: int) -> Visible:
    """Nobody sees what fills up a block."""
    since = None if visible.since is None else _fill(visible.since, block, NEVER)
    return Visible(_fill(visible.until, block), since)


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


def _whole_row(arrays: Any, mesh: Mesh | None) -> Any:
    return arrays if mesh is None else jax.lax.all_gather(arrays, "sequence", axis=1, tiled=True)


def _start(q: jax.Array, mesh: Mesh | None) -> jax.Array:
    """The row's column of this device's first query."""
    start = jnp.zeros((), jnp.int32)
    return start if mesh is None else jax.lax.axis_index("sequence").astype(jnp.int32) * q.shape[1]


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, visible: Visible, block: int, mesh: Mesh | None) -> jax.Array:
    return _attend_fwd(q, k, v, visible, block, mesh)[0]


def _attend_fwd(q: Any, k: Any, v: Any, visible: Visible, block: int, mesh: Mesh | None) -> Any:
    def local(q: jax.Array, k: jax.Array, v: jax.Array, visible: Visible) -> tuple[jax.Array, jax.Array]:
        k, v, visible = _whole_row((k, v, visible), mesh)
        rows, keys, values = _group(q, k.shape[2], block), _keys(k, block), _keys(v, block)
        scale = q.shape[3] ** -0.5
        out, lse = forward(rows, keys, values, _fill_visible(visible, block), _start(q, mesh), scale, block)
        return _ungroup(out, q.shape), _ungroup(lse, (*q.shape[:3], 1))

    out, lse = on_each_device(local, mesh, (_HEADS, _HEADS, _HEADS, _COLUMNS), (_HEADS, _HEADS))(q, k, v, visible)
    return out, (q, k, v, visible, out, lse)


def _attend_bwd(block: int, mesh: Mesh | None, saved: Any, d_out: Any) -> Any:
    def local(q, k, v, visible, out, lse, d_out):  # type: ignore[no-untyped-def]
        num_keys, kv_heads = k.shape[1], k.shape[2]
        k, v, visible = _whole_row((k, v, visible), mesh)
        rows, outs, lses, d_outs = (_group(x, kv_heads, block) for x in (q, out, lse, d_out))
        keys, values, filled = _keys(k, block), _keys(v, block), _fill_visible(visible, block)
        scale = q.shape[3] ** -0.5
        d_q, d_k, d_v = backward(rows, keys, values, filled, _start(q, mesh), outs, lses, d_outs, scale, block)
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
    visible_since: Int[Array, "B T"] | None = None,
    *,
    block: int = 256,
    mesh: Mesh | None = None,
) -> Float[Array, "B T N H"]:
    """Softmax attention of query i over the keys j with visible_since[j] <= i < visible_until[j]; float32 softmax.

    `visible_since`: None is causal, visible_since[j] = j. Each query must see a key, itself say.
    Query head n reads key head n // (N / K). `block`: queries and keys at a time.

    >>> q = jnp.zeros((1, 3, 1, 2))  # all scores are equal: the mean of the values that a token sees
    >>> v = jnp.array([1.0, 2.0, 6.0])[None, :, None, None] * jnp.ones((1, 3, 1, 2))
    >>> path_attention(q, q, v, jnp.array([[3, 2, 3]]))[0, :, 0, 0].tolist()
    [1.0, 1.5, 3.5]
    >>> path_attention(q, q, v, jnp.array([[2, 2, 3]]), jnp.array([[0, 0, 2]]))[0, :, 0, 0].tolist()
    [1.5, 1.5, 6.0]
    """
    longest = q.shape[1] if mesh is None else q.shape[1] // mesh.shape["sequence"]
    visible = Visible(visible_until, visible_since)
    return _attend(q, k, v, visible, min(block, -(-longest // 16) * 16), mesh)
