"""How a policy is computed, apart from what it computes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

Remat = Literal["none", "dots", "layer"]


@dataclass(frozen=True, kw_only=True)
class Compute:
    """How the function is computed, not what: hashable, static under jit."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations and of matrix products' inputs; sums, norms, softmax and the head stay float32."""
    remat: Remat = "none"
    """What the backward pass recomputes: nothing; all but matrix products; whole layers."""
    unroll: bool = False
    """Write the layers out instead of looping: compiles slower, and lets XLA work across layers."""
    delta_chunk: int = 64
    """Tokens that recurrent layers take at a time. Rows must be laid out with `align` equal to it (`wc_jax.layout`)."""
    mesh: Mesh | None = None
    """The devices that share the work; None is one device."""

    @property
    def jnp_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)

    @property
    def is_spread(self) -> bool:
        """Whether arrays lie on several devices."""
        return self.mesh is not None


IN_FLOAT32 = Compute()
"""The default: plain float32, looped layers, nothing recomputed."""


def with_remat(layer: Callable, remat: Remat) -> Callable:
    """`layer`, whose backward pass computes again what `remat` says."""
    if remat == "none":
        return layer
    if remat == "dots":
        return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    if remat == "layer":
        return jax.checkpoint(layer)
    raise ValueError(f"remat must be 'none', 'dots' or 'layer', got {remat!r}")
