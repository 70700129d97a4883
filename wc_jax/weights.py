"""Hugging Face / vLLM tensors <-> params: one name table, read in both directions.

A Hugging Face linear layer stores `[out, in]` and one tensor a layer; we store `[in, out]`, stacked.
Every source key is used exactly once and every target key is written exactly once, or it is an error.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

from wc_jax.policy import Params, PolicyConfig, from_hf_config, hf_tensors, to_hf_config, weight_table
from wc_jax.policy.lora import merged
from wc_jax.policy.names import HfTensor

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class WeightsError(ValueError):
    """A folder or a set of tensors that is not this policy's; the message names every tensor concerned."""


def to_hf(
    params: Mapping[str, jax.Array | np.ndarray], config: PolicyConfig, *, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    """Contiguous host tensors under Hugging Face's names, adapters merged in."""
    target = jnp.dtype(dtype)
    host = {name: np.asarray(value) for name, value in merged(params, config.lora).items()}
    tensors: dict[str, np.ndarray] = {}
    for tensor in hf_tensors(config):
        parts = [host[part] if tensor.layer is None else host[part][tensor.layer] for part in tensor.parts]
        tensors[tensor.key] = tensor.join(parts).astype(target)
    return tensors


def from_hf(
    read: Callable[[str], np.ndarray], present: set[str], config: PolicyConfig, *, dtype: str = "float32"
) -> Params:
    """Build params by asking `read` for each key once. Raises `WeightsError` on missing, unknown or misshapen."""
    tensors = hf_tensors(config)
    keys = {tensor.key for tensor in tensors}
    unknown = present - keys
    if config.tie_embeddings and "lm_head.weight" in unknown:
        # Some writers store the tied head too. Equal, it says nothing new; different, the config is wrong.
        embed = next(tensor.key for tensor in tensors if tensor.parts == ("embed",))
        if not np.array_equal(read("lm_head.weight"), read(embed)):
            raise WeightsError("lm_head.weight differs from the embedding although tie_word_embeddings is true")
        unknown.discard("lm_head.weight")
    problems = [f"missing {key}" for key in sorted(keys - present)]
    problems += [f"unknown {key}" for key in sorted(unknown)]
    if problems:
        raise WeightsError("; ".join(problems))
    table, target = weight_table(config), jnp.dtype(dtype)
    host = {part: np.empty(table[part].shape, target) for tensor in tensors for part in tensor.parts}
    for tensor in tensors:
        _fill(tensor, read(tensor.key), host)
    return {name: jnp.asarray(value) for name, value in host.items()}


def _fill(tensor: HfTensor, value: np.ndarray, host: Mapping[str, np.ndarray]) -> None:
    """Writes what the tensor holds where it belongs. Raises `WeightsError` when its shape is another."""
    places = [host[part] if tensor.layer is None else host[part][tensor.layer] for part in tensor.parts]
    wanted = tensor.shape([place.shape for place in places])
    if value.shape != wanted:
        raise WeightsError(f"{tensor.key} must be {wanted}, got {value.shape}")
    for place, part in zip(places, tensor.split(value, tensor.sizes([place.shape for place in places])), strict=True):
        place[...] = part


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
