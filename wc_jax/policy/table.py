"""Every weight of a policy on one line: shape, logical axes, initial distribution."""

import math
import zlib
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.lora import is_adapter, with_adapters
from wc_jax.policy.vision_table import vision_table
from wc_jax.policy.weight import STD, Params, Weight


def weight_table(config: PolicyConfig) -> dict[str, Weight]:
    """The table of `config`: the one place that knows names, shapes and axes.

    `layers.*` are of every layer. In hybrid policies `full.*` are of the attention layers and `linear.*` of the
    recurrent ones, each stacked in the order of its own kind. With adapters, `X.lora_a` and `X.lora_b` follow.
    """
    c = config
    table = {"embed": Weight((c.vocab_size, c.width), ("vocab", "embed"), STD)}
    mixer = "full" if c.is_hybrid else "layers"
    table |= _stack("layers", _feed_forward(c), c.num_layers)
    table |= _stack(mixer, _attention(c), c.kinds.count("full"))
    if c.delta is not None:
        table |= _stack("linear", _delta(c), c.kinds.count("linear"))
    table["final_norm"] = _norm(c)
    if not c.tie_embeddings:
        table["head"] = Weight((c.width, c.vocab_size), ("embed", "vocab"), STD)
    if c.num_mtp_layers:
        table["mtp.fc"] = Weight((2 * c.width, c.width), ("embed_pair", "embed"), STD)
        table |= {f"mtp.{name}": _norm(c) for name in ("embed_norm", "hidden_norm", "final_norm")}
        table |= _stack("mtp.layers", _attention(c) | _feed_forward(c), c.num_mtp_layers)
    if c.vision is not None:
        table |= vision_table(c.vision)
    return table if c.lora is None else with_adapters(table, c.lora)


def trained_names(config: PolicyConfig, *, vision: bool = False, mtp: bool = False) -> frozenset[str]:
    """Which weights an update moves: the adapters where there are any, else the text policy's.

    `vision`: the tower too. `mtp`: the drafting head too. Both rest otherwise, weight decay included.
    """

    def is_trained(name: str) -> bool:
        if name.startswith("mtp."):
            return mtp
        if name.startswith("vision."):
            return vision
        return config.lora is None or is_adapter(name)

    return frozenset(name for name in weight_table(config) if is_trained(name))


def _stack(prefix: str, rows: Mapping[str, Weight], count: int) -> dict[str, Weight]:
    return {f"{prefix}.{name}": row.stacked(count) for name, row in rows.items()} if count else {}


def _norm(c: PolicyConfig) -> Weight:
    return Weight((c.width,), ("embed",), "zeros" if c.zero_centered_norms else "ones")


def _out_std(c: PolicyConfig) -> float:
    # What writes to the residual stream starts smaller, so that its variance does not grow with depth.
    return STD / math.sqrt(2 * c.num_layers)


def _attention(c: PolicyConfig) -> dict[str, Weight]:
    D, Q, K = c.width, c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    rows = {
        "q": Weight((D, Q), ("embed", "heads"), STD),
        "k": Weight((D, K), ("embed", "kv_heads"), STD),
        "v": Weight((D, K), ("embed", "kv_heads"), STD),
        "o": Weight((Q, D), ("heads_in", "embed_out"), _out_std(c)),
    }
    if c.has_output_gate:
        rows["q_gate"] = Weight((D, Q), ("embed", "heads"), STD)
    if c.attention_bias:
        rows["q_bias"] = Weight((Q,), ("heads",), "zeros")
        rows |= {name: Weight((K,), ("kv_heads",), "zeros") for name in ("k_bias", "v_bias")}
    if c.output_bias:
        rows["o_bias"] = Weight((D,), ("embed",), "zeros")
    if c.has_qk_norm:
        init = "zeros" if c.zero_centered_norms else "ones"
        rows |= {name: Weight((c.head_dim,), ("head_dim",), init) for name in ("q_norm", "k_norm")}
    return rows


def _feed_forward(c: PolicyConfig) -> dict[str, Weight]:
    D, F = c.width, c.ff_dim
    rows = {
        "attn_norm": _norm(c),
        "mlp_norm": _norm(c),
        "gate": Weight((D, F), ("embed", "ff"), STD),
        "up": Weight((D, F), ("embed", "ff"), STD),
        "down": Weight((F, D), ("ff_in", "embed_out"), _out_std(c)),
    }
    if c.mlp_bias:
        rows |= {name: Weight((F,), ("ff",), "zeros") for name in ("gate_bias", "up_bias")}
        rows["down_bias"] = Weight((D,), ("embed",), "zeros")
    return rows


def _delta(c: PolicyConfig) -> dict[str, Weight]:
    assert c.delta is not None
    D, N, W = c.width, c.delta.value_heads, c.delta.conv_width
    keys, values = c.delta.key_heads * c.delta.key_dim, N * c.delta.value_dim
    return {
        "q": Weight((D, keys), ("embed", "delta_keys"), STD),
        "k": Weight((D, keys), ("embed", "delta_keys"), STD),
        "v": Weight((D, values), ("embed", "delta_values"), STD),
        "z": Weight((D, values), ("embed", "delta_values"), STD),
        "a": Weight((D, N), ("embed", "delta_values"), STD),
        "b": Weight((D, N), ("embed", "delta_values"), STD),
        "q_conv": Weight((keys, W), ("delta_keys", "conv"), STD),
        "k_conv": Weight((keys, W), ("delta_keys", "conv"), STD),
        "v_conv": Weight((values, W), ("delta_values", "conv"), STD),
        "dt_bias": Weight((N,), ("delta_values",), "ones"),
        "a_log": Weight((N,), ("delta_values",), "decay"),
        "o_norm": Weight((c.delta.value_dim,), ("head_dim",), "ones"),
        "o": Weight((values, D), ("delta_in", "embed_out"), _out_std(c)),
    }


def num_params(config: PolicyConfig) -> int:
    """Number of scalars in the table."""
    return sum(weight.num_elements for weight in weight_table(config).values())


def init_params(config: PolicyConfig, key: jax.Array) -> Params:
    """Fresh float32 weights. Each weight's stream depends on its name only, not on the table's order."""
    return {name: init_weight(name, weight, key) for name, weight in weight_table(config).items()}


def init_adapters(config: PolicyConfig, key: jax.Array) -> Params:
    """Fresh float32 adapters; with them, the policy is still exactly what it was."""
    return {name: init_weight(name, w, key) for name, w in weight_table(config).items() if is_adapter(name)}


def init_weight(name: str, weight: Weight, key: jax.Array) -> jax.Array:
    """Fresh float32 values of one weight."""
    stream = jax.random.fold_in(key, zlib.crc32(name.encode()))
    if weight.init == "decay":
        return jnp.log(jax.random.uniform(stream, weight.shape, jnp.float32, 0.01, 16.0))
    if isinstance(weight.init, str):
        return {"ones": jnp.ones, "zeros": jnp.zeros}[weight.init](weight.shape, jnp.float32)
    return weight.init * jax.random.normal(stream, weight.shape, jnp.float32)


def check_params(params: Mapping[str, jax.Array | np.ndarray], config: PolicyConfig) -> None:
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
