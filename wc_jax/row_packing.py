"""Items into as few rows as possible, where items that lie in one row share what stands above them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Which row each item lies in, and the tokens that each row holds."""

    rows: tuple[int, ...]
    used: tuple[int, ...]


def pack_rows(
    sizes: Sequence[int],
    capacity: int,
    *,
    above: Sequence[Sequence[int]] | None = None,
    above_sizes: Sequence[int] = (),
) -> Packing:
    """The largest item first, each into the row where it adds the fewest tokens, and of such the fullest.

    Where nothing is shared this is best fit decreasing. Ties keep their order.

    Args:
        sizes: tokens of each item, without what stands above it.
        capacity: tokens of a row; every item fits, with what stands above it.
        above: for each item the numbers of the stretches above it. A row holds each stretch once.
        above_sizes: tokens of each stretch.

    >>> pack_rows([3, 6, 4, 2], 8)
    Packing(rows=(1, 0, 1, 0), used=(8, 7))
    >>> pack_rows([3, 3], 8, above=[[0], [0]], above_sizes=[2])
    Packing(rows=(0, 0), used=(8,))
    """
    stretches = np.asarray(above_sizes, np.int64)
    parts = [np.asarray(x, np.int64) for x in ([[]] * len(sizes) if above is None else above)]
    totals = np.array([size + stretches[part].sum() for size, part in zip(sizes, parts, strict=True)], np.int64)
    assert len(totals) == 0 or totals.max() <= capacity
    free = np.full(len(sizes), capacity, np.int64)
    holds = np.zeros((len(sizes) if len(stretches) else 0, len(stretches)), bool)
    rows, num_rows = [-1] * len(sizes), 0
    for i in np.argsort(-totals, kind="stable"):
        needs = np.full(num_rows, totals[i], np.int64)
        if len(parts[i]):
            needs -= holds[:num_rows, parts[i]] @ stretches[parts[i]]
        left = free[:num_rows] - needs
        # Two criteria in one number: what is left is below 2 ** 31.
        cost = np.where(left < 0, np.iinfo(np.int64).max, (needs << 31) + left)
        row = int(cost.argmin()) if num_rows else -1
        if row < 0 or left[row] < 0:
            row, num_rows = num_rows, num_rows + 1
            free[row] -= totals[i]
        else:
            free[row] = left[row]
        holds[row : row + 1, parts[i]] = True
        rows[i] = row
    return Packing(rows=tuple(rows), used=tuple(int(capacity - x) for x in free[:num_rows]))


def num_rows_needed(lengths: Sequence[int], row_tokens: int) -> int:
    """Rows that samples of these lengths take when nothing is shared.

    >>> num_rows_needed([3, 6, 4], 8)
    2
    """
    return len(pack_rows(lengths, row_tokens).used)
