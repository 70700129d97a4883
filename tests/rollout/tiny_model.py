"""Writes a random Llama checkpoint with a tied head, in the layout of a Hugging Face folder."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

END_ID = 2


def tiny_config(
    *, vocab: int = 128, width: int = 64, layers: int = 2, heads: int = 2, kv_heads: int = 1, inner: int = 128
) -> dict[str, object]:
    """The `config.json` of the model. Small enough that a request costs milliseconds."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False,
        "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": END_ID, "pad_token_id": END_ID,
        "head_dim": width // heads, "hidden_act": "silu", "hidden_size": width, "initializer_range": 0.02,
        "intermediate_size": inner, "max_position_embeddings": 2048, "mlp_bias": False,
        "num_attention_heads": heads, "num_hidden_layers": layers, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": None, "tie_word_embeddings": True,
        "torch_dtype": "float32", "use_cache": True, "vocab_size": vocab,
    }  # fmt: skip


def tiny_weights(config: dict[str, object], seed: int) -> dict[str, np.ndarray]:
    """Random tensors under their checkpoint names, spread enough that log-probabilities differ between seeds."""
    rng = np.random.default_rng(seed)
    width, inner, head = int(config["hidden_size"]), int(config["intermediate_size"]), int(config["head_dim"])  # type: ignore[call-overload]
    wide, narrow = head * int(config["num_attention_heads"]), head * int(config["num_key_value_heads"])  # type: ignore[call-overload]

    def matrix(rows: int, columns: int) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * 1.5 / np.sqrt(columns)).astype(np.float32)

    def scale() -> np.ndarray:
        return (1 + 0.1 * rng.standard_normal(width)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(int(config["vocab_size"]), width), "model.norm.weight": scale()}  # type: ignore[call-overload]
    for layer in range(int(config["num_hidden_layers"])):  # type: ignore[call-overload]
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": scale(),
            prefix + "self_attn.q_proj.weight": matrix(wide, width),
            prefix + "self_attn.k_proj.weight": matrix(narrow, width),
            prefix + "self_attn.v_proj.weight": matrix(narrow, width),
            prefix + "self_attn.o_proj.weight": matrix(width, wide),
            prefix + "post_attention_layernorm.weight": scale(),
            prefix + "mlp.gate_proj.weight": matrix(inner, width),
            prefix + "mlp.up_proj.weight": matrix(inner, width),
            prefix + "mlp.down_proj.weight": matrix(width, inner),
        }
    return weights


def write_tiny_model(folder: Path, *, seed: int, config: dict[str, object] | None = None) -> Path:
    """A folder that vLLM, transformers and our own policy can load."""
    config = config or tiny_config()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tiny_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"bos_token_id": 1, "eos_token_id": END_ID}))
    vocab = {token: index for index, token in enumerate(_tokens(int(config["vocab_size"])))}  # type: ignore[call-overload]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"})
    )
    return folder


def _tokens(size: int) -> list[str]:
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return (specials + letters + [f"<extra{i}>" for i in range(size)])[:size]
