"""The containers that cross jit, and the legend of their shapes.

`B` rows, `T` tokens, `S` key/value tokens, `V` vocabulary, `D` width, `F` feed-forward, `L` layers,
`N` query heads, `K` key/value heads (in credit: segments), `H` head width, `R` rollouts.
NamedTuples, because they are pytrees without registration and shape checking leaves them alone.
"""

from typing import Any, NamedTuple

import jax


class Batch(NamedTuple):
    """Packed rows. Position t of every array speaks of token t, never of the token it predicts.

    A row of 8 with a segment of 3 and one of 4:
        tokens       a b c  p q r s  0
        positions    0 1 2  0 1 2 3  0
        segment_ids  1 1 1  2 2 2 2  0      0 is padding
        loss_mask    . . x  . x x .  .      never at position 0: nothing predicts a first token
    """

    tokens: jax.Array
    """int32 [B, T]"""
    positions: jax.Array
    """int32 [B, T]; restarts at 0 in each segment."""
    segment_ids: jax.Array
    """int32 [B, T]; counted from 1 in each row, 0 = padding."""
    loss_mask: jax.Array
    """bool [B, T]; True where the policy generated the token and this row owns it."""
    advantage: jax.Array
    """float32 [B, T]; 0 where masked."""
    sampler_logp: jax.Array
    """float32 [B, T]; as reported by the engine, 0 where masked."""
    old_logp: jax.Array
    """float32 [B, T]; recomputed by the trainer before the update, 0 where masked."""


class TrainState(NamedTuple):
    """All that an update changes."""

    params: dict[str, jax.Array]
    """float32 masters."""
    opt_state: Any
    step: jax.Array
    """int32 []; updates applied; a skipped batch does not advance it."""
    num_skipped: jax.Array
    """int32 []; batches that carried no signal."""
