"""Attention's kernels for NVIDIA GPUs (Pallas, Triton): FlashAttention-2 (arXiv 2307.08691) over rows that hold trees.

cuDNN's fused attention knows causal and packed rows, not trees: there key j is seen up to `until[j]`, which is data.
Blocks of 128 tokens that must meet are listed beforehand (`Meetings`); a program reads its list and touches no other.

- Forward: a program holds some queries of one head and goes over the keys they meet, with the running maximum and sum
  of the softmax. Saved is the log-sum-exp, one float32 a query and head.
- Backward: the weights again from the log-sum-exp; one kernel for the queries' gradient, of the same form; in one for
  the keys' and values', a program holds some keys and goes over the queries, of all heads that read them.

How many tokens a program holds, and how many it meets at a time, is chosen so that on an H100 nothing in bfloat16
spills out of registers and shared memory suffices on an A100 too. They were compiled for both, and not yet timed.
Beyond arguments and results, only the lists are in memory: 4 * (T / 128)^2 bytes a row (1 MiB at T = 65,536).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from wc_jax.policy.attention_plan import MASKED, Rows, blocks_that_meet, meetings, product, weighted_sum

_LISTED = 128
"""Tokens of a block in the lists."""


class _Sizes(NamedTuple):
    """Of one call."""

    kv_heads: int
    groups: int
    length: int
    num_keys: int
    dim: int
    scale: float
    held: int
    """Tokens that a program holds."""
    met: int
    """Tokens that it meets at a time."""
    warps: int
    stages: int
    """Steps that are fetched ahead."""


def fill_to(longest: int) -> int:
    """Rows are filled up to a multiple of this."""
    return _LISTED


def _sizes(rows: Rows, scale: float) -> _Sizes:
    merged, groups, length, dim = rows.q.shape
    if rows.q.dtype == jnp.float32:
        held, met, stages = 32, 32, 2
    else:
        held, met, stages = (128, 64, 3) if dim <= 128 else (64, 32, 2)
    return _Sizes(
        merged // rows.visible.until.shape[0], groups, length, rows.k.shape[1], dim, scale, held, met, 8, stages
    )


def _met_at(t: Any, partner: Any, size: _Sizes) -> Any:
    """First column of what a program meets in step t."""
    parts = _LISTED // size.met
    return partner[jax.lax.div(t, parts)] * _LISTED + jax.lax.rem(t, parts) * size.met


def _num_steps(block: Any, num: Any, size: _Sizes) -> Any:
    return num[jax.lax.div(block * size.held, _LISTED)] * (_LISTED // size.met)


def _columns(first: Any, num: int) -> jax.Array:
    return first + jnp.arange(num, dtype=jnp.int32)


def _forward(start, partner, num, q, k, v, since, until, out, lse, *, size):  # type: ignore[no-untyped-def]
    i = pl.program_id(1)
    query, rows = _columns(start[0] + i * size.held, size.held)[:, None], q[...]

    def meet(t: Any, carry: Any) -> Any:
        acc, top, total = carry
        at = pl.ds(_met_at(t, partner, size), size.met)
        seen = (since[at][None, :] <= query) & (query < until[at][None, :])
        scores = jnp.where(seen, product(rows, k[at, :], (1, 1)) * size.scale, MASKED)
        higher = jnp.maximum(top, jnp.max(scores, axis=1))
        weights, shrink = jnp.exp(scores - higher[:, None]), jnp.exp(top - higher)
        total = total * shrink + jnp.sum(weights, axis=1)
        return acc * shrink[:, None] + product(weights.astype(rows.dtype), v[at, :], (1, 0)), higher, total

    zeros, top = jnp.zeros((size.held, size.dim), jnp.float32), jnp.full(size.held, MASKED, jnp.float32)
    steps = _num_steps(i, num, size)
    acc, top, total = jax.lax.fori_loop(0, steps, meet, (zeros, top, jnp.zeros(size.held, jnp.float32)))
    out[...] = (acc / total[:, None]).astype(out.dtype)
    lse[...] = top + jnp.log(total)


def _d_q(start, partner, num, q, k, v, since, until, d_out, lse, inner, d_q, *, size):  # type: ignore[no-untyped-def]
    i = pl.program_id(1)
    query = _columns(start[0] + i * size.held, size.held)[:, None]
    rows, d_rows, lse_rows, inner_rows = q[...], d_out[...], lse[...][:, None], inner[...][:, None]

    def meet(t: Any, acc: Any) -> Any:
        at = pl.ds(_met_at(t, partner, size), size.met)
        seen = (since[at][None, :] <= query) & (query < until[at][None, :])
        keys = k[at, :]
        scores = jnp.where(seen, product(rows, keys, (1, 1)) * size.scale, MASKED)
        d_weights = product(d_rows, v[at, :], (1, 1))
        d_scores = jnp.exp(scores - lse_rows) * (d_weights - inner_rows) * size.scale
        return acc + product(d_scores.astype(keys.dtype), keys, (1, 0))

    zeros = jnp.zeros((size.held, size.dim), jnp.float32)
    d_q[...] = jax.lax.fori_loop(0, _num_steps(i, num, size), meet, zeros).astype(d_q.dtype)


def _d_kv(start, partner, num, q, k, v, since, until, d_out, lse, inner, d_k, d_v, *, size):  # type: ignore[no-untyped-def]
    c = pl.program_id(1)
    keys, values, begins, ends = k[...], v[...], since[...][:, None], until[...][:, None]

    def meet(t: Any, carry: Any) -> Any:
        acc_k, acc_v = carry
        head, first = jax.lax.rem(t, size.groups), _met_at(jax.lax.div(t, size.groups), partner, size)
        at, query = pl.ds(first, size.met), _columns(start[0] + first, size.met)[None, :]
        rows, d_rows = q[head, at, :], d_out[head, at, :]
        seen = (begins <= query) & (query < ends)
        scores = jnp.where(seen, product(keys, rows, (1, 1)) * size.scale, MASKED)
        weights = jnp.exp(scores - lse[head, at][None, :])
        d_scores = weights * (product(values, d_rows, (1, 1)) - inner[head, at][None, :]) * size.scale
        acc_k += product(d_scores.astype(rows.dtype), rows, (1, 0))
        return acc_k, acc_v + product(weights.astype(rows.dtype), d_rows, (1, 0))

    zeros = jnp.zeros((size.held, size.dim), jnp.float32)
    steps = _num_steps(c, num, size) * size.groups
    d_k[...], d_v[...] = jax.lax.fori_loop(0, steps, meet, (zeros, zeros))


class _Specs(NamedTuple):
    """Which part of an array a program sees."""

    queries: pl.BlockSpec
    """Of [B*K, G, T, H]."""
    keys: pl.BlockSpec
    """Of [B*K, S, H]."""
    spans: pl.BlockSpec
    """Of [B, S]."""
    numbers: pl.BlockSpec
    """Of [B*K, G, T]."""


def _specs(size: _Sizes, by_key: bool) -> _Specs:
    """By key, a program holds keys of one key head; else queries of one query head."""
    if by_key:
        return _Specs(
            pl.BlockSpec((None, size.groups, size.length, size.dim), lambda n, c: (n, 0, 0, 0)),
            pl.BlockSpec((None, size.held, size.dim), lambda n, c: (n, c, 0)),
            pl.BlockSpec((None, size.held), lambda n, c: (jax.lax.div(n, size.kv_heads), c)),
            pl.BlockSpec((None, size.groups, size.length), lambda n, c: (n, 0, 0)),
        )

    def head(n: Any) -> tuple[Any, Any]:
        return jax.lax.div(n, size.groups), jax.lax.rem(n, size.groups)

    return _Specs(
        pl.BlockSpec((None, None, size.held, size.dim), lambda n, i: (*head(n), i, 0)),
        pl.BlockSpec((None, size.num_keys, size.dim), lambda n, i: (head(n)[0], 0, 0)),
        pl.BlockSpec((None, size.num_keys), lambda n, i: (jax.lax.div(n, size.kv_heads * size.groups), 0)),
        pl.BlockSpec((None, None, size.held), lambda n, i: (*head(n), i)),
    )


_Placed = list[tuple[Any, pl.BlockSpec]]
"""Arrays, or their shapes, each with the part of it that a program sees."""


def _placed(of: _Specs, rows: Rows, *of_results: jax.Array) -> _Placed:
    """The kernels' inputs; `of_results`: d_out, lse, inner."""
    specs = (of.queries, of.keys, of.keys, of.spans, of.spans, of.queries, of.numbers, of.numbers)
    return list(zip((*rows[:3], *rows.visible.spelled_out(), *of_results), specs, strict=False))


