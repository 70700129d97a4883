"""Hugging Face / vLLM tensors <-> params: one name table, read in both directions.

A Hugging Face linear layer stores `[out, in]` and one tensor a layer; we store `[in, out]`, stacked.
Every source key is used exactly once and every target key is written exactly once, or it is an error.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from wc_jax.policy.config import PolicyConfig, from_hf_config, to_hf_config
from wc_jax.policy.table import Params, weight_table

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class WeightsError(ValueError):
    """A folder or a set of tensors that is not this policy's; the message names every tensor concerned."""


@dataclass(frozen=True)
class _Names:
    """Where one of our weights lives at the other side."""

    hf: str
    """With `{i}` for the layer."""
    is_transposed: bool


_TABLE: Mapping[str, _Names] = {
    "embed": _Names("model.embed_tokens.weight", False),
    "layers.attn_norm": _Names("model.layers.{i}.input_layernorm.weight", False),
    "layers.q": _Names("model.layers.{i}.self_attn.q_proj.weight", True),
    "layers.k": _Names("model.layers.{i}.self_attn.k_proj.weight", True),
    "layers.v": _Names("model.layers.{i}.self_attn.v_proj.weight", True),
    "layers.o": _Names("model.layers.{i}.self_attn.o_proj.weight", True),
    "layers.mlp_norm": _Names("model.layers.{i}.post_attention_layernorm.weight", False),
    "layers.gate": _Names("model.layers.{i}.mlp.gate_proj.weight", True),
    "layers.up": _Names("model.layers.{i}.mlp.up_proj.weight", True),
    "layers.down": _Names("model.layers.{i}.mlp.down_proj.weight", True),
    "final_norm": _Names("model.norm.weight", False),
    "head": _Names("lm_head.weight", True),
}


def hf_keys(config: PolicyConfig) -> dict[str, tuple[str, int | None]]:
    """Every Hugging Face key of this policy -> our weight's name and its layer."""
    keys: dict[str, tuple[str, int | None]] = {}
    for name, weight in weight_table(config).items():
        if weight.axes[0] == "layer":
            for i in range(config.num_layers):
                keys[_TABLE[name].hf.format(i=i)] = (name, i)
        else:
            keys[_TABLE[name].hf] = (name, None)
    return keys


def to_hf(
    params: Mapping[str, jax.Array | np.ndarray], config: PolicyConfig, *, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    """Contiguous host tensors under Hugging Face's names. A tied head is not written: it is the embedding."""
    target = jnp.dtype(dtype)
    host = {name: np.asarray(value) for name, value in params.items()}
    tensors: dict[str, np.ndarray] = {}
    for key, (name, layer) in hf_keys(config).items():
        value = host[name] if layer is None else host[name][layer]
        tensors[key] = np.ascontiguousarray(value.T if _TABLE[name].is_transposed else value).astype(target)
    return tensors


def from_hf(
    read: Callable[[str], np.ndarray], present: set[str], config: PolicyConfig, *, dtype: str = "float32"
) -> Params:
    """Build params by asking `read` for each key once. Raises `WeightsError` on missing, unknown or misshapen."""
    keys = hf_keys(config)
    unknown = present - set(keys)
    if config.tie_embeddings and _TABLE["head"].hf in unknown:
        # Some writers store the tied head too. Equal, it says nothing new; different, the config is wrong.
        if not np.array_equal(read(_TABLE["head"].hf), read(_TABLE["embed"].hf)):
            raise WeightsError("lm_head.weight differs from the embedding although tie_word_embeddings is true")
        unknown.discard(_TABLE["head"].hf)
    problems = [f"missing {key}" for key in keys if key not in present]
    problems += [f"unknown {key}" for key in sorted(unknown)]
    if problems:
        raise WeightsError("; ".join(problems))
    table, target = weight_table(config), jnp.dtype(dtype)
    host = {name: np.empty(weight.shape, target) for name, weight in table.items()}
    for key, (name, layer) in keys.items():
        value = read(key)
        value = value.T if _TABLE[name].is_transposed else value
        shape = table[name].shape if layer is None else table[name].shape[1:]
        if value.shape != shape:
            raise WeightsError(f"{key} must be {shape} after transposition, got {value.shape}")
        if layer is None:
            host[name][...] = value
        else:
            host[name][layer] = value
    return {name: jnp.asarray(value) for name, value in host.items()}


def _tensor_files(folder: Path) -> Iterator[Path]:
    index = folder / INDEX_FILE
    if index.exists():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
        yield from (folder / name for name in names)
    else:
        yield folder / SINGLE_FILE


def load_policy(folder: Path | str, *, dtype: str = "float32") -> tuple[PolicyConfig, Params]:
    """Read a Hugging Face folder. Raises `WeightsError` when it is missing, incomplete or of another family."""
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise WeightsError(f"no config.json in {folder}: give the path of a Hugging Face model folder")
    config = from_hf_config(json.loads((folder / "config.json").read_text()))
    where: dict[str, Path] = {}
    for path in _tensor_files(folder):
        if not path.is_file():
            raise WeightsError(f"{path} is missing")
        with safe_open(path, framework="flax") as tensors:
            for key in tensors.keys():  # noqa: SIM118  (not a mapping)
                if key in where:
                    raise WeightsError(f"{key} is stored twice, in {where[key].name} and {path.name}")
                where[key] = path

    def read(key: str) -> np.ndarray:
        # "flax" because numpy has no bfloat16 of its own.
        with safe_open(where[key], framework="flax") as tensors:
            return np.asarray(tensors.get_tensor(key))

    return config, from_hf(read, set(where), config, dtype=dtype)


def save_policy(
    folder: Path | str,
    config: PolicyConfig,
    params: Mapping[str, jax.Array | np.ndarray],
    dtype: str = "float32",
    *,
    also: tuple[Path, ...] = (),
) -> None:
    """Write a Hugging Face folder, whole or not at all: it is built beside its place and then renamed.

    `also`: files to copy in (tokenizer.json and the like). An existing folder is replaced.
    """
    folder = Path(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        staging.chmod(0o755)
        save_file(to_hf(params, config, dtype=dtype), staging / SINGLE_FILE, metadata={"format": "pt"})
        (staging / SINGLE_FILE).chmod(0o644)
        (staging / "config.json").write_text(json.dumps(to_hf_config(config, dtype=dtype), indent=2) + "\n")
        for path in also:
            shutil.copyfile(path, staging / path.name)
        replaced = None
        if folder.exists():
            replaced = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent))
            os.rename(folder, replaced)
        os.rename(staging, folder)
        if replaced is not None:
            shutil.rmtree(replaced)
    finally:
        if staging.exists():
            shutil.rmtree(staging)
