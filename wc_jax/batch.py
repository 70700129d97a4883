"""Samples of rollouts -> packed rows of a device batch, in numpy."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollout.types import Sample
from wc_jax.types import Batch


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a sample lies: `rows[row, start:stop]`, as segment `segment_id`."""

    row: int
    start: int
    stop: int
    segment_id: int


def plan_rows(lengths: Sequence[int], row_tokens: int) -> tuple[list[Slot], int]:
    """First-fit decreasing: `(a slot per sample, number of rows)`. Ties keep their order.

    >>> slots, num_rows = plan_rows([3, 6, 4], 8)
    >>> num_rows, [(s.row, s.start, s.segment_id) for s in slots]
    (2, [(1, 4, 2), (0, 0, 1), (1, 0, 1)])
    """
    used: list[int] = []
    num_segments: list[int] = []
    slots: list[Slot | None] = [None] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, n in enumerate(used) if n + lengths[i] <= row_tokens), len(used))
        if row == len(used):
            used.append(0)
            num_segments.append(0)
        num_segments[row] += 1
        slots[i] = Slot(row=row, start=used[row], stop=used[row] + lengths[i], segment_id=num_segments[row])
        used[row] += lengths[i]
    return [slot for slot in slots if slot is not None], len(used)


def check_sample(sample: Sample, name: str, row_tokens: int) -> None:
    """Raises ValueError, naming the sample, for what could not be trained as it stands."""
    length = len(sample.tokens)
    lengths = {length, len(sample.loss_mask), len(sample.sampler_logp), len(sample.node_ids)}
    if len(lengths) != 1:
        raise ValueError(f"sample {name}: arrays of unequal lengths {sorted(lengths)}")
    if length == 0:
        raise ValueError(f"sample {name} is empty")
    if length > row_tokens:
        raise ValueError(
            f"sample {name} has {length} tokens but a row holds {row_tokens}: "
            "raise row_tokens or lower the rollout's max_tokens"
        )


def pack(
    samples: Sequence[Sample],
    *,
    row_tokens: int,
    num_rows: int | None = None,
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    sample_ids: Sequence[str] | None = None,
) -> tuple[Batch, list[Slot]]:
    """`(a numpy Batch of [num_rows, row_tokens], the slot of each sample)`.

    `advantages` and `weights` (of the loss, 1 by default): one number a sample, given to its trained tokens.
    `num_rows`: fixed height, filled with
    padding; None takes what is needed. Raises ValueError when a sample is too long for a row (by id) or the
    samples do not fit into `num_rows`.
    """
    names = [str(i) for i in range(len(samples))] if sample_ids is None else list(sample_ids)
    for given in (names, advantages, weights):
        if given is not None and len(given) != len(samples):
            raise ValueError(f"{len(samples)} samples need as many ids, advantages and weights, got {len(given)}")
    for sample, name in zip(samples, names, strict=True):
        check_sample(sample, name, row_tokens)
    slots, needed = plan_rows([len(s.tokens) for s in samples], row_tokens)
    height = needed if num_rows is None else num_rows
    if needed > height:
        raise ValueError(f"{len(samples)} samples need {needed} rows of {row_tokens} tokens, got num_rows={height}")
    batch = _empty(height, row_tokens)
    for i, (sample, slot) in enumerate(zip(samples, slots, strict=True)):
        here = (slot.row, slice(slot.start, slot.stop))
        # A path that was cut inside an answer begins with a generated token; nothing predicts it.
        mask = np.arange(slot.stop - slot.start) > 0
        mask &= np.asarray(sample.loss_mask, bool)
        batch.tokens[here] = sample.tokens
        batch.positions[here] = np.arange(slot.stop - slot.start)
        batch.visible_until[here] = slot.stop
        batch.predecessor[here] = np.arange(slot.start - 1, slot.stop - 1)
        batch.predecessor[slot.row, slot.start] = -1
        batch.loss_mask[here] = mask
        batch.token_weight[here] = np.where(mask, 1.0 if weights is None else weights[i], 0.0)
        batch.sampler_logp[here] = np.where(mask, sample.sampler_logp, 0.0)
        if advantages is not None:
            batch.advantage[here] = np.where(mask, advantages[i], 0.0)
    return batch, slots


def _empty(height: int, width: int) -> Batch:
    def zeros(dtype: type) -> np.ndarray:
        return np.zeros((height, width), dtype)

    return Batch(
        tokens=zeros(np.int32),
        positions=zeros(np.int32),
        visible_until=zeros(np.int32) + np.arange(1, width + 1, dtype=np.int32),
        predecessor=zeros(np.int32) - 1,
        loss_mask=zeros(np.bool_),
        token_weight=zeros(np.float32),
        advantage=zeros(np.float32),
        sampler_logp=zeros(np.float32),
        old_logp=zeros(np.float32),
    )
