"""The Llama family (SmolLM2 included): `config.json` and the names of its tensors."""

from typing import Any

from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.hf_config import Raw, read_decoder, write_decoder
from wc_jax.policy.names import Form, HfTensor, of_layer

ARCHITECTURES = ("LlamaForCausalLM",)


def read(raw: Raw) -> PolicyConfig:
    """Raises ValueError naming the first setting that we cannot honor."""
    has_bias = bool(raw.get("attention_bias"))
    return PolicyConfig(
        family="llama",
        attention_bias=has_bias,
        output_bias=has_bias,
        mlp_bias=bool(raw.get("mlp_bias")),
        **read_decoder(raw),
    )


def write(config: PolicyConfig, *, dtype: str) -> dict[str, Any]:
    """The `config.json` of these weights."""
    return {
        "architectures": list(ARCHITECTURES),
        "model_type": "llama",
        **write_decoder(config, dtype=dtype),
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
    }


def tensors(config: PolicyConfig) -> list[HfTensor]:
    """Every tensor of a folder of this family."""
    return decoder_tensors(config, "model.")


def decoder_tensors(config: PolicyConfig, root: str) -> list[HfTensor]:
    """What the families share: a decoder whose layers are all full attention. `root`: the start of its keys."""
    rows = attention_names(config) | feed_forward_names(config)
    found = outer_tensors(config, root)
    for i in range(config.num_layers):
        found += of_layer(rows, f"{root}layers.{i}.", "layers", i)
    return found


def outer_tensors(config: PolicyConfig, root: str) -> list[HfTensor]:
    """Embedding, last norm and head. A tied head is not written: it is the embedding."""
    found = [
        HfTensor(key=f"{root}embed_tokens.weight", parts=("embed",)),
        HfTensor(key=f"{root}norm.weight", parts=("final_norm",)),
    ]
    if not config.tie_embeddings:
        found.append(HfTensor(key="lm_head.weight", parts=("head",), form="linear"))
    return found


def attention_names(config: PolicyConfig) -> dict[str, tuple[str, Form]]:
    """Our name -> theirs, within a layer."""
    names: dict[str, tuple[str, Form]] = {x: (f"self_attn.{x}_proj.weight", "linear") for x in "qkvo"}
    biases = "qkv" if config.attention_bias else ""
    for x in biases + ("o" if config.output_bias else ""):
        names[f"{x}_bias"] = (f"self_attn.{x}_proj.bias", "same")
    if config.has_qk_norm:
        names |= {f"{x}_norm": (f"self_attn.{x}_norm.weight", "same") for x in "qk"}
    return names


def feed_forward_names(config: PolicyConfig) -> dict[str, tuple[str, Form]]:
    """Our name -> theirs, within a layer."""
    names: dict[str, tuple[str, Form]] = {
        "attn_norm": ("input_layernorm.weight", "same"),
        "mlp_norm": ("post_attention_layernorm.weight", "same"),
    }
    for x in ("gate", "up", "down"):
        names[x] = (f"mlp.{x}_proj.weight", "linear")
        if config.mlp_bias:
            names[f"{x}_bias"] = (f"mlp.{x}_proj.bias", "same")
    return names
