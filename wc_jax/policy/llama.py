"""The forward function of the Llama family: tokens in, hidden states out. The head is `logprobs`' business."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from wc_jax.mesh import STATES, constrain
from wc_jax.policy.attention import path_attention
from wc_jax.policy.blocks import gated, linear, rms_norm
from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.rope import rope_table, rotate
from wc_jax.policy.table import Params
from wc_jax.shapes import Array, Float, Int
from wc_jax.types import AnyArray

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
    mesh: Mesh | None = None
    """The devices that share the work; None is one device."""

    @property
    def jnp_dtype(self) -> jnp.dtype:
        return jnp.dtype(self.dtype)


IN_FLOAT32 = Compute()
"""The default: plain float32, looped layers, nothing recomputed."""


def _layer(
    config: PolicyConfig, cos: jax.Array, sin: jax.Array, visible_until: jax.Array, mesh: Mesh | None
) -> Callable:
    spread = mesh is not None

    def apply(x: jax.Array, w: Params) -> tuple[jax.Array, None]:
        batch, length, _ = x.shape
        with jax.named_scope("attention"):
            h = rms_norm(x, w["attn_norm"], config.norm_eps)
            q = linear(h, w["q"], spread).reshape(batch, length, config.num_heads, config.head_dim)
            k = linear(h, w["k"], spread).reshape(batch, length, config.num_kv_heads, config.head_dim)
            v = linear(h, w["v"], spread).reshape(batch, length, config.num_kv_heads, config.head_dim)
            out = path_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, visible_until, mesh=mesh)
            x = x + linear(out.reshape(batch, length, -1), w["o"], spread)
        with jax.named_scope("mlp"):
            h = rms_norm(x, w["mlp_norm"], config.norm_eps)
            x = x + linear(gated(linear(h, w["gate"], spread), linear(h, w["up"], spread)), w["down"], spread)
        return constrain(x, mesh, *STATES), None

    return apply


def _with_remat(layer: Callable, remat: Remat) -> Callable:
    if remat == "none":
        return layer
    if remat == "dots":
        return jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
    if remat == "layer":
        return jax.checkpoint(layer)
    raise ValueError(f"remat must be 'none', 'dots' or 'layer', got {remat!r}")


def hidden_states(
    params: Params,
    config: PolicyConfig,
    tokens: Int[AnyArray, "B T"],
    positions: Int[AnyArray, "B T"] | None = None,
    visible_until: Int[AnyArray, "B T"] | None = None,
    *,
    compute: Compute = IN_FLOAT32,
) -> Float[Array, "B T D"]:
    """Final normed states; state t has seen token t and the tokens before it in its own sample.

    `positions` and `visible_until` as in `Batch`; None: each row is one sample.
    """
    tokens = jnp.asarray(tokens)
    if positions is None:
        positions = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :], tokens.shape)
    if visible_until is None:
        visible_until = jnp.full(tokens.shape, tokens.shape[1], jnp.int32)
    positions, visible_until = jnp.asarray(positions), jnp.asarray(visible_until)
    x = constrain(params["embed"].astype(compute.jnp_dtype)[tokens], compute.mesh, *STATES)
    cos, sin = rope_table(positions, head_dim=config.head_dim, theta=config.rope_theta)
    layer = _with_remat(_layer(config, cos, sin, visible_until, compute.mesh), compute.remat)
    stacked = {name.removeprefix("layers."): w for name, w in params.items() if name.startswith("layers.")}
    if compute.unroll:
        for i in range(config.num_layers):
            x, _ = layer(x, {name: w[i] for name, w in stacked.items()})
    else:
        x, _ = jax.lax.scan(layer, x, stacked)
    return rms_norm(x, params["final_norm"], config.norm_eps)


def unembed(params: Params, config: PolicyConfig) -> Float[Array, "D V"]:
    """The matrix that turns states into logits; with tied embeddings, the embedding itself."""
    return params["embed"].T if config.tie_embeddings else params["head"]
