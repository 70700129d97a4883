"""What the families' `config.json` files have in common, read and written."""

from collections.abc import Mapping
from typing import Any

from wc_jax.policy.config import PolicyConfig, RopeScaling

Raw = Mapping[str, Any]

_REQUIRED = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_OF_SCALING = {  # ours: theirs
    "factor": "factor",
    "original_positions": "original_max_position_embeddings",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "truncate": "truncate",
}
_OF_KIND = {
    "linear": ("factor",),
    "llama3": ("factor", "original_positions", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor", "original_positions", "beta_fast", "beta_slow", "attention_factor", "truncate"),
}


def read_decoder(raw: Raw) -> dict[str, Any]:
    """The settings that every family spells alike, as arguments of `PolicyConfig`.

    Raises ValueError naming the first setting that we cannot honor.
    """
    refuse(raw, hidden_act="silu")
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if raw.get(name):
            raise ValueError(f"{name}={raw[name]}: mixtures of experts are not supported, only dense policies are")
    if raw.get("use_sliding_window") or "sliding_attention" in (raw.get("layer_types") or ()):
        raise ValueError("sliding-window attention is not supported; write use_sliding_window=false if none is in use")
    missing = [name for name in _REQUIRED if name not in raw]
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    num_heads = int(raw["num_attention_heads"])
    head_dim = int(raw.get("head_dim") or int(raw["hidden_size"]) // num_heads)
    rope = _rope(raw)
    rotary_share: Any = rope.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))
    rotary_dim = int(head_dim * float(rotary_share))
    positions = int(raw.get("max_position_embeddings", 2048))
    return {
        "vocab_size": int(raw["vocab_size"]),
        "width": int(raw["hidden_size"]),
        "num_layers": int(raw["num_hidden_layers"]),
        "num_heads": num_heads,
        "num_kv_heads": int(raw.get("num_key_value_heads") or num_heads),
        "head_dim": head_dim,
        "ff_dim": int(raw["intermediate_size"]),
        "rope_theta": float(rope["rope_theta"]),
        "rope_scaling": _scaling(rope, positions),
        "rotary_dim": 0 if rotary_dim == head_dim else rotary_dim,
        "mrope_section": _sections(rope),
        "norm_eps": float(raw.get("rms_norm_eps", 1e-6)),
        "tie_embeddings": bool(raw.get("tie_word_embeddings", False)),
        "max_positions": positions,
    }


def write_decoder(config: PolicyConfig, *, dtype: str) -> dict[str, Any]:
    """`read_decoder`, backwards; readable by transformers 4 and 5 and by vLLM."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.rotary_dim:
        rope["partial_rotary_factor"] = config.rotary_dim / config.head_dim
    if config.mrope_section:
        rope |= {"mrope_section": list(config.mrope_section), "mrope_interleaved": True}
    if config.rope_scaling is not None:
        scaling = config.rope_scaling
        rope["rope_type"] = scaling.kind
        given = {_OF_SCALING[name]: getattr(scaling, name) for name in _OF_KIND[scaling.kind]}
        rope |= {name: value for name, value in given.items() if value is not None}
    scaled = {} if config.rope_scaling is None else {"rope_scaling": rope}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ff_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": rope,
        **scaled,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "torch_dtype": dtype,
        "dtype": dtype,
    }


def refuse(raw: Raw, **only: object) -> None:
    """Raises ValueError for a setting that is given and is not the one value that we can honor."""
    for name, value in only.items():
        if raw.get(name, value) != value:
            raise ValueError(f"{name} must be {value!r}, got {raw[name]!r}")


def _rope(raw: Raw) -> dict[str, Any]:
    """Rotary settings, which transformers 4 writes flat, with `rope_scaling`, and transformers 5 nested."""
    nested, scaling = dict(raw.get("rope_parameters") or {}), dict(raw.get("rope_scaling") or {})
    flat: Any = raw.get("rope_theta")
    if flat is not None and "rope_theta" in nested and float(flat) != float(nested["rope_theta"]):
        raise ValueError(f"rope_theta is given twice and differs: {flat} and {nested['rope_theta']}")
    clash = {name for name in nested.keys() & scaling.keys() if nested[name] != scaling[name]}
    if clash:
        raise ValueError(f"rope_parameters and rope_scaling differ in {sorted(clash)}")
    found: dict[str, Any] = {"rope_theta": 10_000.0 if flat is None else flat} | scaling | nested
    found.setdefault("rope_type", found.get("type", "default"))
    return found


def _scaling(rope: Raw, positions: int) -> RopeScaling | None:
    kind = rope["rope_type"]
    # Qwen's multimodal files say "mrope" where they mean that the frequencies follow three positions, unscaled.
    if kind in ("default", "mrope"):
        return None
    if kind not in _OF_KIND:
        raise ValueError(f"rope_type must be one of {['default', *_OF_KIND]}, got {kind!r}")
    if rope.get("mscale") or rope.get("mscale_all_dim"):
        raise ValueError("mscale and mscale_all_dim of yarn are not supported; write attention_factor instead")
    if "factor" not in rope:
        raise ValueError(f"rope_type {kind!r} needs a factor")
    given = {name: rope[_OF_SCALING[name]] for name in _OF_KIND[kind] if rope.get(_OF_SCALING[name]) is not None}
    if "original_positions" in _OF_KIND[kind]:
        given.setdefault("original_positions", positions)
    return RopeScaling(kind=kind, **given)


def _sections(rope: Raw) -> tuple[int, ...]:
    if "mrope_section" not in rope:
        return ()
    if not rope.get("mrope_interleaved"):
        raise ValueError("mrope_section without mrope_interleaved=true is not supported")
    return tuple(int(n) for n in rope["mrope_section"])
