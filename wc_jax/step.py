"""Compiled functions over a batch: score it, train on it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from wc_jax.logprobs import token_logprobs
from wc_jax.optim import OptimConfig, global_norm, make_optimizer
from wc_jax.policy import Compute, PolicyConfig, hidden_states, unembed
from wc_jax.policy.table import Params
from wc_jax.types import Batch, TrainState


class SftStats(NamedTuple):
    """Sums over the batch; divide on the host."""

    nll_sum: jax.Array
    token_count: jax.Array
    grad_norm: jax.Array


def batch_logprobs(
    params: Params, config: PolicyConfig, batch: Batch, *, compute: Compute, temperature: float, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """`(logp[B, T], entropy[B, T])` of the trained tokens, 0 elsewhere; entry t is token t's own."""
    hidden = hidden_states(
        params, config, batch.tokens, batch.positions, batch.segment_ids, compute=compute
    )
    # State t predicts token t + 1. The last state of a row or of a segment predicts nothing.
    same = batch.segment_ids[:, 1:] == batch.segment_ids[:, :-1]
    predicts = jnp.pad(batch.loss_mask[:, 1:] & same, ((0, 0), (0, 1)))
    targets = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))
    logp, entropy = token_logprobs(
        hidden.reshape(-1, hidden.shape[-1]),
        unembed(params, config),
        targets.reshape(-1),
        temperature=temperature,
        chunk=chunk,
        loss_mask=predicts.reshape(-1),
    )

    def align(x: jax.Array) -> jax.Array:
        return jnp.pad(x.reshape(batch.tokens.shape)[:, :-1], ((0, 0), (1, 0)))

    return align(logp), align(entropy)


def init_state(params: Params, optim: OptimConfig) -> TrainState:
    """A state at step 0 that owns `params` (the steps donate it)."""
    return TrainState(
        params=params,
        opt_state=make_optimizer(optim).init(params),
        step=jnp.zeros((), jnp.int32),
        num_skipped=jnp.zeros((), jnp.int32),
    )


def make_sft_step(
    config: PolicyConfig, optim: OptimConfig, *, compute: Compute = Compute(), chunk: int = 1024
) -> Callable[[TrainState, Batch], tuple[TrainState, SftStats]]:
    """One compiled update of cross-entropy over the trained tokens. The state passed in is donated."""
    optimizer = make_optimizer(optim)

    def loss(params: Params, batch: Batch) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        logp, _ = batch_logprobs(params, config, batch, compute=compute, temperature=1.0, chunk=chunk)
        nll_sum = -jnp.sum(logp)
        count = jnp.sum(batch.loss_mask, dtype=jnp.float32)
        return nll_sum / jnp.maximum(count, 1.0), (nll_sum, count)

    def sft_step(state: TrainState, batch: Batch) -> tuple[TrainState, SftStats]:
        grads, (nll_sum, count) = jax.grad(loss, has_aux=True)(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        stats = SftStats(nll_sum, count, global_norm(grads))
        return state._replace(params=params, opt_state=opt_state, step=state.step + 1), stats

    return jax.jit(sft_step, donate_argnums=0)
