"""The gated delta rule: the recurrent layer of hybrid policies, in chunks, over trees of samples.

A head keeps a matrix S [H, E] that maps keys to values. A token p -> t of a path does (Gated Delta Networks,
arXiv 2412.06464, equation 10, with queries scaled as in attention)

    S' = exp(log_decay[t]) S[p]                        forget
    S[t] = S' + beta[t] k[t] (v[t] - S'ᵀ k[t])ᵀ         correct what key k[t] recalls
    out[t] = S[t]ᵀ q[t] / sqrt(H)

Token by token that is T small products. Within a chunk, what the tokens write solves one unit triangular
system, whose right side is linear in the state at the chunk's entry (the WY form, arXiv 2406.06484). So all
chunks are prepared at once, a scan passes states from chunk to chunk, and all outputs are read at once.
Everything is float32, and memory grows with T, not with its square.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Float, Int

# States carry a row's whole past: products of float32 arrays must not be rounded to bfloat16 or TF32 on the way.
_EXACT = jax.lax.Precision.HIGHEST


class _Update(NamedTuple):
    """What chunks do to the state S that they start from: S -> decay S + keysᵀ (values - reads S)."""

    values: jax.Array
    """[C, B, N, c, E]: what the tokens would write into an empty state."""
    reads: jax.Array
    """[C, B, N, c, H]: which part of the entry state each token finds there already, and takes back."""
    keys: jax.Array
    """[C, B, N, c, H]: where the writes lie in the state after the chunk's last token."""
    decay: jax.Array
    """[C, B, N]: what is left of the entry state there, in [0, 1]."""


def _mm(a: jax.Array, b: jax.Array) -> jax.Array:
    return jnp.matmul(a, b, precision=_EXACT)


def _t(x: jax.Array) -> jax.Array:
    return jnp.swapaxes(x, -1, -2)


def _cut(x: jax.Array, chunk: int, fill: int = 0) -> jax.Array:
    """[B, T, ...] -> [C, B, ..., c] or, with a last axis of features, [C, B, N, c, H]; the rest is filled."""
    rest = ((0, 0),) * (x.ndim - 2)
    x = jnp.pad(x, ((0, 0), (0, -x.shape[1] % chunk), *rest), constant_values=fill)
    x = jnp.swapaxes(x.reshape(x.shape[0], -1, chunk, *x.shape[2:]), 0, 1)
    return x if x.ndim == 3 else jnp.swapaxes(x, 2, 3)


def _seen(visible_until: jax.Array) -> jax.Array:
    """bool [C, B, c, c]: whether query i of a chunk descends from, or is, key j; visible_until: [C, B, c]."""
    num_chunks, _, chunk = visible_until.shape
    column = jnp.arange(num_chunks * chunk, dtype=jnp.int32).reshape(num_chunks, 1, chunk, 1)
    causal = jnp.tril(jnp.ones((chunk, chunk), bool))
    return causal[None, None] & (column < visible_until[:, :, None, :])


