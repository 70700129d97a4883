"""Which mean the loss is: each against a loop, and the same however the batch is cut (cases 2, 9)."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from wc_jax.aggregation import sample_weights
from wc_jax.objective import policy_objective


def loop(terms: list[list[float]], rollouts: list[int], aggregation: str, constant: float) -> float:
    """The mean as its name says, in float64."""
    samples = [np.asarray(t, np.float64) for t in terms]
    if aggregation == "token_mean":
        return float(np.mean(np.concatenate(samples)))
    if aggregation == "sequence_mean":
        return float(np.mean([t.mean() for t in samples]))
    if aggregation == "dr_grpo":
        return float(np.mean([t.sum() / constant for t in samples]))
    each = [
        np.concatenate([t for t, r in zip(samples, rollouts, strict=True) if r == k]) for k in sorted(set(rollouts))
    ]
    return float(np.mean([t.mean() for t in each]))


def parts(terms: list[list[float]], rollouts: list[int], aggregation: str, constant: float, order: list[int]):
    """`(loss sum, count)` of each sample by itself, in that order."""
    trained = np.array([len(t) for t in terms])
    weight, count = sample_weights(
        trained, np.array(rollouts), num_rollouts=3, aggregation=aggregation, constant=constant
    )
    for i in order:
        advantage = -np.asarray(terms[i], np.float32)
        ones = np.ones(advantage.shape, np.float32)
        total, share, _ = policy_objective(
            0 * ones,
            0 * ones,
            advantage,
            ones > 0,
            token_weight=ones * np.asarray(weight)[i],
            count_weight=ones * np.asarray(count)[i],
        )
        yield float(total), float(share)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "rollout_mean", "dr_grpo"])
@given(
    st.lists(
        st.tuples(st.lists(st.floats(-2, 2, width=32), min_size=1, max_size=4), st.integers(0, 2)),
        min_size=1,
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_each_mean_is_what_its_name_says_however_the_samples_are_split_and_ordered(aggregation, samples, random):
    terms, rollouts = [list(t) for t, _ in samples], [r for _, r in samples]
    order = list(range(len(terms)))
    random.shuffle(order)
    found = list(parts(terms, rollouts, aggregation, 8.0, order))
    mean = sum(total for total, _ in found) / sum(count for _, count in found)
    assert mean == pytest.approx(loop(terms, rollouts, aggregation, 8.0), abs=2e-5)


def test_a_rollout_of_three_samples_weighs_as_much_as_one_of_one():
    weight, _ = sample_weights(
        np.array([4, 2, 2, 5]), np.array([0, 0, 0, 1]), num_rollouts=2, aggregation="rollout_mean"
    )
    np.testing.assert_allclose(np.asarray(weight) * [4, 2, 2, 5], [0.5, 0.25, 0.25, 1.0], rtol=1e-6)


def test_a_sample_that_trains_nothing_weighs_nothing():
    for name in ("token_mean", "sequence_mean", "rollout_mean", "dr_grpo"):
        weight, count = sample_weights(np.array([0, 3]), np.array([0, 1]), num_rollouts=2, aggregation=name)
        assert float(weight[0]) == float(count[0]) == 0.0


def test_unknown_means_are_refused_with_the_known():
    with pytest.raises(ValueError, match="one of token_mean, sequence_mean, rollout_mean, dr_grpo, got 'mean'"):
        sample_weights(np.array([1]), np.array([0]), num_rollouts=1, aggregation="mean")
    for bad in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="constant must be above 0"):
            sample_weights(np.array([1]), np.array([0]), num_rollouts=1, aggregation="dr_grpo", constant=bad)
