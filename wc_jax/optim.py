"""AdamW with a warmed-up schedule, a global clip, and decay on matrices only: one optax chain.

Masters and moments are float32 unless the config asks for less by name; arithmetic is float32 always.
"""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import optax

from wc_jax.policy.weight import Params, is_decayed


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """The update rule. Steps are counted in applied updates."""

    lr: float = 2e-6
    schedule: Literal["constant", "cosine"] = "constant"
    warmup_steps: int = 0
    """Linear from 0; the first update already has lr / warmup_steps."""
    total_steps: int = 0
    """Where cosine ends; ignored by constant."""
    final_share: float = 0.1
    """Cosine ends at lr * final_share."""
    b1: float = 0.9
    b2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    """Gradients longer than this are scaled down to it; 0 turns it off."""
    moments_dtype: Literal["float32", "bfloat16"] = "float32"
    """What Adam's two moments are stored in. bfloat16 halves their memory, at the price of rounding noise."""

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr must be at least 0, got {self.lr}")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"schedule must be 'constant' or 'cosine', got {self.schedule!r}")
        if self.moments_dtype not in ("float32", "bfloat16"):
            raise ValueError(f"moments_dtype must be 'float32' or 'bfloat16', got {self.moments_dtype!r}")
        if self.warmup_steps < 0 or self.max_grad_norm < 0 or self.weight_decay < 0:
            raise ValueError("warmup_steps, max_grad_norm and weight_decay must be at least 0")
        if self.schedule == "cosine" and self.total_steps <= self.warmup_steps:
            raise ValueError(
                f"total_steps must exceed warmup_steps for cosine, got {self.total_steps} and {self.warmup_steps}"
            )


def learning_rate(config: OptimConfig) -> optax.Schedule:
    """Learning rate of update number `count`, from 0."""
    if config.schedule == "cosine":
        after = optax.cosine_decay_schedule(
            config.lr, config.total_steps - config.warmup_steps, alpha=config.final_share
        )
    else:
        after = optax.constant_schedule(config.lr)
    if config.warmup_steps == 0:
        return after
    warm = optax.linear_schedule(config.lr / config.warmup_steps, config.lr, max(config.warmup_steps - 1, 1))
    return optax.join_schedules([warm, after], [config.warmup_steps])


def decay_mask(params: Params) -> dict[str, bool]:
    """True for matrices: norms' scales and biases are not pulled to zero."""
    return {name: is_decayed(name) for name in params}


def make_optimizer(config: OptimConfig) -> optax.GradientTransformation:
    """Clip, Adam, decoupled decay, schedule. The update is float32, whatever is stored in what."""
    parts = [optax.clip_by_global_norm(config.max_grad_norm)] if config.max_grad_norm > 0 else []
    adam = optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps)
    parts.append(_with_moments_in(adam, jnp.dtype(config.moments_dtype)))
    if config.weight_decay > 0:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    parts.append(optax.scale_by_learning_rate(learning_rate(config)))
    return optax.chain(*parts)


def apply_gradients(
    optimizer: optax.GradientTransformation, grads: Params, opt_state: optax.OptState, params: Params
) -> tuple[Params, optax.OptState]:
    """One update: `(new params, new optimizer state)`, each stored in the dtype it had."""
    grads = jax.tree.map(lambda grad: grad.astype(jnp.float32), grads)
    # optax mixes integers and floats in its bias correction; our tests forbid that to our own code.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state


def _with_moments_in(adam: optax.GradientTransformation, dtype: jnp.dtype) -> optax.GradientTransformation:
    """Adam whose moments are stored in `dtype` between updates and are float32 within one.

    Rounding to bfloat16 is stochastic. To the nearest, the second moment could never fall: b2 = 0.999 takes
    a thousandth off it in each update, and bfloat16's neighbors are a 256th apart.
    """

    def store(state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        if dtype == jnp.float32:
            return state
        # Its own key for each update and each array: a pure function of the step, so that a resume is exact.
        key = jax.random.fold_in(jax.random.key(0), state.count)
        leaves, tree = jax.tree.flatten((state.mu, state.nu))
        stored = [_round_stochastically(jax.random.fold_in(key, i), leaf) for i, leaf in enumerate(leaves)]
        mu, nu = jax.tree.unflatten(tree, stored)
        return state._replace(mu=mu, nu=nu)

    def in_float32(state: optax.ScaleByAdamState) -> optax.ScaleByAdamState:
        mu, nu = jax.tree.map(lambda moment: moment.astype(jnp.float32), (state.mu, state.nu))
        return state._replace(mu=mu, nu=nu)

    def init(params: Params) -> optax.ScaleByAdamState:
        state = adam.init(params)
        mu, nu = jax.tree.map(lambda moment: moment.astype(dtype), (state.mu, state.nu))
        return state._replace(mu=mu, nu=nu)

    def update(
        grads: Params, state: optax.ScaleByAdamState, params: Params | None = None
    ) -> tuple[Params, optax.ScaleByAdamState]:
        updates, state = adam.update(grads, in_float32(state), params)
        return updates, store(state)

    return optax.GradientTransformation(init, update)


def _round_stochastically(key: jax.Array, value: jax.Array) -> jax.Array:
    """float32 -> bfloat16, up or down with the odds that keep the mean."""
    dropped = jax.random.bits(key, value.shape, jnp.uint16).astype(jnp.uint32)
    bits = jax.lax.bitcast_convert_type(value, jnp.uint32) + dropped
    return jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)


def global_norm(tree: Params) -> jax.Array:
    """Euclidean length of all gradients together."""
    return optax.tree.norm(tree)
