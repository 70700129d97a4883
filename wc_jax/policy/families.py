"""The families, found by the name of their architecture."""

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from wc_jax.policy import llama, qwen2, qwen3, qwen3_5
from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.names import HfTensor

_FAMILIES: Mapping[str, ModuleType] = {"llama": llama, "qwen2": qwen2, "qwen3": qwen3, "qwen3_5": qwen3_5}
_OF_ARCHITECTURE = {name: family for family in _FAMILIES.values() for name in family.ARCHITECTURES}


def from_hf_config(raw: Mapping[str, Any]) -> PolicyConfig:
    """Read a parsed `config.json`. Raises ValueError naming the first setting that we cannot honor.

    >>> raw = to_hf_config(PolicyConfig(vocab_size=8, width=4, num_layers=1, num_heads=2, num_kv_heads=1,
    ...                                 head_dim=2, ff_dim=6, rope_theta=5.0))
    >>> from_hf_config(raw).rope_theta
    5.0
    """
    named = list(raw.get("architectures") or [])
    for name in named:
        if name in _OF_ARCHITECTURE:
            return _OF_ARCHITECTURE[name].read(raw)
    mixture = ": mixtures of experts are not supported" if any("moe" in name.lower() for name in named) else ""
    raise ValueError(f"architectures must contain one of {sorted(_OF_ARCHITECTURE)}, got {named}{mixture}")


def to_hf_config(config: PolicyConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """The `config.json` of these weights, readable by transformers 4 and 5 and by vLLM."""
    return _FAMILIES[config.family].write(config, dtype=dtype)


def hf_tensors(config: PolicyConfig) -> list[HfTensor]:
    """The name table: every tensor of a folder of this policy, and which of our weights it holds."""
    return _FAMILIES[config.family].tensors(config)
