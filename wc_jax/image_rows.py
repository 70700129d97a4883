"""The images of a batch's rows, in numpy: each picture of a row once, and which token shows which part of it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from rollout.pictures import CHANNELS, picture_patches
from rollout.types import Picture, Sample
from wc_jax.images import patch_places
from wc_jax.layout import Layout, Run
from wc_jax.policy import VisionConfig
from wc_jax.types import Images


@dataclass(frozen=True, kw_only=True)
class ImageSpace:
    """Room for images in each row. Fixed, so that the step compiles once for it."""

    num_patches: int
    """A multiple of merge_size², times the devices that a row is cut over."""
    patch_size: int = 16
    merge_size: int = 2

    def __post_init__(self) -> None:
        if self.num_patches < 1 or self.num_patches % self.merge_size**2:
            raise ValueError(
                f"num_patches must be a multiple of {self.merge_size}², the patches of a token, got {self.num_patches}"
            )


def share_keys(samples: Sequence[Sample]) -> list[np.ndarray]:
    """The token ids of each sample, and for image tokens, whose ids are all alike, the picture's number below 0.

    Samples share what these agree in: same text and same pictures.
    """
    pictures = {shown.picture for sample in samples for shown in sample.pictures}
    # By content, so that which samples share does not depend on their order.
    number = {picture: -1 - n for n, picture in enumerate(sorted(pictures, key=lambda picture: picture.digest))}
    keys = []
    for sample in samples:
        found = sample.tokens
        if sample.pictures:
            found = found.copy()
            for shown in sample.pictures:
                found[shown.start : shown.stop] = number[shown.picture]
        keys.append(found)
    return keys


def space_needed(layout: Layout, samples: Sequence[Sample]) -> ImageSpace | None:
    """The least room that holds the images of every row; None where there are none."""
    used: dict[int, dict[Picture, None]] = {}
    for run, picture, _, _ in _shown(layout, samples):
        used.setdefault(run.row, {})[picture] = None
    if not used:
        return None
    first = next(iter(next(iter(used.values()))))
    num_bytes = picture_patches(first).shape[1]
    return ImageSpace(
        num_patches=max(sum(picture.num_patches for picture in pictures) for pictures in used.values()),
        patch_size=round((num_bytes / CHANNELS) ** 0.5),
        merge_size=first.merge_size,
    )


def grown_space(
    before: ImageSpace | None, num_patches: int, vision: VisionConfig, *, num_parts: int = 1
) -> ImageSpace | None:
    """Room for rows of `num_patches`: what there was where that is enough, else a quarter more than is needed.

    So it grows seldom, and each time the step compiles once more. `num_parts`: devices that a row is cut over.

    >>> vision = VisionConfig(depth=1, width=8, num_heads=1, ff_dim=8, out_width=8, patch_size=16)
    >>> space = grown_space(None, 100, vision, num_parts=2)
    >>> space.num_patches, grown_space(space, 120, vision) is space, grown_space(None, 0, vision)
    (128, True, None)
    """
    if num_patches <= (0 if before is None else before.num_patches):
        return before
    multiple = vision.merge_size**2 * num_parts
    return ImageSpace(
        num_patches=math.ceil(1.25 * num_patches / multiple) * multiple,
        patch_size=vision.patch_size,
        merge_size=vision.merge_size,
    )


def image_arrays(layout: Layout, samples: Sequence[Sample], space: ImageSpace, num_rows: int) -> Images:
    """Raises ValueError when a row has more images than there is room, or a picture has patches of another size."""
    images = _empty(num_rows, layout.row_tokens, space)
    starts: list[dict[Picture, int]] = [{} for _ in range(num_rows)]
    ends = [0] * num_rows
    decoded: dict[Picture, np.ndarray] = {}
    for run, picture, columns, tokens in _shown(layout, samples):
        if picture not in starts[run.row]:
            starts[run.row][picture] = start = ends[run.row]
            ends[run.row] = stop = start + picture.num_patches
            if stop > space.num_patches:
                raise ValueError(
                    f"the images of a row have {stop} patches or more but there is room for {space.num_patches}:"
                    " raise ImageSpace.num_patches or shrink the images (PictureRule.max_pixels)"
                )
            if picture not in decoded:
                decoded[picture] = _checked_patches(picture, space)
            here = (run.row, slice(start, stop))
            images.patches[here] = decoded[picture]
            images.place[here] = patch_places(picture.grid, picture.merge_size)
            images.grid[here] = picture.grid
            images.since[here], images.until[here] = start, stop
        images.slot[run.row, columns] = starts[run.row][picture] // space.merge_size**2 + tokens
    return images


def _shown(layout: Layout, samples: Sequence[Sample]) -> Iterator[tuple[Run, Picture, np.ndarray, np.ndarray]]:
    """`(run, picture, columns, which tokens of the picture lie there)`; a run may hold a part of a picture only."""
    for run in layout.runs:
        for shown in samples[run.source].pictures:
            depths = np.arange(max(run.start, shown.start), min(run.stop, shown.stop))
            if len(depths):
                yield run, shown.picture, run.column + depths - run.start, depths - shown.start


def _checked_patches(picture: Picture, space: ImageSpace) -> np.ndarray:
    patches = picture_patches(picture)
    expected = CHANNELS * space.patch_size**2
    if patches.shape[1] != expected or picture.merge_size != space.merge_size:
        raise ValueError(
            f"a picture with {patches.shape[1]} bytes a patch, merged by {picture.merge_size}, but this policy's have"
            f" {expected}, merged by {space.merge_size}: it was fitted by another model's PictureRule"
        )
    return patches


def _empty(height: int, width: int, space: ImageSpace) -> Images:
    own = np.broadcast_to(np.arange(space.num_patches, dtype=np.int32), (height, space.num_patches))
    return Images(
        patches=np.zeros((height, space.num_patches, CHANNELS * space.patch_size**2), np.uint8),
        place=np.zeros((height, space.num_patches, 2), np.int32),
        grid=np.ones((height, space.num_patches, 2), np.int32),
        since=own.copy(),
        until=own + 1,
        slot=np.full((height, width), -1, np.int32),
    )
