"""The pixel leg: how much of a reference page a candidate shows, and nothing else.

Both pages are cut into blocks of 48 pixels, each with its ink: text and pictures 1, flat colored areas .15, background
nothing. Let r be the share of the reference's ink that the candidate shows, p the share of the candidate's ink that the
reference shows. Then

    score = r p / (r + p - r p),

the ink in both over the ink in either. Sections may move down or up together; each break in their flow costs what the
band behind it is worth, half as much again. A page that is right but for its height h is worth (h / h_reference)^2.5
(or its inverse), if that is more than what is found without stretching it back.
"""

import io
from dataclasses import dataclass

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError

from verifier.pixel_blocks import BLOCK, Blocks, to_blocks
from verifier.pixel_flow import breaks, flow
from verifier.pixel_match import block_values, column_shift

_BREAK_COST = 1.5
_MOVED_COST = 0.004
"""For each scaled pixel by which the whole page is off: 20 pixels of the page cost 2 %."""
_FARTHEST = 12
_STRETCH_POWER = 2.5
_HEIGHT_COST = 0.1
_SAME_COLOR = 5.0
MAX_HEIGHT = 20_000
"""Pixels of a page that are compared."""


@dataclass(frozen=True, kw_only=True)
class PixelScore:
    """How alike two pages look."""

    score: float
    """In [0, 1]; 1 only for the same page."""
    ssim: float
    """Structural similarity of the lightness, for comparison with other work: no page is moved, the shorter is
    continued in white."""
    reference_height: int
    """Pixels at the reference's width."""
    candidate_height: int


def compare(reference: bytes, candidate: bytes) -> PixelScore:
    """Two pictures of pages (PNG or what else Pillow reads); the candidate is scaled to the reference's width.

    Raises ValueError, saying which, for what is no picture. Taller than `MAX_HEIGHT`, only the top is compared.
    """
    page, other = _opened(reference, "reference"), _opened(candidate, "candidate")
    other = _scaled(other, page.shape[1], round(other.shape[0] * page.shape[1] / other.shape[1]))
    page, other = page[:MAX_HEIGHT], other[:MAX_HEIGHT]
    return PixelScore(
        score=_score(page, other),
        ssim=_ssim(page, other),
        reference_height=len(page),
        candidate_height=len(other),
    )


def _score(page: np.ndarray, other: np.ndarray) -> float:
    if page.shape == other.shape and (page == other).all():
        return 1.0
    ours = to_blocks(page)
    ratio = min(len(page), len(other)) / max(len(page), len(other))
    found = _in_both(ours, to_blocks(other)) * (1 - _HEIGHT_COST * (1 - ratio))
    if ratio < 0.99:
        back = _scaled(other, page.shape[1], len(page))
        found = max(found, ratio**_STRETCH_POWER * _in_both(ours, to_blocks(back)))
    return float(min(found, 1.0))


def _in_both(page: Blocks, other: Blocks) -> float:
    """The ink in both over the ink in either. Pages without ink are alike when they have one color."""
    if not page.ink.any() or not other.ink.any():
        distance = np.linalg.norm(page.mean.mean(axis=(0, 1)) - other.mean.mean(axis=(0, 1)))
        return float(page.ink.any() == other.ink.any() and distance < _SAME_COLOR)
    recall, precision = _share_shown(page, other), _share_shown(other, page)
    either = recall + precision - recall * precision
    return recall * precision / either if either > 0 else 0.0


def _share_shown(page: Blocks, other: Blocks) -> float:
    """The share of the page's ink that the other shows: as it stands, moved as a whole, or section by section."""
    top, bands = np.arange(page.num_rows) * BLOCK, page.ink.sum(axis=1)
    rows = flow(page, other)
    moves = rows - top
    common = max(np.unique(moves).tolist(), key=lambda move: bands[moves == move].sum())
    found = []
    for move in {0, common if abs(common) <= _FARTHEST else 0}:
        for shift in {0, column_shift(page, other, top + move)}:
            share = _mean(page, block_values(page, other, top + move, shift))
            found.append(share * (1 - _MOVED_COST * max(abs(move), abs(shift))))
    if (moves != common).any() or abs(common) > _FARTHEST:
        cost = _BREAK_COST * bands[breaks(page, rows)].sum() / bands.sum()
        values = block_values(page, other, rows, column_shift(page, other, rows))
        found.append(_mean(page, values) - cost)
    return float(max(0.0, *found))


def _mean(page: Blocks, values: np.ndarray) -> float:
    return float((values * page.ink).sum() / page.ink.sum())


def _ssim(page: np.ndarray, other: np.ndarray) -> float:
    """Gaussian windows of 11 pixels, constants .01 and .03 of 255 (Wang et al. 2004), at half the size."""
    height = max(len(page), len(other), 1)
    x, y = (_gray_half(image, height) for image in (page, other))

    def blurred(values: np.ndarray) -> np.ndarray:
        return np.asarray(cv2.GaussianBlur(values, (11, 11), 1.5))

    mean_x, mean_y = blurred(x), blurred(y)
    var_x, var_y = blurred(x * x) - mean_x**2, blurred(y * y) - mean_y**2
    together = blurred(x * y) - mean_x * mean_y
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    values = (2 * mean_x * mean_y + c1) * (2 * together + c2)
    return float((values / ((mean_x**2 + mean_y**2 + c1) * (var_x + var_y + c2))).mean())


def _gray_half(image: np.ndarray, height: int) -> np.ndarray:
    whole = cv2.copyMakeBorder(image, 0, height - len(image), 0, 0, cv2.BORDER_CONSTANT, value=(255, 255, 255))
    gray = cv2.cvtColor(whole, cv2.COLOR_RGB2GRAY)
    size = (max(1, gray.shape[1] // 2), max(1, gray.shape[0] // 2))
    return np.asarray(cv2.resize(gray, size, interpolation=cv2.INTER_AREA), np.float32)


def _opened(data: bytes, which: str) -> np.ndarray:
    """uint8 [height, width, 3]; transparency on white."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            picture = image.convert("RGBA")
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"the {which} is no picture that can be read: {error}; give a PNG of the page") from error
    white = Image.new("RGBA", picture.size, "white")
    return np.asarray(Image.alpha_composite(white, picture).convert("RGB"))


def _scaled(image: np.ndarray, width: int, height: int) -> np.ndarray:
    if image.shape[:2] == (height, width):
        return image
    return np.asarray(cv2.resize(image, (width, max(1, height)), interpolation=cv2.INTER_AREA))
