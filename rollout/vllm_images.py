"""Pictures in the form that vLLM's token-in endpoint takes: where each stands, and the pixels its vision tower reads.

The server is given pixels that are already in patches, so that it resizes nothing and reads exactly what the trainer
reads; its model scales them (`--mm-device-do-normalize`), as ours does. It could also be given files; then its own
image processor would decide, and the ids would have to be those of a prompt in which an image is one token.
"""

import base64
from collections.abc import Sequence
from typing import Any

import msgpack
import numpy as np

from rollout.pictures import CHANNELS, picture_patches
from rollout.types import Picture, Shown

FRAMES = 2
"""Qwen's patches hold two frames of a film; a still image is shown twice."""

# How vLLM's messages mark the raw bytes of a tensor.
_RAW_BYTES = 3


def pixel_values(picture: Picture) -> np.ndarray:
    """uint8 [P, C*2*p*p]: what Qwen's image processors make of a picture of this size before they scale it."""
    patches = picture_patches(picture)
    frames = np.repeat(patches.reshape(len(patches), CHANNELS, 1, -1), FRAMES, axis=2)
    return frames.reshape(len(patches), -1)


def image_features(pictures: Sequence[Shown]) -> dict[str, Any]:
    """The `features` of a request whose ids show these pictures.

    Every request carries all its pictures whole: which of them the server still holds is not asked.
    """
    return {
        "mm_hashes": {"image": [shown.picture.digest for shown in pictures]},
        "mm_placeholders": {
            "image": [{"offset": shown.start, "length": shown.picture.num_tokens} for shown in pictures]
        },
        "kwargs_data": {"image": [_item(shown.picture) for shown in pictures]},
    }


def _item(picture: Picture) -> str:
    """One picture's tensors, each with how those of several are put together: in a row, or one beside another."""
    rows, columns = picture.grid
    in_a_row = ("flat", {"slices": [(0, picture.num_patches, None)], "dim": 0, "keep_on_cpu": False})
    beside = ("batched", {"keep_on_cpu": True})
    item = {
        "pixel_values": {"data": _tensor(pixel_values(picture)), "field": in_a_row},
        "image_grid_thw": {"data": _tensor(np.array([1, rows, columns], np.int64)), "field": beside},
    }
    return base64.b64encode(msgpack.packb(item)).decode("ascii")


def _tensor(array: np.ndarray) -> tuple[str, tuple[int, ...], msgpack.ExtType]:
    return array.dtype.name, array.shape, msgpack.ExtType(_RAW_BYTES, array.tobytes())
