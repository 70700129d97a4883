"""Any image -> a `Picture`: the size that the vision tower's patches fill, within a budget of pixels.

Resizing happens once, here. The engine and the trainer are both given the result, whose size the rule leaves as it
is, so that both see the same pixels whatever resampling they would have used; `picture_patches` cuts it for both.
"""

import io
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from rollout.types import Picture

PROCESSOR_FILE = "preprocessor_config.json"
CHANNELS = 3
_LONGEST_RATIO = 200


@dataclass(frozen=True, kw_only=True)
class PictureRule:
    """How large a policy sees an image; the defaults are Qwen3.5's."""

    patch_size: int = 16
    """Pixels a side of a patch."""
    merge_size: int = 2
    """Patches a side of what becomes one token."""
    min_pixels: int = 65_536
    """A smaller image is enlarged."""
    max_pixels: int = 16_777_216
    """A larger image is made smaller: so an image has at most max_pixels / (patch_size * merge_size)² tokens."""

    def __post_init__(self) -> None:
        for name in ("patch_size", "merge_size", "min_pixels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.max_pixels < max(self.min_pixels, self.side**2):
            raise ValueError(
                f"max_pixels must be at least min_pixels and one token's {self.side}x{self.side}, got {self.max_pixels}"
            )

    @property
    def side(self) -> int:
        """Pixels a side of one token's square."""
        return self.patch_size * self.merge_size

    @property
    def max_tokens(self) -> int:
        """The most tokens that an image has."""
        return self.max_pixels // self.side**2

    def within(self, pixels: int) -> "PictureRule":
        """The same with at most so many pixels. Raises ValueError when that is less than one token's.

        >>> PictureRule().within(40_000).max_tokens
        39
        """
        return replace(self, min_pixels=min(self.min_pixels, pixels), max_pixels=min(self.max_pixels, pixels))

    @classmethod
    def load(cls, model_dir: str | Path) -> "PictureRule":
        """The rule of a model folder. Raises FileNotFoundError, or ValueError for a setting we cannot honor."""
        path = Path(model_dir) / PROCESSOR_FILE
        if not path.is_file():
            raise FileNotFoundError(f"no {PROCESSOR_FILE} in the model folder {model_dir}: its policy reads no images")
        return cls.from_processor(json.loads(path.read_bytes()))

    @classmethod
    def from_processor(cls, raw: dict[str, Any]) -> "PictureRule":
        """Of a parsed `preprocessor_config.json`.

        >>> PictureRule.from_processor({"patch_size": 16, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
        ...                             "size": {"shortest_edge": 1024, "longest_edge": 4096}}).max_pixels
        4096
        """
        for name in ("image_mean", "image_std"):
            # The forward function of the policy has these numbers built in.
            if list(raw.get(name, ())) != [0.5] * 3:
                raise ValueError(f"{name} must be [0.5, 0.5, 0.5], got {raw.get(name)}")
        size = raw.get("size") or {}
        found = {
            "patch_size": raw.get("patch_size"),
            "merge_size": raw.get("merge_size"),
            "min_pixels": size.get("shortest_edge", raw.get("min_pixels")),
            "max_pixels": size.get("longest_edge", raw.get("max_pixels")),
        }
        return cls(**{name: int(value) for name, value in found.items() if value is not None})

    def size(self, height: int, width: int) -> tuple[int, int]:
        """`(height, width)` in pixels after resizing: whole tokens, close to the same shape, within the budget.

        The rule of Qwen's image processors; Python's rounding to even is part of it. Raises ValueError for an image
        that is empty or more than 200 times as long as wide.

        >>> PictureRule().size(900, 1440), PictureRule(max_pixels=262_144).size(900, 1440)
        ((896, 1440), (384, 640))
        """
        if min(height, width) < 1 or max(height, width) > _LONGEST_RATIO * min(height, width):
            raise ValueError(
                f"an image of {height}x{width} pixels is empty or more than {_LONGEST_RATIO} times as long as wide:"
                " crop it"
            )
        side = self.side
        found = round(height / side) * side, round(width / side) * side
        if found[0] * found[1] > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            return tuple(max(side, math.floor(n / shrink / side) * side) for n in (height, width))  # type: ignore[return-value]
        if found[0] * found[1] < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            return tuple(math.ceil(n * grow / side) * side for n in (height, width))  # type: ignore[return-value]
        return found


def fit(image: bytes, rule: PictureRule) -> Picture:
    """The image (PNG, JPEG or what else Pillow reads) as the policy will see it; RGB, transparency on white.

    Raises ValueError for bytes that are no image and for one so long that no size of its shape keeps the budget.
    """
    try:
        with Image.open(io.BytesIO(image)) as opened:
            opened.load()
            pixels = _rgb(opened)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ValueError(f"{len(image)} bytes that are no image, or too large a one: {error}") from error
    height, width = rule.size(pixels.height, pixels.width)
    if rule.size(height, width) != (height, width):
        raise ValueError(
            f"an image of {pixels.height}x{pixels.width} pixels is too long for {rule.max_pixels} pixels: crop it or"
            " raise max_pixels"
        )
    if (pixels.height, pixels.width) != (height, width):
        pixels = pixels.resize((width, height), Image.Resampling.BICUBIC)
    written = io.BytesIO()
    pixels.save(written, "png", compress_level=1)
    grid = height // rule.patch_size, width // rule.patch_size
    return Picture(png=written.getvalue(), grid=grid, merge_size=rule.merge_size)


def picture_patches(picture: Picture) -> np.ndarray:
    """uint8 [P, C*p*p]: the pixels of each patch, channel first; patches that become one token stand together.

    Raises ValueError when the PNG has other sides than its grid says.
    """
    with Image.open(io.BytesIO(picture.png)) as opened:
        pixels = np.asarray(opened.convert("RGB"))
    (rows, columns), merge = picture.grid, picture.merge_size
    size = pixels.shape[0] // rows
    if pixels.shape[:2] != (rows * size, columns * size):
        raise ValueError(
            f"a picture of {rows}x{columns} patches cannot have {pixels.shape[0]}x{pixels.shape[1]} pixels"
        )
    blocks = pixels.reshape(rows // merge, merge, size, columns // merge, merge, size, CHANNELS)
    return np.ascontiguousarray(blocks.transpose(0, 3, 1, 4, 6, 2, 5)).reshape(picture.num_patches, -1)


def _rgb(image: Image.Image) -> Image.Image:
    """Three channels. What is transparent shows white, as a page does, whatever color hides under it."""
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")