def _call(
    program: Callable,
    size: _Sizes,
    needed: jax.Array,
    start: jax.Array,
    inputs: _Placed,
    outputs: _Placed,
    grid: tuple[int, int],
    interpret: bool,
) -> Sequence[jax.Array]:
    """`program` over the grid (heads, blocks of held tokens), which meet as `needed` [B, blocks, partners] says."""
    per_row = grid[0] // needed.shape[0]
    lists = (
        pl.BlockSpec((1,), lambda n, i: (0,)),
        pl.BlockSpec(
            (None, None, needed.shape[2]),
            lambda n, i: (jax.lax.div(n, per_row), jax.lax.div(i * size.held, _LISTED), 0),
        ),
        pl.BlockSpec((None, needed.shape[1]), lambda n, i: (jax.lax.div(n, per_row), 0)),
    )
    arrays, in_specs = zip(*inputs, strict=True)
    shapes, out_specs = zip(*outputs, strict=True)
    return pl.pallas_call(
        partial(program, size=size),
        grid=grid,
        in_specs=lists + in_specs,
        out_specs=out_specs,
        out_shape=shapes,
        compiler_params=triton.CompilerParams(num_warps=size.warps, num_stages=size.stages),
        interpret=interpret,
    )(start[None], *meetings(needed), *arrays)


