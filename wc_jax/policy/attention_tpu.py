"""Attention's kernels for TPU (Pallas, Mosaic): FlashAttention-2 (arXiv 2307.08691) over rows that hold trees.

JAX's own splash attention wants its mask when it is traced; here who sees whom is data (`Visible`), another for
each batch. The blocks that must meet are listed beforehand (`Meetings`) and put into scalar memory: a step of the
grid is one such meeting, and no time goes to the others, neither to compute them nor to fetch them.

- Forward: for a block of queries of all heads that share a key head, over the blocks of keys that it meets, with the
  running maximum and sum of the softmax. Saved is the log-sum-exp, one float32 a query and head.
- Backward: the weights again from the log-sum-exp; one kernel for the queries' gradient, of the same form, one for
  the keys' and values', for a block of keys over the blocks of queries that it meets.

Scores lie with keys down and queries across: maxima and sums over keys then run along the cheap axis, and a number
a query is a vector as the chip holds it. A block is 512 keys and up to 512 queries, so many that the heads' queries
take no more than 1 MiB; with that, a step fits into the 16 MiB on chip that a kernel gets. Beyond arguments and
results only the lists are in memory, 4 bytes for each pair of blocks of a row: 64 or 128 KiB at T = 65,536.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from wc_jax.policy.attention_plan import MASKED, Rows, Visible, blocks_that_meet, meetings, product, weighted_sum

_MOST_MEETINGS = 2**17
"""Entries of a list: half of the scalar memory. One row of 131,072 tokens on one device."""


class _Sizes(NamedTuple):
    """Of one call."""

    merged: int
    """B * K."""
    kv_heads: int
    groups: int
    num_q: int
    """Blocks of queries."""
    num_k: int
    q_block: int
    k_block: int
    dim: int
    scale: float
    sharers: int
    """Entries of `merged` that share a list of meetings."""


def fill_to(longest: int) -> int:
    """Rows are filled up to a multiple of this.

    >>> fill_to(200), fill_to(65_536)
    (256, 512)
    """
    return min(512, -(-longest // 128) * 128)


def _queries_at_once(heads: int, dim: int, item_bytes: int, block: int) -> int:
    """Of a block, as many as take 1 MiB with all the heads that read one key head."""
    most = 2**20 // (heads * dim * item_bytes)
    return next(size for size in range(block, 0, -128) if block % size == 0 and (size <= most or size == 128))


def fits(q: jax.Array, k: jax.Array, width: int) -> bool:
    """Whether scalar memory holds the meetings of a row: queries [B, T, N, H], keys [B, S, K, H], heads of `width`."""
    block = fill_to(q.shape[1])
    q_block = _queries_at_once(q.shape[2] // k.shape[2], width, q.dtype.itemsize, block)
    return -(-q.shape[1] // q_block) * -(-k.shape[1] // block) <= _MOST_MEETINGS


def _sizes(rows: Rows, scale: float, block: int) -> _Sizes:
    merged, groups, length, dim = rows.q.shape
    batch, num_k = rows.visible.until.shape[0], rows.k.shape[1] // block
    q_block = _queries_at_once(groups, dim, rows.q.dtype.itemsize, block)
    num_q = length // q_block
    # Rows that are too many to list one by one meet what any of them must.
    sharers = merged // batch if batch * num_q * num_k <= _MOST_MEETINGS else merged
    return _Sizes(merged, merged // batch, groups, num_q, num_k, q_block, block, dim, scale, sharers)


def _scores(q: Any, k: Any, spans: Any, first: Any, size: _Sizes) -> Callable[[int], jax.Array]:
    """[c, q] of a head: masked scores of a block of keys against the block of queries at column `first`."""
    spans = spans[0].T
    query = first + jax.lax.broadcasted_iota(jnp.int32, (size.k_block, size.q_block), 1)
    seen = (spans[:, 0:1] <= query) & (query < spans[:, 1:2])
    return lambda head: jnp.where(seen, product(k[0], q[0, head], (1, 1)) * size.scale, MASKED)


def _forward_step(start, partner, num, q, k, v, spans, out, lse, acc, top, total, *, size):  # type: ignore[no-untyped-def]
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _() -> None:
        acc[...] = jnp.zeros_like(acc)
        top[...] = jnp.full_like(top, MASKED)
        total[...] = jnp.zeros_like(total)

    @pl.when(j < num[_block(pl.program_id(0), i, size.num_q, size)])
    def _() -> None:
        scores_of = _scores(q, k, spans, start[0] + i * size.q_block, size)
        for head in range(size.groups):
            at = pl.ds(head, 1)
            scores = scores_of(head)
            higher = jnp.maximum(top[at], jnp.max(scores, axis=0, keepdims=True))
            weights, shrink = jnp.exp(scores - higher), jnp.exp(top[at] - higher)
            total[at] = total[at] * shrink + jnp.sum(weights, axis=0, keepdims=True)
            acc[head] = acc[head] * shrink + product(v[0], weights.astype(v.dtype), (0, 0))
            top[at] = higher

    @pl.when(j == pl.num_programs(2) - 1)
    def _() -> None:
        for head in range(size.groups):
            at = pl.ds(head, 1)
            out[0, head] = (acc[head] / total[at]).T.astype(out.dtype)
            lse[0, at] = top[at] + jnp.log(total[at])


def _gradients(head, scores, v, d_out, lse, inner, scale):  # type: ignore[no-untyped-def]
    """`(weights, gradient of the products q . k)`, [c, q]."""
    at = pl.ds(head, 1)
    weights = jnp.exp(scores - lse[0, at])
    return weights, weights * (product(v[0], d_out[0, head], (1, 1)) - inner[0, at]) * scale


def _d_q_step(start, partner, num, q, k, v, spans, d_out, lse, inner, d_q, acc, *, size):  # type: ignore[no-untyped-def]
    i, j = pl.program_id(1), pl.program_id(2)

    @pl.when(j == 0)
    def _() -> None:
        acc[...] = jnp.zeros_like(acc)

    @pl.when(j < num[_block(pl.program_id(0), i, size.num_q, size)])
    def _() -> None:
        scores_of = _scores(q, k, spans, start[0] + i * size.q_block, size)
        for head in range(size.groups):
            _, d_scores = _gradients(head, scores_of(head), v, d_out, lse, inner, size.scale)
            acc[head] += product(k[0], d_scores.astype(k.dtype), (0, 0))

    @pl.when(j == pl.num_programs(2) - 1)
    def _() -> None:
        for head in range(size.groups):
            d_q[0, head] = acc[head].T.astype(d_q.dtype)


def _d_kv_step(start, partner, num, q, k, v, spans, d_out, lse, inner, d_k, d_v, *, size):  # type: ignore[no-untyped-def]
    j = pl.program_id(2)
    block = _block(pl.program_id(0), pl.program_id(1), size.num_k, size)

    @pl.when(j == 0)
    def _() -> None:
        d_k[...] = jnp.zeros_like(d_k)
        d_v[...] = jnp.zeros_like(d_v)

    @pl.when(j < num[block])
    def _() -> None:
        scores_of = _scores(q, k, spans, start[0] + partner[block * size.num_q + j] * size.q_block, size)
        for head in range(size.groups):
            weights, d_scores = _gradients(head, scores_of(head), v, d_out, lse, inner, size.scale)
            d_v[0] += product(weights.astype(v.dtype), d_out[0, head], (1, 0))
            d_k[0] += product(d_scores.astype(q.dtype), q[0, head], (1, 0))


def _block(merged: Any, block: Any, num_blocks: int, size: _Sizes) -> Any:
    """Where a block's entry lies in the flat lists."""
    # Not `//`, whose care for signs asks which chip is attached.
    return jax.lax.div(merged, size.sharers) * num_blocks + block


