"""The Qwen2 family (Qwen2.5 and its Coder models included): Llama with biases on queries, keys and values."""

from typing import Any

from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.hf_config import Raw, read_decoder, write_decoder
from wc_jax.policy.llama import decoder_tensors
from wc_jax.policy.names import HfTensor

ARCHITECTURES = ("Qwen2ForCausalLM",)


def read(raw: Raw) -> PolicyConfig:
    """Raises ValueError naming the first setting that we cannot honor."""
    return PolicyConfig(family="qwen2", attention_bias=True, **read_decoder(raw))


def write(config: PolicyConfig, *, dtype: str) -> dict[str, Any]:
    """The `config.json` of these weights."""
    return {
        "architectures": list(ARCHITECTURES),
        "model_type": "qwen2",
        **write_decoder(config, dtype=dtype),
        "use_sliding_window": False,
    }


def tensors(config: PolicyConfig) -> list[HfTensor]:
    """Every tensor of a folder of this family."""
    return decoder_tensors(config, "model.")
