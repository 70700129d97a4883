"""The two loops behind `token_logprobs`: over chunks of tokens, and in each over tiles of the vocabulary.

One `chunk x tile` array of logits lives at a time, small enough to stay in a cache: the maximum and the sums
are carried from tile to tile, and the backward pass computes the logits again from the saved log-sum-exp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp

Carry = TypeVar("Carry")
_LOWEST = float(jnp.finfo(jnp.float32).min) / 2


@dataclass(frozen=True, kw_only=True)
class Loops:
    """What is fixed when the loops are compiled."""

    temperature: float
    chunk: int
    """Tokens at a time."""
    tile: int
    """Columns of the vocabulary at a time."""


class Chunks(NamedTuple):
    """`[C, c]` and `[C, c, D]`: the tokens, cut; the last chunk is filled up with masked ones."""

    hidden: jax.Array
    targets: jax.Array
    mask: jax.Array


class PerToken(NamedTuple):
    """Of each token, 0 where masked."""

    logp: jax.Array
    entropy: jax.Array
    log_total: jax.Array
    """Log of the sum of exponentials of the scaled logits."""


def product(a: jax.Array, b: jax.Array, of_a: int, of_b: int) -> jax.Array:
    """Of two matrices over one axis of each, with float32 sums."""
    return jax.lax.dot_general(a, b, (((of_a,), (of_b,)), ((), ())), preferred_element_type=jnp.float32)


def _logits(hidden: jax.Array, unembed: jax.Array, temperature: float) -> jax.Array:
    # The barrier keeps XLA's CPU backend from fusing the product with what follows, on one thread.
    return jax.lax.optimization_barrier(product(hidden, unembed, 1, 0)) / temperature


def num_used(mask: jax.Array) -> jax.Array:
    """Chunks up to the last one that holds a trained token."""
    any_trained = jnp.any(mask, axis=1)
    return jnp.max(jnp.where(any_trained, jnp.arange(1, mask.shape[0] + 1), 0), initial=0)


def over_tiles(step: Callable[[jax.Array, int, Carry], Carry], start: Carry, vocab: int, tile: int) -> Carry:
    """`step(first column, number of columns, carry)` over the vocabulary: whole tiles in a loop, then the rest."""
    whole = vocab // tile
    carry = jax.lax.fori_loop(0, whole, lambda j, carry: step(j * tile, tile, carry), start)
    rest = vocab - whole * tile
    return step(jnp.asarray(whole * tile), rest, carry) if rest else carry


class Online(NamedTuple):
    """Of the columns seen so far, for each token of a chunk."""

    top: jax.Array
    total: jax.Array
    """Sum of exp(logit - top)."""
    weighted: jax.Array
    """Sum of exp(logit - top) * (logit - top)."""
    picked: jax.Array
    """The target's logit, once its column was seen."""


def _rebased(seen: Online, top: jax.Array) -> Online:
    """The same sums, measured from a maximum that is not below their own."""
    step = seen.top - top
    shrink = jnp.exp(step)
    weighted = (seen.weighted + jnp.where(seen.total > 0, seen.total * step, 0.0)) * shrink
    return Online(top, seen.total * shrink, weighted, seen.picked)


def look_at(
    tile: jax.Array, hidden: jax.Array, targets: jax.Array, first: jax.Array, seen: Online, temperature: float
) -> Online:
    """`seen`, and what one more tile of the vocabulary adds; its columns begin at `first`."""
    logits = _logits(hidden, tile, temperature)
    top = jnp.maximum(seen.top, jnp.max(logits, axis=1))
    shifted = logits - top[:, None]
    exps = jax.lax.optimization_barrier(jnp.exp(shifted))
    # exp underflows to 0 long before its argument is infinite: the product is finite.
    products = jax.lax.optimization_barrier(exps * shifted)
    seen = _rebased(seen, top)
    column = targets - first
    is_here = (column >= 0) & (column < tile.shape[1])
    logit = jnp.take_along_axis(logits, jnp.where(is_here, column, 0)[:, None], axis=1)[:, 0]
    return Online(
        top,
        seen.total + jnp.sum(exps, axis=1),
        seen.weighted + jnp.sum(products, axis=1),
        jnp.where(is_here, logit, seen.picked),
    )


def nothing_seen(shape: tuple[int, ...]) -> Online:
    """Where the loop over tiles starts."""
    zeros = jnp.zeros(shape, jnp.float32)
    return Online(zeros + _LOWEST, zeros, zeros, zeros)


def over_devices(seen: Online, axis: str) -> Online:
    """Sums over all parts of the vocabulary; only one of them met the target."""
    seen = _rebased(seen, jax.lax.pmax(seen.top, axis))
    return Online(seen.top, *(jax.lax.psum(x, axis) for x in seen[1:]))