class _Specs(NamedTuple):
    """Which part of an array a step works on."""

    queries: pl.BlockSpec
    """Of [B*K, G, T, H]."""
    keys: pl.BlockSpec
    """Of [B*K, S, H]."""
    spans: pl.BlockSpec
    """Of [B, 8, S]."""
    numbers: pl.BlockSpec
    """Of [B*K, G, T]."""


def _specs(size: _Sizes, by_key: bool) -> _Specs:
    blocks, partners = (size.num_k, size.num_q) if by_key else (size.num_q, size.num_k)

    def met(row: Any, block: Any, j: Any, start: Any, partner: Any, num: Any) -> Any:
        return partner[_block(row, block, blocks, size) * partners + j]

    def query(row: Any, block: Any, *rest: Any) -> Any:
        return met(row, block, *rest) if by_key else block

    def key(row: Any, block: Any, *rest: Any) -> Any:
        return block if by_key else met(row, block, *rest)

    return _Specs(
        pl.BlockSpec((1, size.groups, size.q_block, size.dim), lambda row, *rest: (row, 0, query(row, *rest), 0)),
        pl.BlockSpec((1, size.k_block, size.dim), lambda row, *rest: (row, key(row, *rest), 0)),
        pl.BlockSpec((1, 8, size.k_block), lambda row, *rest: (jax.lax.div(row, size.kv_heads), 0, key(row, *rest))),
        pl.BlockSpec((1, size.groups, size.q_block), lambda row, *rest: (row, 0, query(row, *rest))),
    )