def forward(rows: Rows, scale: float, block: int, *, interpret: bool = False) -> tuple[jax.Array, jax.Array]:
    """As in `attention_loops`; H is 64, 128 or 256, `block` comes from `fill_to`.

    `interpret`: on any platform, slowly.
    """
    size = _sizes(rows, scale)
    needed, of = blocks_that_meet(rows, block, block), _specs(size, by_key=False)
    grid = (rows.q.shape[0] * size.groups, size.length // size.held)
    like_out = jax.ShapeDtypeStruct(rows.q.shape, rows.q.dtype)
    like_lse = jax.ShapeDtypeStruct(rows.q.shape[:3], jnp.float32)
    outputs = [(like_out, of.queries), (like_lse, of.numbers)]
    out, lse = _call(_forward, size, needed, rows.start, _placed(of, rows), outputs, grid, interpret)
    return out, lse


def backward(
    rows: Rows,
    out: jax.Array,
    lse: jax.Array,
    d_out: jax.Array,
    scale: float,
    block: int,
    *,
    interpret: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gradients of q, in its type, and of k and v, in float32."""
    size, results = _sizes(rows, scale), (d_out, lse, weighted_sum(out, d_out))
    needed, of = blocks_that_meet(rows, block, block), _specs(size, by_key=False)
    grid = (rows.q.shape[0] * size.groups, size.length // size.held)
    outputs = [(jax.ShapeDtypeStruct(rows.q.shape, rows.q.dtype), of.queries)]
    (d_q,) = _call(_d_q, size, needed, rows.start, _placed(of, rows, *results), outputs, grid, interpret)
    needed, of = jnp.swapaxes(needed, 1, 2), _specs(size, by_key=True)
    grid = (rows.q.shape[0], size.num_keys // size.held)
    outputs = [(jax.ShapeDtypeStruct(rows.k.shape, jnp.float32), of.keys)] * 2
    d_k, d_v = _call(_d_kv, size, needed, rows.start, _placed(of, rows, *results), outputs, grid, interpret)
    return d_q, d_k, d_v
