"""Pictures as numbers, in numpy: the place of each patch in its image, and the positions of image tokens."""

from collections.abc import Sequence

import numpy as np

from rollout.types import Sample


def patch_places(grid: tuple[int, int], merge_size: int) -> np.ndarray:
    """int32 [P, 2]: row and column of each patch. Those that become one token stand together.

    >>> patch_places((2, 4), 2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    """
    places = np.stack(np.meshgrid(*(np.arange(n, dtype=np.int32) for n in grid), indexing="ij"), axis=-1)
    blocks = places.reshape(grid[0] // merge_size, merge_size, grid[1] // merge_size, merge_size, 2)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def mrope_positions(
    tokens: np.ndarray, image_grids: Sequence[tuple[int, int]], image_token_id: int, merge_size: int
) -> np.ndarray:
    """int32 [T, 3]: time, height and width of each token, for M-RoPE.

    Text counts on in all three. An image's tokens have one time, and their row and column besides it; the text
    after it goes on behind the longer of its sides. `image_grids`: rows and columns of patches of each image.

    >>> mrope_positions(np.array([5, 9, 9, 9, 9, 9, 9, 6]), [(4, 6)], 9, 2).T.tolist()
    [[0, 1, 1, 1, 1, 1, 1, 4], [0, 1, 1, 1, 2, 2, 2, 4], [0, 1, 2, 3, 1, 2, 3, 4]]

    Raises ValueError when image tokens and images do not fit together.
    """
    is_image, starts, at = np.asarray(tokens) == image_token_id, [], 0
    for number, (rows, columns) in enumerate(image_grids):
        stop = (at := at + int(is_image[at:].argmax()) if at < len(is_image) else at) + rows * columns // merge_size**2
        if stop > len(is_image) or not is_image[at:stop].all():
            raise ValueError(f"image {number} of {rows}x{columns} patches needs {stop - at} image tokens in a row")
        starts.append(at)
        at = stop
    if is_image[at:].any():
        raise ValueError(f"{len(image_grids)} images, but image tokens for more from index {at} on")
    return _positions(len(is_image), starts, image_grids, merge_size)


def sample_positions(sample: Sample) -> np.ndarray:
    """int32 [T, 3] of a sample: its pictures say where the images stand, and not the ids, which a policy may sample."""
    pictures = [shown.picture for shown in sample.pictures]
    merge_size = pictures[0].merge_size if pictures else 1
    return _positions(
        len(sample.tokens), [shown.start for shown in sample.pictures], [p.grid for p in pictures], merge_size
    )


def _positions(length: int, starts: Sequence[int], grids: Sequence[tuple[int, int]], merge_size: int) -> np.ndarray:
    parts, column, position = [], 0, 0
    for start, grid in zip(starts, grids, strict=True):
        rows, columns = (n // merge_size for n in grid)
        parts.append(_text(position, start - column))
        position += start - column
        row, col = (x.ravel() for x in np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"))
        parts.append(position + np.stack([np.zeros_like(row), row, col], axis=1))
        column, position = start + rows * columns, position + max(rows, columns)
    parts.append(_text(position, length - column))
    return np.concatenate(parts).astype(np.int32)


def _text(position: int, length: int) -> np.ndarray:
    return np.repeat(np.arange(position, position + length)[:, None], 3, axis=1)
