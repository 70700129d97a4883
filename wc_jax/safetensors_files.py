"""Safetensors files, one tensor at a time: what a folder of them holds, reading, writing in shards of a stated size.

A file is the length of its header (8 bytes, little endian), the header (JSON: name -> dtype, shape, where its bytes
begin and end), and the bytes. Whoever knows all shapes can write the header first, so nothing needs to be held.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Of the largest file that is written by default."""

DTYPES: Mapping[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}
"""What is read and written, by the format's name for it."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class WeightsError(ValueError):
    """A folder or a set of tensors that is not this policy's; the message names the tensors concerned."""


@dataclass(frozen=True)
class Spec:
    """What a tensor looks like."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies."""

    path: Path
    dtype: str
    """The format's name, which may be one that we don't read."""
    shape: tuple[int, ...]
    start: int
    """First byte in the file."""

    def read(self) -> np.ndarray:
        """Its values, in memory of their own. Raises `WeightsError` when the file no longer holds them."""
        count = math.prod(self.shape)
        values = np.fromfile(self.path, DTYPES[self.dtype], count, offset=self.start)
        if len(values) != count:
            raise WeightsError(f"{self.path} is truncated")
        return values.reshape(self.shape)


def listed(problems: Iterable[str], most: int = 8) -> str:
    """A long list, shortened.

    >>> listed(["a", "b", "c"], most=2)
    'a; b; and 1 more'
    """
    found = list(problems)
    return "; ".join([*found[:most], *([f"and {len(found) - most} more"] if len(found) > most else [])])


def find_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of a folder with one file, or with shards and their index, from the headers alone.

    Raises `WeightsError` when files are missing or damaged, or disagree with the index.
    """
    if not (folder / INDEX_FILE).exists():
        return read_header(folder / SINGLE_FILE)
    where = _weight_map(folder)
    if (folder / SINGLE_FILE).exists() and SINGLE_FILE not in where.values():
        raise WeightsError(f"{folder} holds {SINGLE_FILE} and an {INDEX_FILE} of other files: remove what is stale")
    found: dict[str, StoredTensor] = {}
    for name in sorted(set(where.values())):
        for key, tensor in read_header(folder / name).items():
            if key in found:
                raise WeightsError(f"{key} is stored twice, in {found[key].path.name} and {name}")
            found[key] = tensor
    problems = [f"{key} is in {found[key].path.name}" for key in found if key not in where]
    for key, name in where.items():
        if key not in found:
            problems.append(f"{key} is missing from {name}")
        elif found[key].path.name != name:
            problems.append(f"{key} is in {found[key].path.name}, not in {name}")
    if problems:
        raise WeightsError(f"{folder / INDEX_FILE} says otherwise: {listed(problems)}")
    return found


def _weight_map(folder: Path) -> dict[str, str]:
    try:
        where = json.loads((folder / INDEX_FILE).read_text())["weight_map"]
        if not all(isinstance(name, str) for name in where.values()):
            raise TypeError("file names must be texts")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{folder / INDEX_FILE} is no index of shards: {error!r}") from error
    escaping = sorted({name for name in where.values() if Path(name).name != name})
    if escaping:
        raise WeightsError(f"{folder / INDEX_FILE} names files that are not in the folder: {listed(escaping)}")
    return dict(where)


def read_header(path: Path) -> dict[str, StoredTensor]:
    """What one file holds. Raises `WeightsError` unless the bytes of its tensors fill it exactly."""
    if not path.is_file():
        raise WeightsError(f"{path} is missing")
    num_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else num_bytes
        if length + 8 > num_bytes:
            raise WeightsError(f"{path} is truncated, or no safetensors file")
        text = file.read(length)
    try:
        entries = {key: entry for key, entry in json.loads(text).items() if key != "__metadata__"}
        found = {key: (str(x["dtype"]), tuple(map(int, x["shape"])), *x["data_offsets"]) for key, x in entries.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise WeightsError(f"{path} has no readable safetensors header: {error!r}") from error
    end = 0
    for key, (dtype, shape, start, until) in sorted(found.items(), key=lambda item: item[1][2:]):
        is_sized = dtype not in DTYPES or until - start == Spec(DTYPES[dtype], shape).num_bytes
        if start != end or not is_sized:
            raise WeightsError(f"{path}: the bytes of {key} are not where its shape {shape} and its neighbors say")
        end = until
    if 8 + length + end != num_bytes:
        raise WeightsError(f"{path} is truncated or has bytes too many: {num_bytes} instead of {8 + length + end}")
    return {
        key: StoredTensor(path, dtype, shape, 8 + length + start) for key, (dtype, shape, start, _) in found.items()
    }


def write_file(path: Path, specs: Mapping[str, Spec], tensors: Iterator[tuple[str, np.ndarray]]) -> None:
    """Writes the tensors as they come; they must come in the order of `specs`, and `tensors` may hold more.

    Values of several widths must stand widest first (see `in_file_order`), so that each lies aligned.
    """
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for key, spec in specs.items():
        begin, end = end, end + spec.num_bytes
        header[key] = {"dtype": _NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for key, spec in specs.items():
            found, values = next(tensors)
            assert (found, values.dtype, values.shape) == (key, spec.dtype, spec.shape), (
                found,
                values.shape,
                key,
                spec,
            )
            np.ascontiguousarray(values).tofile(file)


def in_file_order(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Widest values first, otherwise as they were."""
    return dict(sorted(specs.items(), key=lambda item: -item[1].dtype.itemsize))


def into_shards(specs: Mapping[str, Spec], shard_bytes: int = SHARD_BYTES) -> list[tuple[str, dict[str, Spec]]]:
    """(file name, what it holds), filled one after the other; a tensor larger than a shard has one to itself.

    >>> half = Spec(np.dtype("float32"), (2,))
    >>> [(name, list(held)) for name, held in into_shards({"a": half, "b": half, "c": half}, 16)]
    [('model-00001-of-00002.safetensors', ['a', 'b']), ('model-00002-of-00002.safetensors', ['c'])]
    """
    shards: list[dict[str, Spec]] = [{}]
    room = shard_bytes
    for key, spec in specs.items():
        if spec.num_bytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][key] = spec
        room -= spec.num_bytes
    if len(shards) == 1:
        return [(SINGLE_FILE, in_file_order(shards[0]))]
    return [(f"model-{i:05}-of-{len(shards):05}.safetensors", in_file_order(s)) for i, s in enumerate(shards, 1)]


def write_index(folder: Path, shards: Iterable[tuple[str, Mapping[str, Spec]]]) -> None:
    """Says which file holds which tensor."""
    held = [(key, name, spec.num_bytes) for name, specs in shards for key, spec in specs.items()]
    index = {
        "metadata": {"total_size": sum(size for _, _, size in held)},
        "weight_map": {key: name for key, name, _ in sorted(held)},
    }
    (folder / INDEX_FILE).write_text(json.dumps(index, indent=2) + "\n")
