"""The shape of a policy of the Llama family, and its two spellings in Hugging Face's `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FAMILY = "LlamaForCausalLM"


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Everything that decides a weight's shape or the forward function; hashable, so static under jit."""

    vocab_size: int
    width: int
    """D, of the residual stream."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Fewer than `num_heads`: grouped queries, query head n reads key head n // (num_heads / num_kv_heads)."""
    head_dim: int
    ff_dim: int
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5
    tie_embeddings: bool = True
    """The unembedding is the transposed embedding: one weight, one gradient."""
    max_positions: int = 2048
    """The longest context that the weights were made for; engines read it, the forward function does not."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ff_dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads must be a multiple of num_kv_heads, got {self.num_heads} and {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for rotary positions, got {self.head_dim}")


def from_hf_config(raw: Mapping[str, Any]) -> PolicyConfig:
    """Read a parsed `config.json`. Raises ValueError naming the first setting that we cannot honor.

    >>> raw = to_hf_config(PolicyConfig(vocab_size=8, width=4, num_layers=1, num_heads=2, num_kv_heads=1,
    ...                                 head_dim=2, ff_dim=6, rope_theta=5.0))
    >>> from_hf_config(raw).rope_theta
    5.0
    """
    architectures = raw.get("architectures") or [_FAMILY]
    if _FAMILY not in architectures:
        raise ValueError(f"architectures must contain {_FAMILY!r}, got {architectures}")
    if raw.get("hidden_act", "silu") != "silu":
        raise ValueError(f"hidden_act must be 'silu', got {raw['hidden_act']!r}")
    for name in ("attention_bias", "mlp_bias"):
        if raw.get(name):
            raise ValueError(f"{name} must be false, got {raw[name]!r}")
    missing = [name for name in _REQUIRED if name not in raw]
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    num_heads = int(raw["num_attention_heads"])
    return PolicyConfig(
        vocab_size=int(raw["vocab_size"]),
        width=int(raw["hidden_size"]),
        num_layers=int(raw["num_hidden_layers"]),
        num_heads=num_heads,
        num_kv_heads=int(raw.get("num_key_value_heads") or num_heads),
        head_dim=int(raw.get("head_dim") or int(raw["hidden_size"]) // num_heads),
        ff_dim=int(raw["intermediate_size"]),
        rope_theta=_rope_theta(raw),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        tie_embeddings=bool(raw.get("tie_word_embeddings", False)),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
    )


_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")


def _rope_theta(raw: Mapping[str, Any]) -> float:
    # Written flat by transformers 4 and nested by transformers 5. A scaled table would be silently wrong here.
    nested = raw.get("rope_parameters") or {}
    for source in (nested, raw.get("rope_scaling") or {}):
        kind = source.get("rope_type", source.get("type", "default"))
        if kind != "default":
            raise ValueError(f"rope_type must be 'default', got {kind!r}")
    flat = raw.get("rope_theta")
    if flat is not None and "rope_theta" in nested and float(flat) != float(nested["rope_theta"]):
        raise ValueError(f"rope_theta is given twice and differs: {flat} and {nested['rope_theta']}")
    return float(nested.get("rope_theta", 10_000.0 if flat is None else flat))


def to_hf_config(config: PolicyConfig, *, dtype: str = "float32") -> dict[str, Any]:
    """The `config.json` of these weights, readable by transformers 4 and 5 and by vLLM."""
    return {
        "architectures": [_FAMILY],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ff_dim,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "torch_dtype": dtype,
        "dtype": dtype,
    }