def forward(chunks: Chunks, unembed: jax.Array, loops: Loops) -> PerToken:
    """Log-probability, entropy and log-sum-exp of each token, `[C, c]`."""
    dim, vocab = unembed.shape

    def work(i: jax.Array, found: Online) -> Online:
        mask, targets = chunks.mask[i], chunks.targets[i]
        # Behind the mask the state is replaced, not the result: a NaN there must not spread.
        hidden = jnp.where(mask[:, None], chunks.hidden[i], 0)

        def step(first: jax.Array, size: int, seen: Online) -> Online:
            columns = jax.lax.dynamic_slice(unembed, (0, first), (dim, size))
            return look_at(columns, hidden, targets, first, seen, loops.temperature)

        seen = over_tiles(step, nothing_seen(mask.shape), vocab, loops.tile)
        return jax.tree.map(lambda buffer, x: buffer.at[i].set(x), found, seen)

    return per_token(jax.lax.fori_loop(0, num_used(chunks.mask), work, nothing_seen(chunks.mask.shape)), chunks.mask)


def per_token(seen: Online, mask: jax.Array) -> PerToken:
    """What follows from the sums over the whole vocabulary."""
    total = jnp.where(mask, seen.total, 1.0)  # no chunk may have reached what is masked
    log_total = jnp.log(total)
    entropy = log_total - seen.weighted / total
    found = PerToken(seen.picked - seen.top - log_total, entropy, seen.top + log_total)
    return jax.tree.map(lambda x: jnp.where(mask, x, 0.0), found)


class Given(NamedTuple):
    """One chunk of what the backward pass starts from."""

    hidden: jax.Array
    targets: jax.Array
    log_total: jax.Array
    up: jax.Array
    """Cotangent of the log-probability."""
    down: jax.Array
    """Cotangent of the entropy."""
    scale: jax.Array
    """up + down * entropy."""


def d_logits_of(columns: jax.Array, first: jax.Array, given: Given, temperature: float) -> jax.Array:
    """d logp = onehot - p;  d entropy = -p (log p + entropy)."""
    logp = _logits(given.hidden, columns, temperature) - given.log_total[:, None]
    # A comparison instead of a scatter: it fuses on every platform.
    column = jnp.arange(columns.shape[1], dtype=given.targets.dtype)
    is_target = column[None, :] == (given.targets - first)[:, None]
    d_logits = jnp.where(is_target, given.up[:, None], 0.0)
    d_logits = d_logits - jnp.exp(logp) * (given.scale[:, None] + given.down[:, None] * logp)
    return jax.lax.optimization_barrier((d_logits / temperature).astype(given.hidden.dtype))


def given_chunk(chunks: Chunks, i: jax.Array, saved: PerToken, up: jax.Array, down: jax.Array) -> Given:
    """Of chunk i, with nothing behind the mask."""
    mask = chunks.mask[i]
    ups, downs = (jnp.where(mask, g[i], 0.0) for g in (up, down))
    hidden = jnp.where(mask[:, None], chunks.hidden[i], 0)
    return Given(hidden, chunks.targets[i], saved.log_total[i], ups, downs, ups + downs * saved.entropy[i])


def backward(
    chunks: Chunks, unembed: jax.Array, loops: Loops, saved: PerToken, up: jax.Array, down: jax.Array, trains_head: bool
) -> tuple[jax.Array, jax.Array | None]:
    """Gradients of the states and, if `trains_head`, of the unembedding; `up` and `down` are the cotangents of
    log-probability and entropy, `[C, c]`.
    """
    dim, vocab = unembed.shape

    def work(i: jax.Array, carry: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array | None]:
        all_hidden, d_unembed = carry
        given = given_chunk(chunks, i, saved, up, down)

        def step(
            first: jax.Array, size: int, carry: tuple[jax.Array, jax.Array | None]
        ) -> tuple[jax.Array, jax.Array | None]:
            d_hidden, d_unembed = carry
            columns = jax.lax.dynamic_slice(unembed, (0, first), (dim, size))
            d_logits = d_logits_of(columns, first, given, loops.temperature)
            d_hidden = d_hidden + product(d_logits, columns, 1, 1)
            if d_unembed is not None:
                more = jax.lax.dynamic_slice(d_unembed, (0, first), (dim, size)) + product(given.hidden, d_logits, 0, 0)
                d_unembed = jax.lax.dynamic_update_slice(d_unembed, more, (0, first))
            return d_hidden, d_unembed

        start = (jnp.zeros(given.hidden.shape, jnp.float32), d_unembed)
        d_hidden, d_unembed = over_tiles(step, start, vocab, loops.tile)
        return all_hidden.at[i].set(d_hidden), d_unembed

    start = (
        jnp.zeros(chunks.hidden.shape, jnp.float32),
        jnp.zeros(unembed.shape, jnp.float32) if trains_head else None,
    )
    return jax.lax.fori_loop(0, num_used(chunks.mask), work, start)
