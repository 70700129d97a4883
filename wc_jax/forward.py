"""A batch through the policy and its head: log-probabilities of the trained tokens, and the drafting head's loss."""

import jax
import jax.numpy as jnp

from wc_jax.logprobs import row_logprobs
from wc_jax.policy import Compute, Params, PolicyConfig, hidden_states, unembed
from wc_jax.policy.mtp import mtp_states
from wc_jax.types import Batch


def batch_states(params: Params, config: PolicyConfig, batch: Batch, *, compute: Compute) -> jax.Array:
    """[B, T, D]: the policy's states at every token of the batch."""
    return hidden_states(
        params,
        config,
        batch.tokens,
        batch.positions,
        batch.visible_until,
        batch.predecessor,
        batch.images,
        compute=compute,
    )


def batch_logprobs(
    params: Params,
    config: PolicyConfig,
    batch: Batch,
    *,
    compute: Compute,
    temperature: float,
    chunk: int,
    hidden: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """`(logp[B, T], entropy[B, T])` of the trained tokens, 0 elsewhere; entry t is token t's own.

    `hidden`: `batch_states`, where they are there already.
    """
    hidden = batch_states(params, config, batch, compute=compute) if hidden is None else hidden
    logp, entropy = _of_next(
        hidden,
        unembed(params, config),
        batch,
        jnp.asarray(batch.loss_mask),
        compute=compute,
        temperature=temperature,
        chunk=chunk,
    )
    return logp, entropy


def mtp_nll(
    params: Params, config: PolicyConfig, batch: Batch, hidden: jax.Array, *, compute: Compute, chunk: int
) -> jax.Array:
    """Cross-entropy of the drafting head, nats: the sum over trained tokens of `count_weight` times it.

    A token whose predecessor is the first of its sample has no state two before it, and no part in the sum.
    Divided by the sum of `count_weight`, it is the same mean as the policy's loss.
    """
    states = mtp_states(params, config, hidden, batch, compute=compute)
    head = jax.lax.stop_gradient(unembed(params, config))
    before = jnp.asarray(batch.predecessor)
    second = jax.vmap(lambda row, at: row[jnp.maximum(at, 0)])(before, before)
    mask = jnp.asarray(batch.loss_mask) & (before >= 0) & (second >= 0)
    logp, _ = _of_next(states, head, batch, mask, compute=compute, temperature=1.0, chunk=chunk)
    return -jnp.sum(jnp.where(mask, logp * batch.count_weight, 0.0))


def _of_next(
    states: jax.Array,
    head: jax.Array,
    batch: Batch,
    mask: jax.Array,
    *,
    compute: Compute,
    temperature: float,
    chunk: int,
) -> tuple[jax.Array, jax.Array]:
    # A state predicts the token right after it, where that token follows it in its sample.
    columns = jnp.arange(batch.tokens.shape[1], dtype=jnp.int32)[None, :]
    follows = batch.predecessor == columns - 1
    predicts = jnp.pad((mask & follows)[:, 1:], ((0, 0), (0, 1)))
    targets = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))
    logp, entropy = row_logprobs(
        states, head, targets, predicts, temperature=temperature, chunk=chunk, mesh=compute.mesh
    )

    def align(x: jax.Array) -> jax.Array:
        return jnp.pad(x[:, :-1], ((0, 0), (1, 0)))

    return align(logp), align(entropy)
