"""Low-rank adapters beside named linear layers (LoRA, arXiv 2106.09685)."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.policy.config import LoraConfig
from wc_jax.policy.weight import Weight

A, B = ".lora_a", ".lora_b"
"""What is appended to the name of a weight [..., in, out] for its adapters [..., in, rank] and [..., rank, out]."""


def with_adapters(table: Mapping[str, Weight], lora: LoraConfig) -> dict[str, Weight]:
    """The table and, after it, the adapters. Raises ValueError for a module that names no linear layer of the text
    policy.
    """
    found = dict(table)
    adapted = {name: name.rpartition(".")[2] for name in table if _can_adapt(name, table[name])}
    unknown = sorted(set(lora.modules) - set(adapted.values()))
    if unknown:
        raise ValueError(
            f"lora.modules: {unknown} are no linear layers of this policy; it has {sorted(set(adapted.values()))}"
        )
    for name, module in adapted.items():
        if module in lora.modules:
            weight = table[name]
            layers, (dim_in, dim_out) = weight.shape[:1], weight.shape[1:]
            axis_in, axis_out = weight.axes[1:]
            # B starts at zero, so that the adapted policy starts as the policy itself.
            found[name + A] = Weight((*layers, dim_in, lora.rank), ("layer", axis_in, "rank"), 1 / math.sqrt(dim_in))
            found[name + B] = Weight((*layers, lora.rank, dim_out), ("layer", "rank", axis_out), "zeros")
    return found


def _can_adapt(name: str, weight: Weight) -> bool:
    return len(weight.shape) == 3 and "conv" not in weight.axes and not name.startswith(("vision.", "mtp."))


def merged(params: Mapping[str, jax.Array | np.ndarray], lora: LoraConfig | None) -> dict[str, jax.Array | np.ndarray]:
    """The weights with what their adapters add, without the adapters: what engines and other tools load.

    >>> w, a, b = jnp.ones((1, 2, 2)), jnp.ones((1, 2, 1)), jnp.ones((1, 1, 2))
    >>> params = {"layers.q": w, "layers.q.lora_a": a, "layers.q.lora_b": b}
    >>> merged(params, LoraConfig(rank=1, alpha=3.0))["layers.q"].tolist()
    [[[4.0, 4.0], [4.0, 4.0]]]
    """
    if lora is None:
        return dict(params)
    found: dict[str, jax.Array | np.ndarray] = {}
    for name, weight in params.items():
        if name + A in params:
            found[name] = weight + lora.scale * jnp.matmul(
                jnp.asarray(params[name + A]), jnp.asarray(params[name + B]), precision=jax.lax.Precision.HIGHEST
            ).astype(weight.dtype)
        elif not name.endswith((A, B)):
            found[name] = weight
    return found


def is_adapter(name: str) -> bool:
    """Whether the weight of this name is an adapter."""
    return name.endswith((A, B))
