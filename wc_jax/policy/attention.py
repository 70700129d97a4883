"""Attention of each token over what it may see: exact, and without a `T x T` array.

Rows are laid out depth first, so that one number a token tells who may see it: key j is visible to the queries
j..visible_until[j]-1. That covers packed samples, padding and trees of samples that share prefixes. Images see
themselves in both directions; a second number says where that begins.

The platform that a program is lowered for decides how it is computed: loops in JAX (`attention_loops`) on CPU, a
kernel on TPU (`attention_tpu`) and on NVIDIA's GPUs (`attention_gpu`). All give the same numbers, up to rounding.

With a mesh, each device holds whole heads, its own rows and its own part of each row's queries; it fetches
the keys and values of the whole row, which grouped heads keep small, and hands their gradients back summed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from wc_jax.mesh import ROWS, TOKENS, on_each_device, spec
from wc_jax.policy import attention_gpu, attention_loops, attention_tpu
from wc_jax.policy.attention_plan import NEVER, Rows, Visible
from wc_jax.shapes import Array, Float, Int

Form = Literal["auto", "loops", "kernel"]
"""auto: as the platform has it. loops: on every platform. kernel: on CPU too, where TPU's is interpreted (slowly)."""

_HEADS, _COLUMNS, _NUMBERS = spec(*TOKENS, "tensor", None), spec(*TOKENS), spec(ROWS, "tensor", "sequence")

_WIDTHS = (64, 128, 256)
"""Head widths of the kernels; others are filled up with zeros."""


class _How(NamedTuple):
    """One way to compute it."""

    forward: Callable
    backward: Callable
    block: int
    """Rows are filled up to a multiple of it."""
    width: int
    """Heads are filled up to it."""


class _Options(NamedTuple):
    """What is fixed when a call is traced."""

    block: int
    mesh: Mesh | None
    form: Form


def _fill(x: jax.Array, size: int, axis: int, value: int = 0) -> jax.Array:
    """Up to a multiple of `size` along `axis`."""
    padding = -x.shape[axis] % size
    widths = [(0, padding if n == axis else 0) for n in range(x.ndim)]
    return x if padding == 0 else jnp.pad(x, widths, constant_values=value)


