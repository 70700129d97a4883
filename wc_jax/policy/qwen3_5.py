"""The Qwen3.5 family (Qwen3.8 included): gated attention in every fourth layer, the gated delta rule in the others,
a vision tower and a head that guesses a second token.
"""

from typing import Any

from wc_jax.policy.config import DeltaConfig, PolicyConfig, VisionConfig
from wc_jax.policy.hf_config import Raw, read_decoder, refuse, write_decoder
from wc_jax.policy.llama import attention_names, feed_forward_names, outer_tensors
from wc_jax.policy.names import Form, HfTensor, of_layer
from wc_jax.policy.vision_table import vision_tensors

MULTIMODAL, TEXT = "Qwen3_5ForConditionalGeneration", "Qwen3_5ForCausalLM"
ARCHITECTURES = (MULTIMODAL, TEXT)

_KINDS = {"full_attention": "full", "linear_attention": "linear"}
_TOKENS = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
_OF_DELTA = {  # ours: theirs
    "key_heads": "linear_num_key_heads",
    "value_heads": "linear_num_value_heads",
    "key_dim": "linear_key_head_dim",
    "value_dim": "linear_value_head_dim",
    "conv_width": "linear_conv_kernel_dim",
}
_OF_VISION = {
    "depth": "depth",
    "width": "hidden_size",
    "num_heads": "num_heads",
    "ff_dim": "intermediate_size",
    "out_width": "out_hidden_size",
    "patch_size": "patch_size",
    "temporal_patch_size": "temporal_patch_size",
    "merge_size": "spatial_merge_size",
    "in_channels": "in_channels",
    "num_positions": "num_position_embeddings",
}


def read(raw: Raw) -> PolicyConfig:
    """Of the multimodal file, with its `text_config` and `vision_config`, or of the text model's own.

    Raises ValueError naming the first setting that we cannot honor.
    """
    is_multimodal = "text_config" in raw
    text = raw["text_config"] if is_multimodal else raw
    refuse(text, attn_output_gate=True, attention_bias=False)
    if is_multimodal and "tie_word_embeddings" in raw:
        text = {**text, "tie_word_embeddings": raw["tie_word_embeddings"]}
    vision = _read_vision(raw["vision_config"]) if raw.get("vision_config") else None
    settings: dict[str, Any] = {} if vision is None else {name: int(raw[name]) for name in _TOKENS}
    settings |= read_decoder({"head_dim": 256, **text, "rope_parameters": _rope(text)})
    missing = [theirs for theirs in _OF_DELTA.values() if theirs not in text]
    if missing:
        raise ValueError(f"config.json lacks {missing}")
    return PolicyConfig(
        family="qwen3_5",
        has_qk_norm=True,
        has_output_gate=True,
        zero_centered_norms=True,
        layer_kinds=_kinds(text),
        delta=DeltaConfig(**{ours: int(text[theirs]) for ours, theirs in _OF_DELTA.items()}),
        num_mtp_layers=int(text.get("mtp_num_hidden_layers") or 0),
        vision=vision,
        **settings,
    )


def _rope(text: Raw) -> dict[str, Any]:
    # What the family's files may leave out.
    rope = dict(text.get("rope_parameters") or {})
    rope.setdefault("partial_rotary_factor", text.get("partial_rotary_factor", 0.25))
    rope.setdefault("mrope_section", [11, 11, 10])
    return {**rope, "mrope_interleaved": True}


def _kinds(text: Raw) -> tuple[Any, ...]:
    period = int(text.get("full_attention_interval", 4))
    found = text.get("layer_types") or [
        "linear_attention" if (i + 1) % period else "full_attention" for i in range(text["num_hidden_layers"])
    ]
    unknown = sorted(set(found) - set(_KINDS))
    if unknown:
        raise ValueError(f"layer_types must be of {sorted(_KINDS)}, got {unknown}")
    return tuple(_KINDS[kind] for kind in found)


def _read_vision(raw: Raw) -> VisionConfig:
    refuse(raw, hidden_act="gelu_pytorch_tanh")
    if raw.get("deepstack_visual_indexes"):
        raise ValueError("vision_config.deepstack_visual_indexes is not supported; this family has none")
    missing = [theirs for theirs in _OF_VISION.values() if theirs not in raw]
    if missing:
        raise ValueError(f"vision_config lacks {missing}")
    rope = raw.get("rope_parameters") or {}
    return VisionConfig(
        **{ours: int(raw[theirs]) for ours, theirs in _OF_VISION.items()},
        rope_theta=float(rope.get("rope_theta", 10_000.0)),
    )


