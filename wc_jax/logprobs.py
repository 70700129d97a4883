"""Log-probability and entropy of tokens from hidden states, a chunk of tokens at a time.

No `T x V` array ever exists: each chunk's logits live only while that chunk is worked on, in the
forward pass and again in the backward pass, which recomputes them.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from wc_jax.types import AnyArray


@jax.custom_vjp
def _permute(x: jax.Array, order: jax.Array, inverse: jax.Array) -> jax.Array:
    # A gather's own transpose is a scatter-add, slow everywhere; a permutation's is another gather.
    return x[order]


def _permute_fwd(x, order, inverse):  # type: ignore[no-untyped-def]
    return x[order], inverse


def _permute_bwd(inverse, g):  # type: ignore[no-untyped-def]
    return g[inverse], None, None


_permute.defvjp(_permute_fwd, _permute_bwd)


def _chunk_logprobs(
    hidden: jax.Array, unembed: jax.Array, targets: jax.Array, temperature: float
) -> tuple[jax.Array, jax.Array]:
    logits = jax.lax.dot_general(hidden, unembed, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)
    logits = logits / temperature
    logits = logits - jax.lax.stop_gradient(jnp.max(logits, axis=1, keepdims=True))
    exps = jnp.exp(logits)
    total = jnp.sum(exps, axis=1)
    log_total = jnp.log(total)
    # A comparison instead of a gather: its gradient is a product, not a scatter.
    is_target = jnp.arange(logits.shape[1])[None, :] == targets[:, None]
    picked = jnp.sum(jnp.where(is_target, logits, 0.0), axis=1)
    # exp(logit) underflows to 0 before logit reaches -inf, so the product is finite.
    entropy = log_total - jnp.sum(exps * logits, axis=1) / total
    return picked - log_total, entropy


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
    pass no gradient, and cost nothing: tokens are sorted so that chunks without any trained token are skipped.
    """
    hidden, unembed, targets = jnp.asarray(hidden), jnp.asarray(unembed), jnp.asarray(targets)
    num_tokens = hidden.shape[0]
    if temperature <= 0.0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, got {chunk}")
    if num_tokens == 0:
        return jnp.zeros((0,), jnp.float32), jnp.zeros((0,), jnp.float32)
    chunk = min(chunk, num_tokens)
    unembed = unembed.astype(hidden.dtype)
    mask = jnp.ones((num_tokens,), bool) if loss_mask is None else jnp.asarray(loss_mask)
    inverse = None
    if loss_mask is not None:
        order = jnp.argsort(~mask, stable=True)
        inverse = jnp.argsort(order)
        hidden = _permute(hidden, order, inverse)
        targets, mask = targets[order], mask[order]
    padding = -num_tokens % chunk
    hidden = jnp.pad(hidden, ((0, padding), (0, 0))).reshape(-1, chunk, hidden.shape[1])
    targets = jnp.pad(targets, (0, padding)).reshape(-1, chunk)
    mask = jnp.pad(mask, (0, padding)).reshape(-1, chunk)

    @partial(jax.checkpoint, prevent_cse=False)
    def work(h: jax.Array, w: jax.Array, t: jax.Array, m: jax.Array) -> tuple[jax.Array, jax.Array]:
        def run(h: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
            # Behind the mask the state is replaced, not the result: a NaN there must not reach the gradient.
            logp, entropy = _chunk_logprobs(jnp.where(m[:, None], h, 0), w, t, temperature)
            return jnp.where(m, logp, 0.0), jnp.where(m, entropy, 0.0)

        def skip(h: jax.Array, w: jax.Array) -> tuple[jax.Array, jax.Array]:
            return jnp.zeros((chunk,), jnp.float32), jnp.zeros((chunk,), jnp.float32)

        return jax.lax.cond(jnp.any(m), run, skip, h, w)

    def step(carry: None, xs: tuple[jax.Array, ...]) -> tuple[None, tuple[jax.Array, jax.Array]]:
        h, t, m = xs
        return carry, work(h, unembed, t, m)

    _, (logp, entropy) = jax.lax.scan(step, None, (hidden, targets, mask))
    logp, entropy = logp.reshape(-1)[:num_tokens], entropy.reshape(-1)[:num_tokens]
    if inverse is not None:
        back = jnp.argsort(inverse)
        logp, entropy = _permute(logp, inverse, back), _permute(entropy, inverse, back)
    return logp, entropy
