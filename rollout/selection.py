"""Which paths of a rollout become training rows: the first, the last, then the most productive."""

import math
from collections.abc import Sequence
from itertools import pairwise


def progress_by_segment(potentials: Sequence[float]) -> list[float]:
    """Φ gained in each segment, from the potentials at its two boundaries.

    >>> progress_by_segment([0.0, 0.5, 0.25])
    [0.5, -0.25]
    """
    return [after - before for before, after in pairwise(potentials)]


def evenly_spaced(num_paths: int, num_kept: int) -> list[int]:
    """`num_kept` indices from first to last, as even as integers allow; a half goes to the earlier one.

    >>> evenly_spaced(8, 6)
    [0, 1, 3, 4, 6, 7]
    >>> evenly_spaced(4, 3)
    [0, 1, 3]
    """
    if num_kept >= num_paths:
        return list(range(num_paths))
    if num_kept == 1:
        return [0]
    gaps = num_kept - 1
    # ceil(x - 1/2) in integers: Python's round() would send halves to the even neighbor.
    return [-((gaps - 2 * i * (num_paths - 1)) // (2 * gaps)) for i in range(num_kept)]


def select_paths(num_paths: int, potentials: Sequence[float] | None, max_paths: int) -> list[int]:
    """Indices of the retained paths, in time order.

    `potentials` are Φ at the boundary that opens each segment; the end value may follow. When there are
    none, or any is not finite, the choice is evenly spaced. Ties in progress go to the earlier path.

    >>> select_paths(4, [0.0, 0.1, 0.9, 0.9, 1.0], max_paths=3)
    [0, 1, 3]
    """
    if max_paths < 1:
        raise ValueError(f"max_paths must be at least 1, got {max_paths}")
    if potentials is not None and len(potentials) not in (num_paths, num_paths + 1):
        raise ValueError(
            f"potentials must hold one value for each boundary: {num_paths + 1} for {num_paths} paths "
            f"({num_paths} without the end), got {len(potentials)}"
        )
    if num_paths <= max_paths:
        return list(range(num_paths))
    if potentials is None or not all(math.isfinite(value) for value in potentials):
        return evenly_spaced(num_paths, max_paths)
    kept = [0, num_paths - 1][:max_paths]
    progress = progress_by_segment(potentials)
    interior = sorted(range(1, num_paths - 1), key=lambda k: (-progress[k], k))
    return sorted(kept + interior[: max_paths - len(kept)])
