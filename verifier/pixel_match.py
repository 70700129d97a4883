"""How much of each block of one page another page shows, near where it should."""

import cv2
import numpy as np

from verifier.pixel_blocks import BLOCK, Blocks, block_means

_REACH = 6
"""Scaled pixels that a block may be off: 24 of the page."""
_OFFSETS = (-6, -4, -2, -1, 0, 1, 2, 4, 6)
_FREE = 2
"""Off by so many costs nothing; by more, 12 % each."""
_NOTHING, _ALIKE = 0.5, 0.8
"""Correlations: at most the first is chance, from the second on the rest is rendering."""
_LEAST_VARIANCE = 0.25


def block_values(page: Blocks, other: Blocks, rows: np.ndarray, shift: int) -> np.ndarray:
    """[N, M] in [0, 1]: of each block, how much `other` shows.

    `rows`: at which row of scaled pixels each band stands there. `shift`: by how many columns all of it stands to
    the right. Textured blocks are compared by correlation of lightness at the best of the near places, flat ones
    by being flat, both by their mean color.
    """
    right = max(0, (page.num_columns - other.num_columns) * BLOCK) + _REACH
    pad = _REACH + abs(shift)
    framed = cv2.copyMakeBorder(other.lab, _REACH, _REACH + BLOCK, pad, pad + right, cv2.BORDER_REPLICATE)
    lab = np.ascontiguousarray(framed[:, abs(shift) + shift :])
    lightness = np.ascontiguousarray(lab[..., 0])
    mean, squares = _window_means(lightness), _window_means(lightness**2)
    value, place = _best_places(page, lightness, rows, mean, squares)
    y = np.clip(rows[:, None] + place[..., 0], 0, len(lab) - BLOCK)
    x = np.arange(page.num_columns) * BLOCK + place[..., 1]
    deviation = np.sqrt(np.maximum(squares[y, x] - mean[y, x] ** 2, 0))
    value = np.where(_is_flat(page), np.clip(1.5 - deviation / 4, 0, 1), value)
    distance = np.linalg.norm(_window_means(lab)[y, x] - page.mean, axis=-1)
    return np.asarray(np.clip(value * np.clip(1.1 - distance / 25, 0, 1), 0, 1))


def column_shift(page: Blocks, other: Blocks, rows: np.ndarray, most: int = 12) -> int:
    """By how many columns the whole page stands to the right on the other: where most edges agree."""
    width = min(page.num_columns, other.num_columns) * BLOCK
    below = np.clip(rows[:, None] + np.arange(BLOCK), 0, len(other.lab) - 1)
    ours = np.diff(page.lightness[:, :width], axis=1)
    theirs = np.diff(other.lightness[:, :width][below].reshape(-1, width), axis=1)

    def agreement(shift: int) -> float:
        last = width - 1 - abs(shift)
        left, right = max(-shift, 0), max(shift, 0)
        return float((ours[:, left : left + last] * theirs[:, right : right + last]).sum() * (1 - 0.002 * abs(shift)))

    return max(range(-most, most + 1), key=agreement)


def _best_places(
    page: Blocks, lightness: np.ndarray, rows: np.ndarray, mean: np.ndarray, squares: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """`(value [N, M], place [N, M, 2])`: the best of the near places, counted from the frame's corner."""
    num_rows, num_columns = page.ink.shape
    width = num_columns * BLOCK
    within = np.clip(rows[:, None] + np.arange(BLOCK + 2 * _REACH), 0, len(lightness) - 1)
    bands = lightness[within]
    spread = np.repeat(np.repeat(page.mean[..., 0], BLOCK, axis=0), BLOCK, axis=1)
    ours, columns = page.lightness - spread, np.arange(num_columns) * BLOCK
    value = np.zeros((num_rows, num_columns))
    place = np.full((num_rows, num_columns, 2), _REACH)
    for dy in _OFFSETS:
        y = np.clip(rows + _REACH + dy, 0, len(lightness) - 1)[:, None]
        for dx in _OFFSETS:
            theirs = bands[:, _REACH + dy : _REACH + dy + BLOCK, _REACH + dx : _REACH + dx + width]
            together = block_means(ours * theirs.reshape(ours.shape), num_rows, num_columns)
            x = columns + _REACH + dx
            variance = np.maximum(squares[y, x] - mean[y, x] ** 2, 0)
            correlation = together / np.sqrt(np.maximum(page.deviation**2 * variance, 1e-6))
            off = max(abs(dy), abs(dx))
            # The nearer of equal places.
            found = _value_of(np.where(variance < _LEAST_VARIANCE, 0, correlation), off) - 1e-4 * off
            is_better = found > value
            value = np.where(is_better, found, value)
            place[is_better] = _REACH + dy, _REACH + dx
    place[_is_flat(page)] = _REACH
    return value, place


def _value_of(correlation: np.ndarray, off: int) -> np.ndarray:
    rough = 0.95 * np.clip((correlation - _NOTHING) / (_ALIKE - _NOTHING), 0, 1)
    value = rough + 0.05 * np.clip((correlation - _ALIKE) / (1 - _ALIKE), 0, 1)
    return np.asarray(value * (1 - 0.12 * max(0, off - _FREE)))


def _is_flat(page: Blocks) -> np.ndarray:
    return np.asarray(page.texture < 0.15)


def _window_means(values: np.ndarray) -> np.ndarray:
    """The mean of the block that begins at each pixel."""
    return np.asarray(
        cv2.boxFilter(values, -1, (BLOCK, BLOCK), anchor=(0, 0), normalize=True, borderType=cv2.BORDER_REPLICATE)
    )