def _decays(log_decay: jax.Array, seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What is left at query i of what key j wrote, [..., c, c], and of the entry state, [..., c]; 0 if unseen.

    The logs are summed over just the tokens between the two: a difference of two long sums would lose digits.
    """
    chunk = log_decay.shape[-1]
    on_path = jnp.where(seen, log_decay[..., None, :], 0.0)
    later = jnp.tril(jnp.ones((chunk, chunk), jnp.float32), -1)
    between = jnp.where(seen, jnp.exp(jnp.einsum("...im,mj->...ij", on_path, later, precision=_EXACT)), 0.0)
    # The entry state belongs to the chunk's first token and to what descends from it.
    return between, jnp.where(seen[..., 0], jnp.exp(jnp.sum(on_path, axis=-1)), 0.0)


def _apply(entry: jax.Array, update: _Update) -> jax.Array:
    """The state [..., H, E] after a chunk, from the one before it."""
    written = update.values - _mm(update.reads, entry)
    return update.decay[..., None, None] * entry + _mm(_t(update.keys), written)


@jax.custom_vjp
def _inverse(lower: jax.Array) -> jax.Array:
    """(1 + L)^-1, where L is what [..., c, c] holds below its diagonal.

    By blocks that double: products only, as stable as substitution. Not `solve_triangular`, whose batches
    wait for workers that other batches hold: two of them at once never end on a machine of two cores.
    """
    chunk = lower.shape[-1]
    at = jnp.arange(chunk, dtype=jnp.int32)
    inverse = jnp.broadcast_to(jnp.eye(chunk, dtype=jnp.float32), lower.shape)
    size = 1
    while size < chunk:
        block = at // size
        # The lower left one of each two by two blocks of this size; those on the diagonal are inverted already.
        corner = (block[:, None] == block[None, :] + 1) & (block[:, None] % 2 == 1)
        inverse = inverse - _mm(inverse, _mm(jnp.where(corner, lower, 0.0), inverse))
        size *= 2
    return inverse


def _inverse_fwd(lower: jax.Array) -> Any:
    inverse = _inverse(lower)
    return inverse, inverse


def _inverse_bwd(inverse: jax.Array, d_inverse: jax.Array) -> Any:
    return (-jnp.tril(_mm(_t(inverse), _mm(d_inverse, _t(inverse))), -1),)


_inverse.defvjp(_inverse_fwd, _inverse_bwd)


def _parents(ends: jax.Array, parent: jax.Array) -> jax.Array:
    """The states [..., B, N, H, E] at parent [..., B] of the states [C, B, N, H, E]; 0 for -1."""
    found = ends[jnp.maximum(parent, 0), jnp.broadcast_to(_rows(parent), parent.shape)]
    return jnp.where((parent >= 0)[..., None, None, None], found, 0.0)


def _rows(parent: jax.Array) -> jax.Array:
    return jnp.arange(parent.shape[-1], dtype=jnp.int32)


@jax.custom_vjp
def _entry_states(updates: _Update, parent: jax.Array) -> jax.Array:
    """[C, B, N, H, E]: the state that each chunk starts from, the one after chunk parent[C, B], or 0 for -1.

    The gradient is written out because a scan that carries the states of all chunks would save all of them at
    every step. Here the sums over children gather in one buffer on the way back. The loops do only what must be
    done in order, and nothing else reads their buffer, so that XLA updates it in place.
    """
    return _entry_states_fwd(updates, parent)[0]


def _entry_states_fwd(updates: _Update, parent: jax.Array) -> Any:
    num_chunks = parent.shape[0]

    def step(ends: jax.Array, chunk: tuple[jax.Array, _Update, jax.Array]) -> tuple[jax.Array, None]:
        index, update, parent = chunk
        return jax.lax.dynamic_update_index_in_dim(ends, _apply(_parents(ends, parent), update), index, 0), None

    shape = (*updates.reads.shape[:3], updates.reads.shape[-1], updates.values.shape[-1])
    order = jnp.arange(num_chunks, dtype=jnp.int32)
    ends, _ = jax.lax.scan(step, jnp.zeros(shape, jnp.float32), (order, updates, parent))
    entries = _parents(ends, parent)
    return entries, (updates, parent, entries)


def _entry_states_bwd(saved: Any, d_entries: jax.Array) -> Any:
    updates, parent, entries = saved
    num_chunks = parent.shape[0]

    def step(d_ends: jax.Array, chunk: Any) -> tuple[jax.Array, None]:
        index, update, parent, d_entry = chunk
        # A parent stands before its children, so its sum is complete when its turn comes. -1 is dropped.
        d_end = d_ends[index]
        d_entry += update.decay[..., None, None] * d_end - _mm(_t(update.reads), _mm(update.keys, d_end))
        slot = jnp.where(parent >= 0, parent, num_chunks)
        return d_ends.at[slot, _rows(parent)].add(d_entry, mode="drop", unique_indices=True), None

    chunks = (jnp.arange(num_chunks, dtype=jnp.int32), updates, parent, d_entries)
    d_ends, _ = jax.lax.scan(step, jnp.zeros_like(entries), chunks, reverse=True)
    _, pull = jax.vjp(lambda updates: _apply(entries, updates), updates)
    return (*pull(d_ends), None)


_entry_states.defvjp(_entry_states_fwd, _entry_states_bwd)


def gated_delta_rule(
    q: Float[Array, "B T N H"],
    k: Float[Array, "B T N H"],
    v: Float[Array, "B T N E"],
    log_decay: Float[Array, "B T N"],
    beta: Float[Array, "B T N"],
    visible_until: Int[Array, "B T"],
    predecessor: Int[Array, "B T"],
    *,
    chunk: int = 64,
) -> Float[Array, "B T N E"]:
    """What each token reads from its own path's state, in q's dtype. Keys should have unit length.

    Args:
        q, k, v: queries (scaled by 1 / sqrt(H) here), keys, values, one of each for every head.
        log_decay: finite and at most 0: exp of it is left of the state at each token.
        beta: how much of the error at key k is corrected, usually in (0, 1).
        visible_until, predecessor: the trees that the rows hold, see `wc_jax.types.Batch`. Roots may start
            anywhere. A token whose predecessor is not the column before it must start a chunk, and its
            predecessor must end one (or both lie in one chunk); `wc_jax.layout` does so with align=chunk.
        chunk: tokens at a time.

    Half of the state, which recalls 8, is left when the same key is asked again:

    >>> one = jnp.ones((1, 2, 1, 1))
    >>> v, beta = jnp.array([8.0, 0.0]).reshape(1, 2, 1, 1), jnp.array([1.0, 0.0]).reshape(1, 2, 1)
    >>> log_decay, until, before = jnp.full((1, 2, 1), jnp.log(0.5)), jnp.array([[2, 2]]), jnp.array([[-1, 0]])
    >>> jax.jit(gated_delta_rule)(one, one, v, log_decay, beta, until, before).ravel().tolist()
    [8.0, 4.0]
    """
    length, dtype = q.shape[1], q.dtype
    chunk = min(chunk, length)
    q, k, v, log_decay, beta = (_cut(x.astype(jnp.float32), chunk) for x in (q, k, v, log_decay, beta))
    parent = _cut(predecessor, chunk, -1)[:, :, 0] // chunk
    seen = _seen(_cut(visible_until, chunk))[:, :, None]
    q = q * q.shape[-1] ** -0.5

    between, since_entry = _decays(log_decay, seen)
    # What a token writes, and what later tokens of the chunk find of it and so do not write: (1 + L) written = ...
    found = beta[..., None] * _mm(k, _t(k)) * between
    asked = beta[..., None] * jnp.concatenate([v, since_entry[..., None] * k], axis=-1)
    solved = _mm(_inverse(found), asked)
    values, reads = solved[..., : v.shape[-1]], solved[..., v.shape[-1] :]

    updates = _Update(values, reads, between[..., -1, :, None] * k, since_entry[..., -1])
    entries = _entry_states(updates, parent)
    out = _mm(since_entry[..., None] * q, entries) + _mm(_mm(q, _t(k)) * between, values - _mm(reads, entries))
    out = out.transpose(1, 0, 3, 2, 4)  # [C, B, N, c, E] -> [B, C, c, N, E]
    return out.reshape(out.shape[0], -1, *out.shape[3:])[:, :length].astype(dtype)
