"""Where each band of one page stands on another, from top to bottom: sections may move, but not change their order."""

import cv2
import numpy as np

from verifier.pixel_blocks import BLOCK, Blocks

_BREAK = 0.6
"""What a break in the flow must gain, in bands that agree."""
_COLUMNS = 4
"""Scaled pixels side by side that become one: words tell bands apart, letters needn't."""
_LEAST_TEXTURE = 0.5


def flow(page: Blocks, other: Blocks) -> np.ndarray:
    """int [N]: the row of scaled pixels of `other` at which each band of `page` stands.

    Bands follow each other without a gap unless a break makes more of them agree (dynamic programming over the
    bands' correlation with every row of the other page).
    """
    agreement = _agreement(page, other)
    at = np.arange(agreement.shape[1])
    best = agreement[0] - 1e-3 * at / BLOCK
    came_from = []
    for band in agreement[1:]:
        following = np.full(len(at), -np.inf)
        following[BLOCK:] = best[: len(at) - BLOCK]
        # The best place so far at or above each row.
        highest = np.maximum.accumulate(best)
        place = np.maximum.accumulate(np.where(best >= highest, at, 0))
        is_break = highest - _BREAK > following
        came_from.append(np.where(is_break, place, at - BLOCK))
        best = np.where(is_break, highest - _BREAK, following) + band
    rows = [int(best.argmax())]
    for before in reversed(came_from):
        rows.append(int(before[rows[-1]]))
    return np.array(rows[::-1])


def breaks(page: Blocks, rows: np.ndarray) -> np.ndarray:
    """bool [N]: bands with something on them that do not follow the band above."""
    broken = np.zeros(len(rows), bool)
    broken[1:] = np.diff(rows) != BLOCK
    return broken & (page.texture.sum(axis=1) > _LEAST_TEXTURE)


def _agreement(page: Blocks, other: Blocks) -> np.ndarray:
    """[N, rows]: correlation of each band with the other page at each row, 0 for bands that show nothing."""
    ours, theirs = (_narrowed(blocks) for blocks in (page, other))
    width = min(ours.shape[1], theirs.shape[1])
    bands = _centered(ours[:, :width].reshape(page.num_rows, -1))
    windows = np.lib.stride_tricks.sliding_window_view(theirs[:, :width], BLOCK, axis=0).transpose(0, 2, 1)
    places = _centered(windows.reshape(len(windows), -1))
    lengths = np.linalg.norm(bands, axis=1)[:, None] * np.linalg.norm(places, axis=1)
    correlation = bands @ places.T / np.maximum(lengths, 1e-3)
    sure = np.minimum(1, page.texture.sum(axis=1) / 4)
    return np.asarray(np.clip(correlation, 0, 1) * sure[:, None] * (lengths > 1))


def _narrowed(blocks: Blocks) -> np.ndarray:
    size = (blocks.num_columns * BLOCK // _COLUMNS, blocks.num_rows * BLOCK)
    return np.asarray(cv2.resize(blocks.lightness, size, interpolation=cv2.INTER_AREA))


def _centered(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows - rows.mean(axis=1, keepdims=True))
