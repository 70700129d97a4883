"""A picture of a page as blocks: what each shows, and how much ink it has."""

import math
from dataclasses import dataclass

import cv2
import numpy as np

SCALE = 4
"""Pixels a side that become one: a shift of a pixel or a slight blur is no difference."""
BLOCK = 12
"""Scaled pixels a side of a block: 48 of the page."""

_FAINT, _FULL = 1.0, 5.0
"""Deviations of lightness (0 to 100) within a block: below the first it is flat, from the second on full of ink."""
_FLAT_WEIGHT = 0.15
"""Of a flat block in another color than the page's, against 1 for text and pictures."""


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """A page, scaled down: [N, M] blocks."""

    lab: np.ndarray
    """float32 [N * BLOCK, M * BLOCK, 3]: lightness and the two color axes."""
    mean: np.ndarray
    """[N, M, 3]"""
    deviation: np.ndarray
    """[N, M]: of lightness within the block."""
    texture: np.ndarray
    """[N, M] from 0 (flat) to 1."""
    ink: np.ndarray
    """[N, M] from 0 (the page's background) to 1: how much the block counts."""

    @property
    def lightness(self) -> np.ndarray:
        """float32 [N * BLOCK, M * BLOCK]."""
        return np.ascontiguousarray(self.lab[..., 0])

    @property
    def num_rows(self) -> int:
        """N."""
        return int(self.ink.shape[0])

    @property
    def num_columns(self) -> int:
        """M."""
        return int(self.ink.shape[1])


def to_blocks(image: np.ndarray) -> Blocks:
    """Of an RGB picture, uint8 [height, width, 3]. It is continued at its lower and right edge to whole blocks."""
    height, width = image.shape[:2]
    rows, columns = (max(1, math.ceil(n / (SCALE * BLOCK))) for n in (height, width))
    whole = cv2.copyMakeBorder(
        image,
        0,
        rows * BLOCK * SCALE - height,
        0,
        columns * BLOCK * SCALE - width,
        cv2.BORDER_REPLICATE,
    )
    small = cv2.resize(whole, (columns * BLOCK, rows * BLOCK), interpolation=cv2.INTER_AREA)
    # A little blur makes places between pixels alike, where the same letter falls in two pictures.
    lab = _to_lab(cv2.GaussianBlur(small.astype(np.float32) / 255, (0, 0), 0.8))
    lightness = np.ascontiguousarray(lab[..., 0])
    mean = block_means(lab, rows, columns)
    deviation = np.sqrt(np.maximum(block_means(lightness**2, rows, columns) - mean[..., 0] ** 2, 0))
    texture = np.where(deviation > _FAINT, np.clip(deviation / _FULL, 0, 1), 0)
    distance = np.linalg.norm(mean - _to_lab(_background(image).reshape(1, 1, 3))[0, 0], axis=-1)
    colored = np.where(distance > 3, np.clip(distance / 25, 0, 1), 0)
    ink = np.maximum(texture, _FLAT_WEIGHT * colored)
    return Blocks(lab=lab, mean=mean, deviation=deviation, texture=texture, ink=ink)


def block_means(values: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """[rows, columns, ...] of an array of `rows * BLOCK` by `columns * BLOCK`."""
    return np.asarray(cv2.resize(values, (columns, rows), interpolation=cv2.INTER_AREA))


def _to_lab(rgb: np.ndarray) -> np.ndarray:
    return np.asarray(cv2.cvtColor(rgb.astype(np.float32), cv2.COLOR_RGB2Lab))


def _background(image: np.ndarray) -> np.ndarray:
    """float32 [3] in [0, 1]: the mean of the most frequent color (of 32 levels an axis)."""
    some = image[::2, ::2].reshape(-1, 3)
    level = (some >> 3).astype(np.int32)
    color = level[:, 0] << 10 | level[:, 1] << 5 | level[:, 2]
    most = color == np.bincount(color).argmax()
    return np.asarray(some[most].mean(axis=0) / 255, np.float32)
