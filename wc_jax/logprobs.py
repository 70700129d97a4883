"""Log-probability and entropy of tokens from hidden states, a chunk of tokens at a time.

No `T x V` array ever exists: each chunk's logits live only while that chunk is worked on, in the forward
pass and again in the backward pass, which recomputes them from the saved log-sum-exp. Tokens that are not
trained are sorted to the end, and the loops stop before them. (A branch per chunk instead would hand the
whole unembedding through each branch, a copy of `D x V` per chunk.)
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Bool, Float, Int
from wc_jax.types import AnyArray


class _Chunks(NamedTuple):
    """`[C, c]` and `[C, c, D]`: the tokens, cut; the last chunk is filled up with masked ones."""

    hidden: jax.Array
    targets: jax.Array
    mask: jax.Array


class _PerToken(NamedTuple):
    logp: jax.Array
    entropy: jax.Array
    log_total: jax.Array
    """Log of the sum of exponentials of the scaled logits."""


def _logits(hidden: jax.Array, unembed: jax.Array, temperature: float) -> jax.Array:
    dims = (((1,), (0,)), ((), ()))
    return jax.lax.dot_general(hidden, unembed, dims, preferred_element_type=jnp.float32) / temperature


def _is_target(targets: jax.Array, num_tokens: int) -> jax.Array:
    # A comparison instead of a gather: on accelerators and on CPU it fuses, and nothing is scattered.
    return jnp.arange(num_tokens, dtype=targets.dtype)[None, :] == targets[:, None]


def _num_used(mask: jax.Array) -> jax.Array:
    """Chunks up to the last one that holds a trained token."""
    any_trained = jnp.any(mask, axis=1)
    return jnp.max(jnp.where(any_trained, jnp.arange(1, mask.shape[0] + 1), 0), initial=0)


def _forward(chunks: _Chunks, unembed: jax.Array, temperature: float) -> _PerToken:
    def work(i: jax.Array, out: _PerToken) -> _PerToken:
        mask, targets = chunks.mask[i], chunks.targets[i]
        # Behind the mask the state is replaced, not the result: a NaN there must not spread.
        logits = _logits(jnp.where(mask[:, None], chunks.hidden[i], 0), unembed, temperature)
        top = jnp.max(logits, axis=1)
        shifted = logits - top[:, None]
        exps = jnp.exp(shifted)
        total = jnp.sum(exps, axis=1)
        log_total = jnp.log(total)
        picked = jnp.sum(jnp.where(_is_target(targets, logits.shape[1]), shifted, 0.0), axis=1)
        # exp underflows to 0 long before its argument is infinite: the product is finite.
        entropy = log_total - jnp.sum(exps * shifted, axis=1) / total
        found = _PerToken(picked - log_total, entropy, top + log_total)
        return jax.tree.map(lambda buffer, x: buffer.at[i].set(jnp.where(mask, x, 0.0)), out, found)

    empty = _PerToken(*[jnp.zeros(chunks.mask.shape, jnp.float32)] * 3)
    return jax.lax.fori_loop(0, _num_used(chunks.mask), work, empty)


def _backward(
    chunks: _Chunks,
    unembed: jax.Array,
    temperature: float,
    saved: _PerToken,
    g_logp: jax.Array,
    g_entropy: jax.Array,
    needs_unembed: bool,
) -> tuple[jax.Array, jax.Array | None]:
    def work(i: jax.Array, carry: tuple[jax.Array, jax.Array | None]) -> tuple[jax.Array, jax.Array | None]:
        d_hidden, d_unembed = carry
        mask = chunks.mask[i]
        hidden = jnp.where(mask[:, None], chunks.hidden[i], 0)
        logp = _logits(hidden, unembed, temperature) - saved.log_total[i][:, None]
        probs = jnp.exp(logp)
        up, down = (jnp.where(mask, g[i], 0.0)[:, None] for g in (g_logp, g_entropy))
        # d logp = onehot - p;  d entropy = -p (log p + entropy)
        d_logits = jnp.where(_is_target(chunks.targets[i], logp.shape[1]), up, 0.0)
        d_logits = d_logits - probs * (up + down * (logp + saved.entropy[i][:, None]))
        d_logits = (d_logits / temperature).astype(hidden.dtype)
        product = jax.lax.dot_general(d_logits, unembed, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        d_hidden = d_hidden.at[i].set(product.astype(d_hidden.dtype))
        if d_unembed is not None:
            d_unembed = d_unembed + jax.lax.dot_general(
                hidden, d_logits, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32
            )
        return d_hidden, d_unembed

    start = (
        jnp.zeros_like(chunks.hidden),
        jnp.zeros(unembed.shape, jnp.float32) if needs_unembed else None,
    )
    return jax.lax.fori_loop(0, _num_used(chunks.mask), work, start)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def _chunked(chunks: _Chunks, unembed: jax.Array, temperature: float) -> tuple[jax.Array, jax.Array]:
    out = _forward(chunks, unembed, temperature)
    return out.logp, out.entropy


def _chunked_fwd(chunks: Any, unembed: Any, temperature: float) -> tuple[Any, Any]:
    # With symbolic zeros each argument says whether anybody asks for its gradient: a frozen head gets no buffer.
    values = jax.tree.map(lambda x: x.value, chunks, is_leaf=lambda x: hasattr(x, "perturbed"))
    out = _forward(values, unembed.value, temperature)
    return (out.logp, out.entropy), (values, unembed.value, out, _Flag(unembed.perturbed))


class _Flag:
    """A static bool that travels with the residuals."""

    def __init__(self, value: bool) -> None:
        self.value = value


jax.tree_util.register_pytree_node(_Flag, lambda flag: ((), flag.value), lambda value, _: _Flag(value))


def _chunked_bwd(temperature: float, residuals: Any, cotangents: Any) -> tuple[Any, Any]:
    chunks, unembed, out, needs_unembed = residuals
    g_logp, g_entropy = (
        jnp.zeros(g.shape, jnp.float32) if isinstance(g, jax.custom_derivatives.SymbolicZero) else g for g in cotangents
    )
    d_hidden, d_unembed = _backward(chunks, unembed, temperature, out, g_logp, g_entropy, needs_unembed.value)
    d_unembed = None if d_unembed is None else d_unembed.astype(unembed.dtype)
    return _Chunks(d_hidden, None, None), d_unembed  # type: ignore[arg-type]


_chunked.defvjp(_chunked_fwd, _chunked_bwd, symbolic_zeros=True)


@jax.custom_vjp
def _permute(x: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    # A gather's own transpose is a scatter-add, slow everywhere; a permutation's is another gather.
    return x[order]


def _permute_fwd(x: jax.Array, order: jax.Array, inverse: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x[order], inverse


def _permute_bwd(inverse: jax.Array, g: jax.Array) -> tuple[jax.Array, None, None]:
    return g[inverse], None, None


_permute.defvjp(_permute_fwd, _permute_bwd)


def token_logprobs(
    hidden: Float[AnyArray, "T D"],
    unembed: Float[AnyArray, "D V"],
    targets: Int[AnyArray, "T"],
    *,
    temperature: float = 1.0,
    chunk: int = 1024,
    loss_mask: Bool[AnyArray, "T"] | None = None,
) -> tuple[Float[Array, "T"], Float[Array, "T"]]:
    """Log-probability (nats) of `targets[t]` and full-vocabulary entropy, both under softmax(logits / temperature).

    `hidden[t]` must be the state that predicts `targets[t]`. With `loss_mask`, masked positions give 0,
    pass no gradient (they may be NaN), and cost nothing. `temperature` and `chunk` are static.
    """
    if temperature <= 0.0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    hidden, targets = jnp.asarray(hidden), jnp.asarray(targets)
    unembed = jnp.asarray(unembed).astype(hidden.dtype)
    num_tokens = hidden.shape[0]
    if num_tokens == 0:
        return jnp.zeros((0,), jnp.float32), jnp.zeros((0,), jnp.float32)
    mask = jnp.ones((num_tokens,), bool) if loss_mask is None else jnp.asarray(loss_mask)
    order = inverse = jnp.arange(num_tokens)
    if loss_mask is not None:
        order = jnp.argsort(~mask, stable=True)
        inverse = jnp.argsort(order)
        hidden, targets, mask = _permute(hidden, order, inverse), targets[order], mask[order]
    chunk = min(chunk, num_tokens)
    padding = -num_tokens % chunk
    chunks = _Chunks(
        hidden=jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, chunk, hidden.shape[1]),
        targets=jnp.pad(targets, (0, padding)).reshape(-1, chunk),
        mask=jnp.pad(mask, (0, padding)).reshape(-1, chunk),
    )
    logp, entropy = (x.reshape(-1)[:num_tokens] for x in _chunked(chunks, unembed, temperature))
    if loss_mask is not None:
        logp, entropy = _permute(logp, inverse, order), _permute(entropy, inverse, order)
    return logp, entropy
