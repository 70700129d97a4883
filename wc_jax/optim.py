"""AdamW with a warmed-up schedule, a global clip, and decay on matrices only: one optax chain."""

from dataclasses import dataclass
from typing import Literal

import jax
import optax

from wc_jax.policy.table import Params


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

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr must be at least 0, got {self.lr}")
        if self.schedule not in ("constant", "cosine"):
            raise ValueError(f"schedule must be 'constant' or 'cosine', got {self.schedule!r}")
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
    """True for matrices: norms' scales are not pulled to zero."""
    return {name: not name.endswith("norm") for name in params}


def make_optimizer(config: OptimConfig) -> optax.GradientTransformation:
    """Clip, Adam, decoupled decay, schedule. State and update are float32, like the masters."""
    parts = [optax.clip_by_global_norm(config.max_grad_norm)] if config.max_grad_norm > 0 else []
    parts.append(optax.scale_by_adam(b1=config.b1, b2=config.b2, eps=config.eps))
    if config.weight_decay > 0:
        parts.append(optax.add_decayed_weights(config.weight_decay, mask=decay_mask))
    parts.append(optax.scale_by_learning_rate(learning_rate(config)))
    return optax.chain(*parts)


def apply_gradients(
    optimizer: optax.GradientTransformation, grads: Params, opt_state: optax.OptState, params: Params
) -> tuple[Params, optax.OptState]:
    """One update: `(new params, new optimizer state)`."""
    # optax mixes integers and floats in its bias correction; our tests forbid that to our own code.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state


def global_norm(tree: Params) -> jax.Array:
    """Euclidean length of all gradients together."""
    return optax.tree.norm(tree)
