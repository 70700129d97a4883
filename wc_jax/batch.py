"""Samples of rollouts -> rows of a device batch, in numpy. `wc_jax.types.Batch` draws such a row."""

from collections.abc import Sequence

import numpy as np

from rollout.types import Sample
from wc_jax.image_rows import ImageSpace, image_arrays, share_keys, space_needed
from wc_jax.images import sample_positions
from wc_jax.layout import Layout, lay_out
from wc_jax.types import Batch


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
    stop = 0
    for shown in sample.pictures:
        if not stop <= shown.start < shown.stop <= length:
            raise ValueError(
                f"sample {name}: a picture at {shown.start}..{shown.stop - 1} of {length} tokens is not whole, or"
                f" stands before the end of another at {stop}"
            )
        stop = shown.stop
        if sample.loss_mask[shown.start : stop].any():
            raise ValueError(f"sample {name} trains image tokens, which nobody samples: mask {shown.start}..{stop - 1}")


def plan(
    samples: Sequence[Sample],
    *,
    row_tokens: int,
    share: bool = False,
    align: int = 1,
    sample_ids: Sequence[str] | None = None,
) -> Layout:
    """Where each token of each sample will lie; tells how many rows that takes before any is made.

    `share`: tokens that samples have in common from the start, pictures included, are computed once
    (`wc_jax.layout`). `align`: the chunk of the policy's recurrent layers, 1 without such. Raises ValueError, by
    id, for a sample that does not fit a row or does not fit together.
    """
    names = [str(i) for i in range(len(samples))] if sample_ids is None else list(sample_ids)
    _check_count(samples, names)
    for sample, name in zip(samples, names, strict=True):
        check_sample(sample, name, row_tokens)
    return lay_out(
        share_keys(samples),
        [trained_tokens(sample) for sample in samples],
        row_tokens=row_tokens,
        share=share,
        align=align,
    )


def fill(
    layout: Layout,
    samples: Sequence[Sample],
    *,
    num_rows: int | None = None,
    space: ImageSpace | None = None,
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    count_weights: Sequence[float] | None = None,
) -> Batch:
    """The numpy Batch of `[num_rows, layout.row_tokens]` that `plan` laid out for these samples.

    Args:
        num_rows: fixed height, filled up with padding; None takes what the layout needs.
        space: fixed room for each row's images; None takes what the samples need: without pictures, none, and
            the batch has no `images`.
        advantages, weights, count_weights: one number a sample, given to the tokens it trains. Advantages are
            0 by default, weights (of the loss) 1, count_weights (of what the loss is divided by) the weights.

    A token that several samples share belongs to the one that trains it. Raises ValueError when the layout needs
    more than `num_rows`.
    """
    _check_count(samples, advantages, weights, count_weights)
    numbers = [
        np.zeros(len(samples)) if advantages is None else advantages,
        np.ones(len(samples)) if weights is None else weights,
    ]
    numbers.append(numbers[1] if count_weights is None else count_weights)
    height = layout.num_rows if num_rows is None else num_rows
    if layout.num_rows > height:
        raise ValueError(
            f"{len(samples)} samples need {layout.num_rows} rows of {layout.row_tokens} tokens, got num_rows={height}"
        )
    space = space_needed(layout, samples) if space is None else space
    batch = _empty(height, layout.row_tokens, 0 if space is None else 3)
    if space is not None:
        batch = batch._replace(images=image_arrays(layout, samples, space, height))
    # Counted, or with time, row and column where the batch has images.
    positions = [np.arange(len(s.tokens)) if space is None else sample_positions(s) for s in samples]
    for run in layout.runs:
        here = (run.row, slice(run.column, run.column + run.stop - run.start))
        batch.tokens[here] = samples[run.source].tokens[run.start : run.stop]
        batch.positions[here] = positions[run.source][run.start : run.stop]
        batch.visible_until[here] = run.visible_until
        batch.predecessor[here] = np.arange(run.column - 1, run.column + run.stop - run.start - 1)
        batch.predecessor[run.row, run.column] = layout.predecessor(run)
    for i, sample in enumerate(samples):
        _fill_trained(batch, layout, i, sample, *(float(values[i]) for values in numbers))
    return batch


