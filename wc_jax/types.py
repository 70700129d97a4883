"""The containers that cross jit, and the legend of their shapes.

`B` rows, `T` tokens, `S` key/value tokens, `V` vocabulary, `D` width, `F` feed-forward, `L` layers,
`N` query heads, `K` key/value heads (in credit: segments), `H` head width, `R` rollouts.
NamedTuples, because they are pytrees without registration and shape checking leaves them alone.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

AnyArray = jax.Array | np.ndarray
"""What the pure functions accept: on a device, traced, or on the host."""


class Images(NamedTuple):
    """The pixels that a batch's rows show: `P` patches a row, of one image after the other, then padding."""

    patches: AnyArray
    """uint8 [B, P, C*p*p]; pixels, channel first. An image's patches stand in blocks of merge x merge neighbors."""
    place: AnyArray
    """int32 [B, P, 2]; row and column in the grid of its image."""
    grid: AnyArray
    """int32 [B, P, 2]; height and width of that grid, in patches."""
    since: AnyArray
    """int32 [B, P]; where the patches of its image begin."""
    until: AnyArray
    """int32 [B, P]; where they end. Padding sees itself only."""
    slot: AnyArray
    """int32 [B, T]; which of the row's features, one for each block, stands in this token's place; -1: none."""


class Batch(NamedTuple):
    """Rows of trees of samples. Position t of every array speaks of token t, never of the token it predicts.

    A row is laid out depth first, so that samples which begin alike share what they share. A row of 10 with
    the samples a b c d and a b p q, then the sample s t, then padding:
        column         0 1  2 3  4 5  6 7   8  9
        tokens         a b  c d  p q  s t   0  0
        positions      0 1  2 3  2 3  0 1   0  0
        visible_until  6 6  4 4  6 6  8 8   9 10      key j is seen by the columns j..visible_until[j]-1
        predecessor   -1 0  1 2  1 4 -1 6  -1 -1
        loss_mask      . .  x x  . x  . x   .  .      a trained token stands right after its predecessor
    A row of packed samples, or of one padded sample, is a tree without forks.
    """

    tokens: AnyArray
    """int32 [B, T]"""
    positions: AnyArray
    """int32 [B, T]; how many tokens of its own sample stand before it. Of multimodal policies, where images spread over
    rows and columns, [B, T, 3]: time, row, column."""
    visible_until: AnyArray
    """int32 [B, T]; end of the columns that descend from this one. Padding sees and is seen by itself only."""
    predecessor: AnyArray
    """int32 [B, T]; column of the token before it in its sample, -1 for a first token and for padding."""
    loss_mask: AnyArray
    """bool [B, T]; True where the policy generated the token and this row owns it."""
    token_weight: AnyArray
    """float32 [B, T]; what multiplies the token's loss, 0 where masked (see `aggregation`)."""
    count_weight: AnyArray
    """float32 [B, T]; what the token adds to the number that the summed loss is divided by, 0 where masked."""
    advantage: AnyArray
    """float32 [B, T]; 0 where masked."""
    sampler_logp: AnyArray
    """float32 [B, T]; as reported by the engine, 0 where masked. NaN where the engine reported none."""
    old_logp: AnyArray
    """float32 [B, T]; recomputed by the trainer before the update, 0 where masked."""
    ref_logp: AnyArray | None = None
    """float32 [B, T]; under the reference policy. None: no reference, no KL term."""
    images: Images | None = None
    """None: the rows hold text only."""


class TrainState(NamedTuple):
    """All that an update changes."""

    params: dict[str, jax.Array]
    """float32 masters."""
    opt_state: Any
    step: jax.Array
    """int32 []; updates applied; a skipped batch does not advance it."""
    num_skipped: jax.Array
    """int32 []; batches that carried no signal, or whose gradient was not finite."""


class Stats(NamedTuple):
    """What the objective saw, as sums and maxima over trained tokens: merge exactly, divide at the very end."""

    num_tokens: jax.Array
    """Trained tokens."""
    loss_sum: jax.Array
    weight_sum: jax.Array
    """What `loss_sum` is divided by: trained tokens, samples or rollouts."""
    ratio_sum: jax.Array
    ratio_max: jax.Array
    clip_low_sum: jax.Array
    """Tokens that the lower bound silences: ratio below it and a negative advantage."""
    clip_high_sum: jax.Array
    """Tokens that the upper bound silences: ratio above it and a positive advantage."""
    kl_sum: jax.Array
    """k3 estimate of KL(old || current), nats."""
    ref_kl_sum: jax.Array
    """KL(current || reference) by the estimator in use, nats; 0 without a reference."""
    gap_sum: jax.Array
    """|old_logp - sampler_logp| where the engine reported one, nats."""
    gap_max: jax.Array
    gap_counts: jax.Array
    """[65]: tokens by that gap, in bins that `objective.GAP_EDGES` part."""
    num_sampled: jax.Array
    """Trained tokens with a finite sampler log-probability; the gap's and `tis_capped_sum` are over these."""
    tis_capped_sum: jax.Array
    advantage_abs_sum: jax.Array
    advantage_abs_max: jax.Array
    entropy_sum: jax.Array
    """Full-vocabulary entropy, nats; 0 where the caller gave none."""
