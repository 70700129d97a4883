"""One layer of a decoder: a mixer of tokens (attention or recurrence), then a gated feed-forward unit.

A layer's weights come as a flat dict under their last names: `q`, `q_bias`, `q.lora_a`, `attn_norm` and so on.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from wc_jax.mesh import STATES, constrain
from wc_jax.policy.attention import path_attention
from wc_jax.policy.blocks import gated, linear, rms_norm
from wc_jax.policy.compute import Compute
from wc_jax.policy.config import LayerKind, PolicyConfig
from wc_jax.policy.delta_layer import delta_mixer
from wc_jax.policy.lora import A, B
from wc_jax.policy.rope import turn
from wc_jax.policy.weight import Params


class Rows(NamedTuple):
    """What the layers know of the tokens in their rows; see `wc_jax.types.Batch`."""

    cos: jax.Array
    sin: jax.Array
    visible_until: jax.Array
    predecessor: jax.Array


def norm(x: jax.Array, scale: jax.Array, config: PolicyConfig) -> jax.Array:
    """RMS norm over the last axis, with the family's reading of the stored scale."""
    return rms_norm(x, 1.0 + scale if config.zero_centered_norms else scale, config.norm_eps)


def project(x: jax.Array, w: Params, name: str, config: PolicyConfig, compute: Compute) -> jax.Array:
    """The linear layer `name`, with its bias and its adapter where it has them."""
    out = linear(x, w[name], compute.is_spread)
    if name + A in w:
        assert config.lora is not None
        low = linear(x, w[name + A], compute.is_spread)
        out = out + config.lora.scale * linear(low, w[name + B], compute.is_spread)
    bias = w.get(f"{name}_bias")
    return out if bias is None else out + bias.astype(out.dtype)[None, None]


def apply_layer(
    x: jax.Array, w: Params, rows: Rows, *, kind: LayerKind, config: PolicyConfig, compute: Compute
) -> jax.Array:
    """[B, T, D] -> [B, T, D]."""
    h = norm(x, w["attn_norm"], config)
    if kind == "full":
        with jax.named_scope("attention"):
            x = x + _attention(h, w, rows, config, compute)
    else:
        with jax.named_scope("delta_rule"):
            x = x + _recurrence(h, w, rows, config, compute)
    with jax.named_scope("mlp"):
        h = norm(x, w["mlp_norm"], config)
        hidden = gated(project(h, w, "gate", config, compute), project(h, w, "up", config, compute))
        x = x + project(hidden, w, "down", config, compute)
    return constrain(x, compute.mesh, *STATES)


def _attention(h: jax.Array, w: Params, rows: Rows, config: PolicyConfig, compute: Compute) -> jax.Array:
    batch, length, _ = h.shape

    def heads(name: str) -> jax.Array:
        return project(h, w, name, config, compute).reshape(batch, length, -1, config.head_dim)

    q, k, v = heads("q"), heads("k"), heads("v")
    if config.has_qk_norm:
        q, k = norm(q, w["q_norm"], config), norm(k, w["k_norm"], config)
    q, k = (turn(x, rows.cos, rows.sin) for x in (q, k))
    out = path_attention(q, k, v, rows.visible_until, mesh=compute.mesh).reshape(batch, length, -1)
    if config.has_output_gate:
        gate = project(h, w, "q_gate", config, compute).astype(jnp.float32)
        out = (out.astype(jnp.float32) * jax.nn.sigmoid(gate)).astype(out.dtype)
    return project(out, w, "o", config, compute)


def _recurrence(h: jax.Array, w: Params, rows: Rows, config: PolicyConfig, compute: Compute) -> jax.Array:
    assert config.delta is not None
    batch, length, _ = h.shape
    q, k, v, z, a, b = (project(h, w, name, config, compute) for name in ("q", "k", "v", "z", "a", "b"))
    rate = -jnp.exp(w["a_log"].astype(jnp.float32))[None, None]
    log_decay = rate * jax.nn.softplus(a.astype(jnp.float32) + w["dt_bias"].astype(jnp.float32)[None, None])
    convs = (w["q_conv"], w["k_conv"], w["v_conv"])
    beta = jax.nn.sigmoid(b.astype(jnp.float32))
    trees = (rows.visible_until, rows.predecessor)
    out = delta_mixer((q, k, v), convs, log_decay, beta, *trees, config.delta, compute.delta_chunk, compute.mesh)
    out = rms_norm(out, w["o_norm"], config.norm_eps)
    gate = z.reshape(out.shape).astype(jnp.float32)
    out = (out.astype(jnp.float32) * jax.nn.silu(gate)).astype(h.dtype)
    return project(out.reshape(batch, length, -1), w, "o", config, compute)