def pack(
    samples: Sequence[Sample],
    *,
    row_tokens: int,
    share: bool = False,
    align: int = 1,
    num_rows: int | None = None,
    space: ImageSpace | None = None,
    advantages: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
    count_weights: Sequence[float] | None = None,
    sample_ids: Sequence[str] | None = None,
) -> tuple[Batch, Layout]:
    """`plan`, then `fill`: `(the batch, where each sample lies in it)`.

    >>> one = Sample(tokens=np.array([5, 6, 7]), loss_mask=np.array([False, True, True]), segment=0, num_trained=2,
    ...              sampler_logp=np.zeros(3), node_ids=np.zeros(3))
    >>> two = Sample(tokens=np.array([5, 6, 8, 9]), loss_mask=np.array([False, False, False, True]), segment=1,
    ...              sampler_logp=np.zeros(4), node_ids=np.zeros(4), num_trained=1)
    >>> batch, layout = pack([one, two], row_tokens=6, share=True, advantages=[1.0, -1.0])
    >>> batch.tokens[0].tolist(), batch.advantage[0].tolist()
    ([5, 6, 7, 8, 9, 0], [0.0, 1.0, 1.0, 0.0, -1.0, 0.0])
    >>> place = layout.place(1)
    >>> batch.tokens[place.row, place.columns].tolist()
    [5, 6, 8, 9]
    """
    layout = plan(samples, row_tokens=row_tokens, share=share, align=align, sample_ids=sample_ids)
    batch = fill(
        layout,
        samples,
        num_rows=num_rows,
        space=space,
        advantages=advantages,
        weights=weights,
        count_weights=count_weights,
    )
    return batch, layout


def _check_count(samples: Sequence[Sample], *given: Sequence[object] | None) -> None:
    for values in given:
        if values is not None and len(values) != len(samples):
            raise ValueError(f"{len(samples)} samples need as many ids, advantages and weights, got {len(values)}")


def trained_tokens(sample: Sample) -> np.ndarray:
    """bool [T]: the sample's loss mask, without a first token.

    A path that was cut inside an answer begins with a generated token; nothing predicts it.
    """
    trained = np.array(sample.loss_mask, bool)
    trained[0] = False
    return trained


def _fill_trained(
    batch: Batch, layout: Layout, i: int, sample: Sample, advantage: float, weight: float, count_weight: float
) -> None:
    """What sample i says of the tokens that it trains."""
    trained = trained_tokens(sample)
    for run in (layout.runs[r] for r in layout.paths[i]):
        stop = min(run.stop, layout.lengths[i])
        where = trained[run.start : stop]
        if not where.any():
            continue
        here = (run.row, slice(run.column, run.column + stop - run.start))
        assert not (batch.loss_mask[here] & where).any(), "a token is trained by two samples"
        # The step finds the state that predicts a trained token one column before it.
        assert not where[0] or layout.predecessor(run) == run.column - 1, "a trained token begins a branch"
        batch.loss_mask[here] |= where
        batch.token_weight[here][where] = weight
        batch.count_weight[here][where] = count_weight
        batch.advantage[here][where] = advantage
        batch.sampler_logp[here][where] = sample.sampler_logp[run.start : stop][where]


def _empty(height: int, width: int, num_axes: int) -> Batch:
    def zeros(dtype: type) -> np.ndarray:
        return np.zeros((height, width), dtype)

    return Batch(
        tokens=zeros(np.int32),
        positions=np.zeros((height, width, num_axes) if num_axes else (height, width), np.int32),
        visible_until=zeros(np.int32) + np.arange(1, width + 1, dtype=np.int32),
        predecessor=zeros(np.int32) - 1,
        loss_mask=zeros(np.bool_),
        token_weight=zeros(np.float32),
        count_weight=zeros(np.float32),
        advantage=zeros(np.float32),
        sampler_logp=zeros(np.float32),
        old_logp=zeros(np.float32),
    )
