"""Compiled functions over a batch: score it, train on it. Pure; each is jitted once by its maker."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding

from wc_jax.forward import batch_logprobs, batch_states, mtp_nll
from wc_jax.masked import all_finite, masked_count, quotient
from wc_jax.mesh import TOKENS, constrain, spec
from wc_jax.objective import empty_stats, merge, policy_objective, summarize
from wc_jax.optim import OptimConfig, apply_gradients, global_norm, learning_rate, make_optimizer
from wc_jax.policy import IN_FLOAT32, Compute, Params, PolicyConfig, weight_table
from wc_jax.sharding import param_shardings, state_shardings
from wc_jax.types import Batch, Stats, TrainState

Objective = Callable[..., tuple[jax.Array, jax.Array, Stats]]
"""`policy_objective` with its options filled in."""


Trained = frozenset[str] | None
"""Names of the weights that are trained; None: all are. The others stay as they are, without gradients or moments."""

Places = dict[str, NamedSharding] | None


class SftStats(NamedTuple):
    """Sums over the batch; divide on the host."""

    nll_sum: jax.Array
    token_count: jax.Array
    grad_norm: jax.Array


def init_state(params: Params, optim: OptimConfig, trained: Trained = None) -> TrainState:
    """A state at step 0 that owns `params` (the steps donate it). Weights that are not trained have no moments."""
    return TrainState(
        params=params,
        opt_state=make_optimizer(optim).init(_trained_part(params, trained)),
        step=jnp.zeros((), jnp.int32),
        num_skipped=jnp.zeros((), jnp.int32),
    )


def _trained_part(params: Params, trained: Trained) -> Params:
    return params if trained is None else {name: w for name, w in params.items() if name in trained}


def _micro_batches(batch: Batch, micro_rows: int | None, mesh: Mesh | None) -> Batch:
    """[B, T] -> [B / micro_rows, micro_rows, T] in every array. Row r goes to micro-batch r modulo their number: so a
    batch whose rows lie on several devices is cut without moving any.
    """
    num_rows = batch.tokens.shape[0]
    rows = num_rows if micro_rows is None else micro_rows
    if rows < 1 or num_rows % rows:
        raise ValueError(f"micro_rows must divide the batch's {num_rows} rows, got {rows}")

    def cut(x: jax.Array) -> jax.Array:
        return constrain(x.reshape(rows, num_rows // rows, *x.shape[1:]).swapaxes(0, 1), mesh, None, *TOKENS)

    return jax.tree.map(cut, batch)


def _summed_gradients(
    loss: Callable[[Params, Batch], tuple[jax.Array, Stats]],
    params: Params,
    micros: Batch,
    places: Places,
    trained: Trained,
) -> tuple[Params, Stats]:
    """Gradients of the loss sums by the trained weights, and the stats, of all micro-batches together, one of them in
    memory at a time.
    """
    moving = _trained_part(params, trained)
    places = None if places is None else {name: places[name] for name in moving}

    def loss_of(moving: Params, micro: Batch) -> tuple[jax.Array, Stats]:
        return loss({**params, **moving}, micro)

    def accumulate(carry: tuple[Params, Stats], micro: Batch) -> tuple[tuple[Params, Stats], None]:
        def add(carry: tuple[Params, Stats]) -> tuple[Params, Stats]:
            grads, stats = carry
            more, found = jax.grad(loss_of, has_aux=True)(moving, micro)
            # Sums over many micro-batches are float32, whatever the masters are.
            grads = jax.tree.map(lambda a, b: a + b.astype(jnp.float32), grads, more)
            # Told where they lie, gradients are summed into parts instead of whole copies.
            return grads if places is None else jax.lax.with_sharding_constraint(grads, places), merge(stats, found)

        # The batch's height is fixed, so that it compiles once: rows of padding must cost nothing.
        return jax.lax.cond(jnp.any(micro.loss_mask), add, lambda carry: carry, carry), None

    start = (jax.tree.map(lambda p: jnp.zeros(p.shape, jnp.float32), moving), empty_stats())
    return jax.lax.scan(accumulate, start, micros)[0]


def _update(
    state: TrainState, grads: Params, optim: OptimConfig, has_signal: jax.Array
) -> tuple[TrainState, jax.Array]:
    """Apply the gradients, or leave all but the skip counter alone; `(state, was it skipped)`.

    A skipped batch moves nothing: parameters, both moments and the schedule's step stay as they were.
    """
    optimizer = make_optimizer(optim)
    ok = has_signal & all_finite(grads)

    def apply(params: Params, opt_state: object) -> tuple[Params, object]:
        return apply_gradients(optimizer, grads, opt_state, params)

    def keep(params: Params, opt_state: object) -> tuple[Params, object]:
        return params, opt_state

    moving = {name: state.params[name] for name in grads}
    moving, opt_state = jax.lax.cond(ok, apply, keep, moving, state.opt_state)
    moved = ok.astype(jnp.int32)
    return TrainState({**state.params, **moving}, opt_state, state.step + moved, state.num_skipped + 1 - moved), ~ok


def _compiled_update(
    update: Callable, config: PolicyConfig, optim: OptimConfig, mesh: Mesh | None, trained: Trained
) -> Callable:
    """`update` jitted; the state is donated, and lies after it where it lay before."""
    if mesh is None:
        return jax.jit(update, donate_argnums=0)
    shapes = {name: jax.ShapeDtypeStruct(w.shape, jnp.float32) for name, w in weight_table(config).items()}
    state = jax.eval_shape(lambda params: init_state(params, optim, trained), shapes)
    places = state_shardings(state, config, mesh)
    return jax.jit(
        update,
        donate_argnums=0,
        in_shardings=(places, NamedSharding(mesh, spec(*TOKENS))),
        out_shardings=(places, NamedSharding(mesh, spec())),
    )


def make_score_fn(
    config: PolicyConfig,
    *,
    compute: Compute = IN_FLOAT32,
    temperature: float = 1.0,
    chunk: int = 512,
    micro_rows: int | None = None,
) -> Callable[[Params, Batch], tuple[jax.Array, jax.Array]]:
    """Compiled `(params, batch) -> (logp[B, T], entropy[B, T])`: the behavior log-probabilities of method.md.

    With `micro_rows`, so many rows are in memory at a time.
    """

    def score(params: Params, batch: Batch) -> tuple[jax.Array, jax.Array]:
        def one(micro: Batch) -> tuple[jax.Array, jax.Array]:
            def work() -> tuple[jax.Array, jax.Array]:
                return batch_logprobs(params, config, micro, compute=compute, temperature=temperature, chunk=chunk)

            def skip() -> tuple[jax.Array, jax.Array]:
                nothing = jnp.zeros(micro.tokens.shape, jnp.float32)
                return nothing, nothing

            return jax.lax.cond(jnp.any(micro.loss_mask), work, skip)

        found = jax.lax.map(one, _micro_batches(batch, micro_rows, compute.mesh))
        logp, entropy = (x.swapaxes(0, 1).reshape(batch.tokens.shape) for x in found)
        return logp, entropy

    if compute.mesh is None:
        return jax.jit(score)
    places = NamedSharding(compute.mesh, spec(*TOKENS))
    return jax.jit(score, in_shardings=(param_shardings(config, compute.mesh), places), out_shardings=places)


def make_train_step(
    config: PolicyConfig,
    optim: OptimConfig,
    *,
    objective: Objective = policy_objective,
    trains_without_advantage: bool = False,
    trained: Trained = None,
    mtp_coef: float = 0.0,
    compute: Compute = IN_FLOAT32,
    temperature: float = 1.0,
    chunk: int = 512,
    micro_rows: int | None = None,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict[str, jax.Array]]]:
    """Compiled `(state, batch) -> (state, metrics)`: one policy update. The state passed in is donated.

    `objective` is `policy_objective` with its options filled in (`functools.partial`); with a term that acts
    without any advantage, as a KL penalty does, say so by `trains_without_advantage`. The gradient is of
    loss_sum / token_count over the *whole* batch, whatever `micro_rows` is. A batch without signal (no trained
    token, or advantages all 0 and `trains_without_advantage` false) and one with a non-finite gradient
    are skipped and counted: `skipped` is 1 and `grad_norm` tells which it was. `mtp_coef` times the drafting head's
    cross-entropy (`forward.mtp_nll`) is added to the loss of policies that have one.
    Metrics are those of `objective.summarize` and `grad_norm`, `learning_rate`, `skipped`.
    """

    def loss(params: Params, batch: Batch) -> tuple[jax.Array, Stats]:
        hidden = batch_states(params, config, batch, compute=compute)
        logp, entropy = batch_logprobs(
            params, config, batch, compute=compute, temperature=temperature, chunk=chunk, hidden=hidden
        )
        loss_sum, _, stats = objective(
            logp,
            batch.old_logp,
            batch.advantage,
            batch.loss_mask,
            sampler_logp=batch.sampler_logp,
            ref_logp=batch.ref_logp,
            entropy=entropy,
            token_weight=batch.token_weight,
            count_weight=batch.count_weight,
        )
        if mtp_coef:
            loss_sum += mtp_coef * mtp_nll(params, config, batch, hidden, compute=compute, chunk=chunk)
        return loss_sum, stats

    places = None if compute.mesh is None else param_shardings(config, compute.mesh)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        micros = _micro_batches(batch, micro_rows, compute.mesh)
        grads, stats = _summed_gradients(loss, state.params, micros, places, trained)
        grads = jax.tree.map(lambda g: quotient(g, jnp.broadcast_to(stats.weight_sum, g.shape)), grads)
        has_signal = stats.weight_sum > 0
        if not trains_without_advantage:
            has_signal = has_signal & (stats.advantage_abs_max > 0)
        rate = jnp.asarray(learning_rate(optim)(state.step), jnp.float32)
        state, skipped = _update(state, grads, optim, has_signal)
        metrics = summarize(stats)
        metrics["grad_norm"] = global_norm(grads)
        metrics["learning_rate"] = rate
        metrics["skipped"] = skipped.astype(jnp.float32)
        return state, metrics

    return _compiled_update(train_step, config, optim, compute.mesh, trained)


def make_sft_step(
    config: PolicyConfig,
    optim: OptimConfig,
    *,
    trained: Trained = None,
    compute: Compute = IN_FLOAT32,
    chunk: int = 512,
) -> Callable[[TrainState, Batch], tuple[TrainState, SftStats]]:
    """One compiled update of cross-entropy over the trained tokens. The state passed in is donated."""

    def loss(moving: Params, params: Params, batch: Batch) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        params = {**params, **moving}
        logp, _ = batch_logprobs(params, config, batch, compute=compute, temperature=1.0, chunk=chunk)
        nll_sum, count = -jnp.sum(logp), masked_count(batch.loss_mask)
        return quotient(nll_sum, count), (nll_sum, count)

    def sft_step(state: TrainState, batch: Batch) -> tuple[TrainState, SftStats]:
        grads, (nll_sum, count) = jax.grad(loss, has_aux=True)(
            _trained_part(state.params, trained), state.params, batch
        )
        state, _ = _update(state, grads, optim, count > 0)
        return state, SftStats(nll_sum, count, global_norm(grads))

    return _compiled_update(sft_step, config, optim, compute.mesh, trained)
