"""Pictures and samples that show them, for tests of the trainer: 2 x 2 pixels a patch, 2 x 2 patches a token."""

import io

import numpy as np
from PIL import Image

from rollout.pictures import PictureRule, fit
from rollout.types import Picture, Sample, Shown

IMAGE = 7
"""The id of image tokens, where nothing else is said."""
RULE = PictureRule(patch_size=2, merge_size=2, min_pixels=16, max_pixels=4096)


def png(height: int, width: int, seed: int = 0) -> bytes:
    """Random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def picture(rows: int, columns: int, seed: int = 0, rule: PictureRule = RULE) -> Picture:
    """Of so many tokens a side."""
    return fit(png(rows * rule.side, columns * rule.side, seed), rule)


def seeing(*parts: int | Picture, trained: int = 1, image_id: int = IMAGE) -> Sample:
    """A sample of text ids and pictures one after the other; its last `trained` tokens are trained."""
    tokens: list[int] = []
    shown = []
    for part in parts:
        if isinstance(part, Picture):
            shown.append(Shown(picture=part, start=len(tokens)))
            tokens += [image_id] * part.num_tokens
        else:
            tokens.append(part)
    mask = np.arange(len(tokens)) >= len(tokens) - trained
    return Sample(
        tokens=np.array(tokens, np.int32),
        loss_mask=mask,
        sampler_logp=np.where(mask, -0.5, np.nan).astype(np.float32),
        node_ids=np.zeros(len(tokens), np.int32),
        segment=0,
        num_trained=trained,
        pictures=tuple(shown),
    )