def _group(x: jax.Array, kv_heads: int, how: _How) -> jax.Array:
    """[B, T, N, H] -> [B*K, N/K, T', H']."""
    x = _fill(_fill(x, how.width, 3), how.block, 1)
    batch, length, heads, dim = x.shape
    x = x.reshape(batch, length, kv_heads, heads // kv_heads, dim).transpose(0, 2, 3, 1, 4)
    return x.reshape(batch * kv_heads, heads // kv_heads, length, dim)


def _ungroup(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The way back, to [B, T, N, H]."""
    batch, length, heads, dim = shape
    x = x.reshape(batch, -1, *x.shape[1:]).transpose(0, 3, 1, 2, 4)
    return x.reshape(batch, -1, heads, x.shape[4])[:, :length, :, :dim]


def _rows(q: jax.Array, k: jax.Array, v: jax.Array, visible: Visible, start: jax.Array, how: _How) -> Rows:
    kv_heads = k.shape[2]
    # Nobody sees the keys that fill up a block.
    since = None if visible.since is None else _fill(visible.since, how.block, 1, NEVER)
    filled = Visible(_fill(visible.until, how.block, 1), since)
    keys, values = (_group(x, kv_heads, how)[:, 0] for x in (k, v))
    return Rows(_group(q, kv_heads, how), keys, values, filled, start)


def _whole_row(arrays: Any, mesh: Mesh | None) -> Any:
    return arrays if mesh is None else jax.lax.all_gather(arrays, "sequence", axis=1, tiled=True)


def _start(q: jax.Array, mesh: Mesh | None) -> jax.Array:
    """The row's column of this device's first query."""
    start = jnp.zeros((), jnp.int32)
    return start if mesh is None else jax.lax.axis_index("sequence").astype(jnp.int32) * q.shape[1]


def _forward(how: _How, q: jax.Array, k: jax.Array, v: jax.Array, visible: Visible, start: jax.Array) -> Any:
    """`(out, log-sum-exp)`: [B, T, N, H] and [B, N, T]."""
    out, lse = how.forward(_rows(q, k, v, visible, start, how), q.shape[3] ** -0.5, how.block)
    return _ungroup(out, q.shape), lse.reshape(q.shape[0], q.shape[2], -1)[:, :, : q.shape[1]]


def _backward(how: _How, q, k, v, visible, start, out, lse, d_out):  # type: ignore[no-untyped-def]
    """Gradients of q, in its type, and of k and v, in float32, which may yet be summed over devices."""
    rows = _rows(q, k, v, visible, start, how)
    outs, d_outs = (_group(x, k.shape[2], how) for x in (out, d_out))
    lses = _fill(lse, how.block, 2).reshape(outs.shape[:3])
    d_q, d_k, d_v = how.backward(rows, outs, lses, d_outs, q.shape[3] ** -0.5, how.block)
    return _ungroup(d_q, q.shape).astype(q.dtype), *(_ungroup(x[:, None], k.shape) for x in (d_k, d_v))


def _as_the_platform_has_it(work: Callable, options: _Options, *args: Any) -> Any:
    """`work(how, *args)`; args begin with queries [B, T, N, H] and keys [B, S, K, H]."""
    length, dim = args[0].shape[1], args[0].shape[3]
    loops = partial(work, _How(attention_loops.forward, attention_loops.backward, options.block, 1))
    width = next((width for width in _WIDTHS if dim <= width), None)
    if width is None and options.form == "kernel":
        raise ValueError(f"the kernels take heads of at most {_WIDTHS[-1]} numbers, got {dim}: use form='loops'")
    if width is None or options.form == "loops":
        return loops(*args)

    def kernel(of: Any, **how: Any) -> Callable:
        forward, backward = partial(of.forward, **how), partial(of.backward, **how)
        return partial(work, _How(forward, backward, of.fill_to(length), width))

    cpu = loops if options.form == "auto" else kernel(attention_tpu, interpret=True)
    tpu = kernel(attention_tpu) if attention_tpu.fits(args[0], args[1], width) else loops
    cuda = kernel(attention_gpu)
    return jax.lax.platform_dependent(*args, cpu=cpu, tpu=tpu, cuda=cuda, default=loops)


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def _attend(q: jax.Array, k: jax.Array, v: jax.Array, visible: Visible, options: _Options) -> jax.Array:
    return _attend_fwd(q, k, v, visible, options)[0]


def _attend_fwd(q: Any, k: Any, v: Any, visible: Visible, options: _Options) -> Any:
    mesh = options.mesh

    def local(q: jax.Array, k: jax.Array, v: jax.Array, visible: Visible) -> tuple[jax.Array, jax.Array]:
        k, v, visible = _whole_row((k, v, visible), mesh)
        return _as_the_platform_has_it(_forward, options, q, k, v, visible, _start(q, mesh))

    out, lse = on_each_device(local, mesh, (_HEADS, _HEADS, _HEADS, _COLUMNS), (_HEADS, _NUMBERS))(q, k, v, visible)
    return out, (q, k, v, visible, out, lse)


def _attend_bwd(options: _Options, saved: Any, d_out: Any) -> Any:
    mesh = options.mesh

    def local(q, k, v, visible, out, lse, d_out):  # type: ignore[no-untyped-def]
        num_keys = k.shape[1]
        k, v, visible = _whole_row((k, v, visible), mesh)
        args = (q, k, v, visible, _start(q, mesh), out, lse, d_out)
        d_q, d_k, d_v = _as_the_platform_has_it(_backward, options, *args)
        if mesh is not None and k.shape[1] != num_keys:
            d_k, d_v = (jax.lax.psum_scatter(x, "sequence", scatter_dimension=1, tiled=True) for x in (d_k, d_v))
        return tuple(d.astype(x.dtype) for d, x in ((d_q, q), (d_k, k), (d_v, v)))

    specs = (_HEADS, _HEADS, _HEADS, _COLUMNS, _HEADS, _NUMBERS, _HEADS)
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
    form: Form = "auto",
) -> Float[Array, "B T N H"]:
    """Softmax attention of query i over the keys j with visible_since[j] <= i < visible_until[j]; float32 softmax.

    `visible_since`: None is causal, visible_since[j] = j. Each query must see a key, itself say.
    Query head n reads key head n // (N / K). `block`: queries and keys at a time, in the loops.

    >>> q = jnp.zeros((1, 3, 1, 2))  # all scores are equal: the mean of the values that a token sees
    >>> v = jnp.array([1.0, 2.0, 6.0])[None, :, None, None] * jnp.ones((1, 3, 1, 2))
    >>> path_attention(q, q, v, jnp.array([[3, 2, 3]]))[0, :, 0, 0].tolist()
    [1.0, 1.5, 3.5]
    >>> path_attention(q, q, v, jnp.array([[2, 2, 3]]), jnp.array([[0, 0, 2]]))[0, :, 0, 0].tolist()
    [1.5, 1.5, 6.0]
    """
    longest = q.shape[1] if mesh is None else q.shape[1] // mesh.shape["sequence"]
    options = _Options(min(block, -(-longest // 16) * 16), mesh, form)
    return _attend(q, k, v, Visible(visible_until, visible_since), options)
