"""The Qwen3 family, dense: each head's queries and keys are normed, and heads may be wider than width / heads."""

from typing import Any

from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.hf_config import Raw, read_decoder, write_decoder
from wc_jax.policy.llama import decoder_tensors
from wc_jax.policy.names import HfTensor

ARCHITECTURES = ("Qwen3ForCausalLM",)


def read(raw: Raw) -> PolicyConfig:
    """Raises ValueError naming the first setting that we cannot honor."""
    has_bias = bool(raw.get("attention_bias"))
    # Unlike in the other families, a file that leaves head_dim out means 128.
    return PolicyConfig(
        family="qwen3",
        attention_bias=has_bias,
        output_bias=has_bias,
        has_qk_norm=True,
        **read_decoder({"head_dim": 128, **raw}),
    )


def write(config: PolicyConfig, *, dtype: str) -> dict[str, Any]:
    """The `config.json` of these weights."""
    return {
        "architectures": list(ARCHITECTURES),
        "model_type": "qwen3",
        **write_decoder(config, dtype=dtype),
        "attention_bias": config.attention_bias,
        "use_sliding_window": False,
    }


def tensors(config: PolicyConfig) -> list[HfTensor]:
    """Every tensor of a folder of this family."""
    return decoder_tensors(config, "model.")