def write(config: PolicyConfig, *, dtype: str) -> dict[str, Any]:
    """The `config.json` of these weights."""
    assert config.delta is not None
    kinds = {ours: theirs for theirs, ours in _KINDS.items()}
    text = {
        "model_type": "qwen3_5_text",
        **write_decoder(config, dtype=dtype),
        "attention_bias": False,
        "attn_output_gate": True,
        "layer_types": [kinds[kind] for kind in config.kinds],
        **{theirs: getattr(config.delta, ours) for ours, theirs in _OF_DELTA.items()},
        "mtp_num_hidden_layers": config.num_mtp_layers,
    }
    if config.vision is None:
        return {"architectures": [TEXT], **text}
    vision = {theirs: getattr(config.vision, ours) for ours, theirs in _OF_VISION.items()}
    return {
        "architectures": [MULTIMODAL],
        "model_type": "qwen3_5",
        "text_config": text,
        "vision_config": {"model_type": "qwen3_5_vision", "hidden_act": "gelu_pytorch_tanh", **vision},
        "tie_word_embeddings": config.tie_embeddings,
        **{name: getattr(config, name) for name in _TOKENS},
        "dtype": dtype,
    }


def tensors(config: PolicyConfig) -> list[HfTensor]:
    """Every tensor of a folder of this family."""
    root = "model." if config.vision is None else "model.language_model."
    found = outer_tensors(config, root)
    count = {"full": 0, "linear": 0}
    for i, kind in enumerate(config.kinds):
        key = f"{root}layers.{i}."
        found += of_layer(feed_forward_names(config), key, "layers", i)
        found += (_full if kind == "full" else _linear)(config, key, count[kind])
        count[kind] += 1
    if config.num_mtp_layers:
        found += _mtp(config)
    return found if config.vision is None else found + vision_tensors(config.vision, "model.visual.")


def _full(config: PolicyConfig, key: str, layer: int, ours: str = "full") -> list[HfTensor]:
    names = attention_names(config)
    theirs, _ = names.pop("q")
    parts = (f"{ours}.q", f"{ours}.q_gate")
    q = HfTensor(key=key + theirs, parts=parts, layer=layer, form="linear", num_turns=config.num_heads)
    return [q, *of_layer(names, key, ours, layer)]


def _linear(config: PolicyConfig, key: str, layer: int) -> list[HfTensor]:
    key += "linear_attn."
    qkv = ("linear.q", "linear.k", "linear.v")
    found = [
        HfTensor(key=key + "in_proj_qkv.weight", parts=qkv, layer=layer, form="linear"),
        HfTensor(key=key + "conv1d.weight", parts=tuple(f"{x}_conv" for x in qkv), layer=layer, form="conv"),
        HfTensor(key=key + "dt_bias", parts=("linear.dt_bias",), layer=layer),
        HfTensor(key=key + "A_log", parts=("linear.a_log",), layer=layer),
        HfTensor(key=key + "norm.weight", parts=("linear.o_norm",), layer=layer),
        HfTensor(key=key + "out_proj.weight", parts=("linear.o",), layer=layer, form="linear"),
    ]
    rows: dict[str, tuple[str, Form]] = {x: (f"in_proj_{x}.weight", "linear") for x in "zab"}
    return found + of_layer(rows, key, "linear", layer)


def _mtp(config: PolicyConfig) -> list[HfTensor]:
    found = [
        HfTensor(key="mtp.fc.weight", parts=("mtp.fc",), form="linear"),
        HfTensor(key="mtp.pre_fc_norm_embedding.weight", parts=("mtp.embed_norm",)),
        HfTensor(key="mtp.pre_fc_norm_hidden.weight", parts=("mtp.hidden_norm",)),
        HfTensor(key="mtp.norm.weight", parts=("mtp.final_norm",)),
    ]
    for i in range(config.num_mtp_layers):
        key = f"mtp.layers.{i}."
        found += _full(config, key, i, "mtp.layers")
        found += of_layer(feed_forward_names(config), key, "mtp.layers", i)
    return found
