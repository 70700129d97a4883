"""What a model folder's config.json means for the server: what it can't serve, and what it needs to be told."""

import json
from pathlib import Path
from typing import Any

from rollout.engine import EngineError

# What vLLM 0.32's attention kernels for CPUs are compiled for.
_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def check_servable(model_dir: Path, max_model_len: int | None, dtype: str) -> int:
    """The context length to serve. Raises `EngineError` for what vLLM finds out late or says unclearly."""
    if not (model_dir / "config.json").is_file():
        raise EngineError(f"no config.json in {model_dir}: give the path of a Hugging Face model folder")
    config = _text_config(model_dir)
    head_dim = config.get("head_dim")
    if head_dim is not None and head_dim not in _HEAD_DIMS:
        raise EngineError(f"{model_dir}: head_dim must be one of {list(_HEAD_DIMS)} on a CPU, got {head_dim}")
    if _is_recurrent(model_dir) and dtype != "bfloat16":
        raise EngineError(f"{model_dir} has recurrent layers: on a CPU they need dtype=bfloat16, got {dtype}")
    longest = int(config.get("max_position_embeddings", 2048))
    if max_model_len is not None and not 1 < max_model_len <= longest:
        raise EngineError(f"{model_dir} was made for 2 to {longest} tokens, asked for max_model_len={max_model_len}")
    return max_model_len or longest


def model_arguments(model_dir: Path, *, images: bool = False) -> list[str]:
    """Arguments of `vllm serve` that depend on the model, and on whether requests will show it images."""
    # vLLM keeps the state of recurrent layers for a prefix only where prompts may be split.
    caching = "--no-enable-prefix-caching" if _is_recurrent(model_dir) else "--enable-prefix-caching"
    if images:
        # The client sends pixels in patches. vLLM wants its own processor all the same, which wants a tokenizer;
        # it is spared the trial run on the largest image, because memory is given by the byte.
        # Pixels come as bytes: the model scales them, and would scale them again if they came scaled.
        few = ["--limit-mm-per-prompt", '{"image": 999, "video": 0}', "--skip-mm-profiling"]
        return [caching, *few, "--mm-device-do-normalize"]
    # Only token ids are sent: a vision tower need not run, and nothing asks for a tokenizer.
    only_text = ["--language-model-only"] if "text_config" in _config(model_dir) else []
    return [caching, "--skip-tokenizer-init", *only_text]


def _config(model_dir: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((model_dir / "config.json").read_text())
    return config


def _text_config(model_dir: Path) -> dict[str, Any]:
    """Of a multimodal model, what its file says of the language model."""
    config = _config(model_dir)
    return config.get("text_config") or config


def _is_recurrent(model_dir: Path) -> bool:
    return "linear_attention" in (_text_config(model_dir).get("layer_types") or ())
