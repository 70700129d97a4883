"""Model folders in Hugging Face's layout: opened, checked, read and written, one tensor at a time.

    stored = open_policy(folder)              # config.json and the headers; reads no tensor
    params = stored.load("bfloat16")          # the weights, whole, on the host
    save_policy(out, stored.config, params, "bfloat16", source=stored.raw, also=companions(folder))

Beyond the weights that the caller holds, reading and writing need memory for a few tensors, not for a file.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from wc_jax.conversion import (
    Dtypes,
    Piece,
    check_keys,
    from_hf,
    gathered,
    hf_specs,
    part_shapes,
    pieces,
    shapes,
    to_hf,
)
from wc_jax.policy import Params, PolicyConfig, from_hf_config, hf_tensors, to_hf_config
from wc_jax.safetensors_files import (
    DTYPES,
    INDEX_FILE,
    SHARD_BYTES,
    SINGLE_FILE,
    StoredTensor,
    WeightsError,
    find_tensors,
    into_shards,
    listed,
    write_file,
    write_index,
)

__all__ = [
    "INDEX_FILE",
    "SINGLE_FILE",
    "StoredPolicy",
    "WeightsError",
    "companions",
    "from_hf",
    "load_policy",
    "open_policy",
    "save_policy",
    "staged",
    "to_hf",
]

_BESIDE = (".json", ".jinja", ".txt", ".model")
_NOT_BESIDE = ("config.json", "adapter_config.json", INDEX_FILE)


@dataclass(frozen=True, kw_only=True)
class StoredPolicy:
    """A folder that was found to hold exactly one policy; its weights are still on the disk."""

    config: PolicyConfig
    raw: Mapping[str, Any]
    """Its config.json, with the settings that mean nothing to us."""
    tensors: Mapping[str, StoredTensor]
    """Of the policy, in the order in which they lie on the disk."""

    @property
    def dtypes(self) -> dict[str, str]:
        """Of each tensor; writing with them gives back the same bytes."""
        return {key: DTYPES[tensor.dtype].name for key, tensor in self.tensors.items()}

    def pieces(self) -> Iterator[Piece]:
        """What each tensor gives to each weight, in the dtype it is stored in; each tensor is read once."""
        return pieces(lambda key: self.tensors[key].read(), list(self.tensors), self.config)

    def load(self, dtype: str = "float32") -> Params:
        """All weights on the host."""
        return gathered(self.pieces(), shapes(self.config), dtype=dtype)


def open_policy(folder: Path | str) -> StoredPolicy:
    """Reads config.json and the headers. Raises `WeightsError` when the folder is missing, damaged or incomplete,
    when it holds anything unknown, or another family or dtype than we can honor.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise WeightsError(f"no config.json in {folder}: give the path of a Hugging Face model folder")
    try:
        raw = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise WeightsError(f"{folder / 'config.json'} is not JSON: {error}") from error
    if raw.get("quantization_config"):
        raise WeightsError(f"{folder} holds quantized weights (quantization_config); give a folder that does not")
    config, found = from_hf_config(raw), find_tensors(folder)
    if config.num_mtp_layers and not any(key.startswith("mtp.") for key in found):
        # transformers keeps the setting and drops the tensors when it saves.
        config = dataclasses.replace(config, num_mtp_layers=0)
    problems = [f"{key} is {tensor.dtype}" for key, tensor in found.items() if tensor.dtype not in DTYPES]
    if problems:
        raise WeightsError(f"tensors must be of {', '.join(DTYPES)}: {listed(problems)}")
    check_keys(found, config, lambda key: found[key].read())
    wanted = {tensor.key: tensor.shape(part_shapes(tensor, config)) for tensor in hf_tensors(config)}
    problems = [
        f"{key} must be {shape}, got {found[key].shape}" for key, shape in wanted.items() if found[key].shape != shape
    ]
    if problems:
        raise WeightsError(listed(problems))
    in_order = sorted(wanted, key=lambda key: (found[key].path, found[key].start))
    return StoredPolicy(config=config, raw=raw, tensors={key: found[key] for key in in_order})


def load_policy(folder: Path | str, *, dtype: str = "float32") -> tuple[PolicyConfig, Params]:
    """The policy of a folder with its weights on the host. Raises as `open_policy` does."""
    stored = open_policy(folder)
    return stored.config, stored.load(dtype)


def companions(folder: Path) -> tuple[Path, ...]:
    """What belongs to a model besides config and weights: tokenizer, chat template, generation and image settings."""
    return tuple(path for path in sorted(folder.iterdir()) if path.suffix in _BESIDE and path.name not in _NOT_BESIDE)


def save_policy(
    folder: Path | str,
    config: PolicyConfig,
    params: Mapping[str, jax.Array | np.ndarray],
    dtype: Dtypes = "float32",
    *,
    also: tuple[Path, ...] = (),
    source: Mapping[str, Any] | None = None,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a Hugging Face folder, whole or not at all: it is built beside its place and then renamed.

    `dtype`: float32, bfloat16 or float16, of all tensors, or of each by its name (see `StoredPolicy.dtypes`).
    `also`: files to copy in, see `companions`. `source`: the config.json that the weights came with; its settings
    that mean nothing to us are kept. Weights that fit `shard_bytes` are one file. An existing folder is replaced.
    """
    with staged(Path(folder)) as staging:
        shards = into_shards(hf_specs(config, dtype=dtype), shard_bytes)
        tensors = to_hf(params, config, dtype=dtype, keys=[key for _, held in shards for key in held])
        for name, held in shards:
            write_file(staging / name, held, tensors)
        if len(shards) > 1:
            write_index(staging, shards)
        (staging / "config.json").write_text(json.dumps(_config_file(config, dtype, source), indent=2) + "\n")
        for path in also:
            shutil.copyfile(path, staging / path.name)


@contextlib.contextmanager
def staged(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place in one rename once the block is done, and never before."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        staging.chmod(0o755)
        yield staging
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


def _config_file(config: PolicyConfig, dtype: Dtypes, source: Mapping[str, Any] | None) -> dict[str, Any]:
    """Raises `WeightsError` when what is kept of the source would make it another policy."""
    # The embedding speaks for the others; files with several dtypes name that of most tensors.
    named = dtype if isinstance(dtype, str) else dtype[hf_tensors(config)[0].key]
    found = _with_dtype(_overlaid(source or {}, to_hf_config(config, dtype=named)), named)
    plain = dataclasses.replace(config, lora=None)
    try:
        is_same = from_hf_config(found) == plain
    except ValueError as error:
        raise WeightsError(f"the source's config.json does not go with this policy: {error}") from error
    if not is_same:
        raise WeightsError(f"the source's config.json is another policy's than {plain}")
    return found


def _overlaid(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Ours where both say something, in nested settings too.

    >>> _overlaid({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": 4}})
    {'a': 1, 'b': {'c': 4, 'd': 3}}
    """
    found = dict(theirs)
    for name, value in ours.items():
        both = isinstance(value, Mapping) and isinstance(theirs.get(name), Mapping)
        found[name] = _overlaid(theirs[name], value) if both else value
    return found


def _with_dtype(config: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """With the dtype wherever one is named, in nested settings too."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        is_dtype = name in ("dtype", "torch_dtype") and value is not None
        found[name] = dtype if is_dtype else _with_dtype(value, dtype) if isinstance(value, Mapping) else value
    return found
