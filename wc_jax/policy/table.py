"""Every weight of a policy on one line: shape, logical axes, initial distribution."""

import zlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from wc_jax.policy.config import PolicyConfig

Params = dict[str, jax.Array]
"""Flat: name -> array. Weights of the layers are stacked, `[L, ...]`."""


@dataclass(frozen=True)
class Weight:
    """One row of the table. `std` is of the normal initialization; None means ones (a norm's scale)."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    std: float | None

    @property
    def is_matrix(self) -> bool:
        """Whether weight decay applies: everything but the norms' scales."""
        return self.std is not None


def weight_table(config: PolicyConfig) -> dict[str, Weight]:
    """The table of `config`: the one place that knows names, shapes and axes."""
    c = config
    V, D, L, F = c.vocab_size, c.width, c.num_layers, c.ff_dim
    Q, K = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    std = 0.02
    # What writes to the residual stream starts smaller, so that its variance does not grow with depth.
    out_std = std / (2 * L) ** 0.5
    table = {
        "embed": Weight((V, D), ("vocab", "embed"), std),
        "layers.attn_norm": Weight((L, D), ("layer", "embed"), None),
        "layers.q": Weight((L, D, Q), ("layer", "embed", "heads"), std),
        "layers.k": Weight((L, D, K), ("layer", "embed", "kv_heads"), std),
        "layers.v": Weight((L, D, K), ("layer", "embed", "kv_heads"), std),
        "layers.o": Weight((L, Q, D), ("layer", "heads", "embed"), out_std),
        "layers.mlp_norm": Weight((L, D), ("layer", "embed"), None),
        "layers.gate": Weight((L, D, F), ("layer", "embed", "ff"), std),
        "layers.up": Weight((L, D, F), ("layer", "embed", "ff"), std),
        "layers.down": Weight((L, F, D), ("layer", "ff", "embed"), out_std),
        "final_norm": Weight((D,), ("embed",), None),
    }
    if not c.tie_embeddings:
        table["head"] = Weight((D, V), ("embed", "vocab"), std)
    return table


def num_params(config: PolicyConfig) -> int:
    """Number of scalars in the table."""
    return sum(_size(w.shape) for w in weight_table(config).values())


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


def init_params(config: PolicyConfig, key: jax.Array) -> Params:
    """Fresh float32 weights. Each weight's stream depends on its name only, not on the table's order."""
    params: Params = {}
    for name, weight in weight_table(config).items():
        if weight.std is None:
            params[name] = jnp.ones(weight.shape, jnp.float32)
        else:
            stream = jax.random.fold_in(key, zlib.crc32(name.encode()))
            params[name] = weight.std * jax.random.normal(stream, weight.shape, jnp.float32)
    return params


def check_params(params: Params, config: PolicyConfig) -> None:
    """Raises ValueError naming every missing, unknown or misshapen weight."""
    table = weight_table(config)
    problems = [f"missing {n}" for n in table if n not in params]
    problems += [f"unknown {n}" for n in params if n not in table]
    problems += [
        f"{n} must be {w.shape}, got {params[n].shape}"
        for n, w in table.items()
        if n in params and params[n].shape != w.shape
    ]
    if problems:
        raise ValueError("params do not fit the config: " + "; ".join(problems))
