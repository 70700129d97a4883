"""Which mean the loss is: weights for the tokens of each sample, so that one division at the end gives it.

loss = sum over trained tokens of token_weight * term / sum of count_weight, over the whole batch. So every
mean below is the same number however the batch is cut into micro-batches, devices and hosts.
"""

from typing import Literal, get_args

import jax
import jax.numpy as jnp

from wc_jax.masked import quotient
from wc_jax.shapes import Array, Float, Shaped
from wc_jax.types import AnyArray

Aggregation = Literal["token_mean", "sequence_mean", "rollout_mean", "dr_grpo"]


def sample_weights(
    num_trained: Shaped[AnyArray, "S"],
    rollout_ids: Shaped[AnyArray, "S"],
    *,
    num_rollouts: int,
    aggregation: str = "token_mean",
    constant: float = 1.0,
) -> tuple[Float[Array, "S"], Float[Array, "S"]]:
    """`(token_weight, count_weight)` of every trained token of each sample; 0 for a sample that trains none.

    token_mean: each trained token counts alike. sequence_mean: each sample does. rollout_mean: each rollout
    does, over all of its samples. dr_grpo: each sample's sum is divided by `constant` instead of its length, so
    that long answers are not favored; then the mean over samples. `rollout_ids` are in [0, num_rollouts).
    Raises ValueError for an unknown aggregation, and for a constant that is not above 0.

    >>> [w.tolist() for w in sample_weights(jnp.array([1, 4]), jnp.array([0, 1]), num_rollouts=2,
    ...                                     aggregation="dr_grpo", constant=8.0)]
    [[0.125, 0.125], [1.0, 0.25]]
    """
    if aggregation not in get_args(Aggregation):
        raise ValueError(f"aggregation must be one of {', '.join(get_args(Aggregation))}, got {aggregation!r}")
    if not constant > 0:  # so that NaN is refused too
        raise ValueError(f"constant must be above 0, got {constant}")
    trained = jnp.asarray(num_trained).astype(jnp.float32)
    is_some = (trained > 0).astype(jnp.float32)
    if aggregation == "token_mean":
        return is_some, is_some
    by_sample = quotient(is_some, trained)
    if aggregation == "sequence_mean":
        return by_sample, by_sample
    if aggregation == "dr_grpo":
        return is_some / constant, by_sample
    ids = jnp.asarray(rollout_ids).astype(jnp.int32)
    by_rollout = quotient(is_some, jax.ops.segment_sum(trained, ids, num_rollouts)[ids])
    return by_rollout, by_rollout