def _spans(visible: Visible) -> jax.Array:
    """int32 [B, 8, S]: since and until; the other six rows are in the chip's layout anyway."""
    since, until = visible.spelled_out()
    return jnp.stack((since,) + (until,) * 7, axis=1)


def _cost(size: _Sizes, num_products: int, item_bytes: int) -> pl.CostEstimate:
    """What the compiler plans with: as if each query saw half of the keys, like one causal sample."""
    pairs = size.merged * size.groups * size.num_q * size.q_block * size.num_k * size.k_block // 2
    # For each block of queries half of the keys and values; queries, results and their gradients are few beside them.
    fetched = size.merged * size.num_q * size.num_k * size.k_block * size.dim * item_bytes
    return pl.CostEstimate(flops=2 * num_products * size.dim * pairs, transcendentals=pairs, bytes_accessed=fetched)


_Placed = list[tuple[Any, pl.BlockSpec]]
"""Arrays, or their shapes, each with the part of it that a step works on."""


def _placed(of: _Specs, rows: Rows, *of_results: jax.Array) -> _Placed:
    """The kernels' inputs; `of_results`: d_out, lse, inner."""
    specs = (of.queries, of.keys, of.keys, of.spans, of.queries, of.numbers, of.numbers)
    return list(zip((*rows[:3], _spans(rows.visible), *of_results), specs, strict=False))


def _call(
    step: Callable,
    num_products: int,
    size: _Sizes,
    needed: jax.Array,
    start: jax.Array,
    inputs: _Placed,
    outputs: _Placed,
    scratch: Sequence[tuple[int, ...]],
    interpret: bool,
) -> Sequence[jax.Array]:
    """`step` for each meeting in `needed` [B, blocks, partners], which lies in the order of the grid."""
    if size.sharers == size.merged:
        needed = jnp.any(needed, axis=0, keepdims=True)
    partner, num = meetings(needed)
    arrays, in_specs = zip(*inputs, strict=True)
    shapes, out_specs = zip(*outputs, strict=True)
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(size.merged, needed.shape[1], jnp.maximum(jnp.max(num), 1)),
        in_specs=in_specs,
        out_specs=out_specs,
        scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in scratch],
    )
    return pl.pallas_call(
        partial(step, size=size),
        grid_spec=grid,
        out_shape=shapes,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=_cost(size, num_products, arrays[0].dtype.itemsize),
        interpret=interpret,
    )(start[None], partner.ravel(), num.ravel(), *arrays)


def forward(rows: Rows, scale: float, block: int, *, interpret: bool = False) -> tuple[jax.Array, jax.Array]:
    """As in `attention_loops`; H is 64, 128 or 256, `block` comes from `fill_to`.

    `interpret`: on any platform, slowly.
    """
    size = _sizes(rows, scale, block)
    needed, of = blocks_that_meet(rows, size.q_block, size.k_block), _specs(size, by_key=False)
    numbers = (size.groups, size.q_block)
    scratch = [(size.groups, size.dim, size.q_block), numbers, numbers]
    like_out = jax.ShapeDtypeStruct(rows.q.shape, rows.q.dtype)
    like_lse = jax.ShapeDtypeStruct(rows.q.shape[:3], jnp.float32)
    outputs = [(like_out, of.queries), (like_lse, of.numbers)]
    out, lse = _call(_forward_step, 2, size, needed, rows.start, _placed(of, rows), outputs, scratch, interpret)
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
    size, results = _sizes(rows, scale, block), (d_out, lse, weighted_sum(out, d_out))
    needed, of = blocks_that_meet(rows, size.q_block, size.k_block), _specs(size, by_key=False)
    outputs = [(jax.ShapeDtypeStruct(rows.q.shape, rows.q.dtype), of.queries)]
    scratch, inputs = [(size.groups, size.dim, size.q_block)], _placed(of, rows, *results)
    (d_q,) = _call(_d_q_step, 3, size, needed, rows.start, inputs, outputs, scratch, interpret)
    needed, of = jnp.swapaxes(needed, 1, 2), _specs(size, by_key=True)
    outputs = [(jax.ShapeDtypeStruct(rows.k.shape, jnp.float32), of.keys)] * 2
    d_k, d_v = _call(_d_kv_step, 4, size, needed, rows.start, _placed(of, rows, *results), outputs, [], interpret)
    return d_q, d_k, d_v
