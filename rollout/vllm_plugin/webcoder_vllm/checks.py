"""What tensors a file holds, and how that differs from what the engine was started with."""

import glob
import json
import os
import struct

Shapes = dict[str, tuple[int, ...]]


def file_shapes(path: str) -> Shapes:
    """Names and shapes from the header of one safetensors file; no tensor is read."""
    with open(path, "rb") as file:
        (num_bytes,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(num_bytes))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def checkpoint_shapes(folder: str) -> Shapes:
    """Names and shapes of the checkpoint folder that the engine serves."""
    paths = sorted(glob.glob(os.path.join(folder, "*.safetensors")))
    if not paths:
        raise ValueError(f"no .safetensors file in {folder}: serve a local model folder to update its weights")
    return {name: shape for path in paths for name, shape in file_shapes(path).items()}


def difference(expected: Shapes, found: Shapes) -> str:
    """The first few ways in which `found` is not `expected`; empty when they agree."""
    problems = [f"{name} is missing" for name in sorted(expected.keys() - found.keys())]
    problems += [f"{name} is not a tensor of this model" for name in sorted(found.keys() - expected.keys())]
    problems += [
        f"{name} has shape {list(found[name])}, expected {list(expected[name])}"
        for name in sorted(expected.keys() & found.keys())
        if expected[name] != found[name]
    ]
    more = f" (and {len(problems) - 4} more)" if len(problems) > 4 else ""
    return "; ".join(problems[:4]) + more
