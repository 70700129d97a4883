"""Laws of credit: what holds for every input."""

from functools import partial

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from tests import oracles
from wc_jax import advantages

R, K, G = 3, 5, 6  # one shape: jax compiles once
# Compiled, because a thousand examples of eager calls take minutes.
group_advantages = jax.jit(advantages.group_advantages, static_argnames="num_groups")
segment_returns = jax.jit(advantages.segment_returns, static_argnames="gamma")
redistribute = jax.jit(advantages.redistribute, static_argnames="clip_offset")
segment_advantages = jax.jit(advantages.segment_advantages)
slope = jax.jit(jax.grad(lambda p, a, m, n: (advantages.segment_advantages(a, p, m, n) ** 2).sum(), (0, 1)))
slope_of_group = jax.jit(jax.grad(lambda r, g, v: (advantages.group_advantages(r, g, v, num_groups=3) ** 2).sum()))
unit = st.floats(0, 1, width=32, allow_subnormal=False)  # XLA takes them for 0
wide = st.floats(-100, 100, width=32, allow_subnormal=False)
# Most segments are short or long: one token beside 60,000 is where float32 runs out of digits.
counts = hnp.arrays(np.int32, (R, K), elements=st.integers(0, 60_000) | st.sampled_from([0, 1, 2, 59_999, 60_000]))
lengths = hnp.arrays(np.int32, (R,), elements=st.integers(1, K))
potentials = hnp.arrays(np.float32, (R, K), elements=unit)
wide_potentials = hnp.arrays(np.float32, (R, K), elements=wide)
of_rollouts = hnp.arrays(np.float32, (R,), elements=st.floats(-3, 3, width=32, allow_subnormal=False))
rewards = hnp.arrays(np.float32, (G,), elements=unit)
group_ids = hnp.arrays(np.int32, (G,), elements=st.integers(0, 2))
valid = hnp.arrays(np.bool_, (G,))


def mask_of(lengths):
    return np.arange(K)[None, :] < lengths[:, None]


def has_digits(rewards, group_ids, valid):
    """A group's rewards are equal, or so far apart that float32 holds digits to divide by."""
    members = [rewards[(group_ids == g) & valid] for g in range(3)]
    return all(m.size < 2 or np.ptp(m) == 0 or np.ptp(m) > 1e-3 for m in members)


@given(rewards, group_ids, valid)
def test_group_advantages_equal_the_oracle_and_sum_to_zero(rewards, group_ids, valid):
    found = np.asarray(group_advantages(rewards, group_ids, valid, num_groups=3))
    if has_digits(rewards, group_ids, valid):
        np.testing.assert_allclose(found, oracles.group_advantages(rewards, group_ids, valid, 3), rtol=2e-3, atol=2e-3)
    for g in range(3):
        assert abs(found[group_ids == g].sum()) < 1e-2
    assert (found[~valid] == 0).all()


@given(unit, group_ids, valid)
def test_a_group_of_equal_rewards_gets_exactly_zero(reward, group_ids, valid):
    """Whatever the other groups earn, and whatever stands where a rollout failed."""
    earned = np.where(group_ids == 0, reward, np.linspace(0, 1, G)).astype(np.float32)
    found = np.asarray(group_advantages(np.where(valid, earned, np.nan), group_ids, valid, num_groups=3))
    assert (found[group_ids == 0] == 0).all() and np.isfinite(found).all()


@given(rewards, group_ids, valid, st.permutations(range(G)))
def test_the_order_of_rollouts_does_not_matter(rewards, group_ids, valid, order):
    order = np.array(order)
    if has_digits(rewards, group_ids, valid):
        found = np.asarray(group_advantages(rewards, group_ids, valid, num_groups=3))
        shuffled = group_advantages(rewards[order], group_ids[order], valid[order], num_groups=3)
        np.testing.assert_allclose(shuffled, found[order], rtol=1e-3, atol=1e-3)


@given(potentials, lengths, counts, of_rollouts, st.permutations(range(R)))
def test_each_rollouts_offsets_are_its_own(potentials, lengths, counts, of_rollout, order):
    mask, order = mask_of(lengths), np.array(order)
    found = np.asarray(segment_advantages(of_rollout, potentials, mask, counts))
    shuffled = segment_advantages(of_rollout[order], potentials[order], mask[order], counts[order])
    np.testing.assert_array_equal(shuffled, found[order])


@given(potentials, lengths, st.sampled_from([0.0, 0.5, 0.995, 1.0]))
def test_returns_equal_the_recursion_and_end_in_zero(potentials, lengths, gamma):
    mask = mask_of(lengths)
    found = np.asarray(segment_returns(potentials, mask, gamma=gamma))
    np.testing.assert_allclose(found, oracles.segment_returns(potentials, mask, gamma), atol=2e-6)
    assert all(found[r, lengths[r] - 1] == 0 for r in range(R))


@given(wide_potentials, counts)
def test_offsets_equal_the_oracle_when_the_clip_bites(returns, counts):
    found = np.asarray(redistribute(returns, counts, clip_offset=5.0))
    np.testing.assert_allclose(found, oracles.redistribute(returns, counts, 5.0), atol=3e-4)
    assert (found[counts == 0] == 0).all()


@given(wide_potentials, lengths, counts)
def test_offsets_conserve_credit(potentials, lengths, counts):
    mask = mask_of(lengths)
    offsets = segment_advantages(np.zeros(R, np.float32), potentials, mask, counts)
    assert imbalance(offsets, np.where(mask, counts, 0)).max() <= 1e-6


def imbalance(offsets, counts):
    """[R] in float64: |sum of n * offset| over the sum of n * |offset|, both over the segments of a rollout."""
    moved = counts * np.asarray(offsets).astype(np.float64)
    return np.abs(moved.sum(axis=1)) / np.maximum(np.abs(moved).sum(axis=1), 1e-30)


@pytest.mark.parametrize("width", [2, 3, 6, 16])
def test_credit_is_conserved_where_one_long_segment_outweighs_all_others(width):
    """Twenty thousand rollouts: before what float32 lost was centered once more, 30 of them failed."""
    rng, many = np.random.default_rng(0), 20_000
    counts = np.ones((many, width), np.int32)
    counts[np.arange(many), rng.integers(0, width, many)] = 60_000
    potentials = rng.uniform(-100, 100, (many, width)).astype(np.float32)
    offsets = segment_advantages(np.zeros(many, np.float32), potentials, np.ones((many, width), bool), counts)
    assert np.abs(offsets).max() > 5.0 and imbalance(offsets, counts).max() <= 1e-6


@given(potentials, lengths, counts, of_rollouts)
def test_segment_advantages_equal_the_oracle(potentials, lengths, counts, of_rollout):
    mask = mask_of(lengths)
    found = segment_advantages(of_rollout, potentials, mask, counts)
    expected = oracles.segment_advantages(of_rollout, potentials, mask, counts, 0.995, 5.0)
    np.testing.assert_allclose(found, expected, atol=5e-6)


@given(potentials, lengths, counts, of_rollouts, st.integers(0, R - 1), st.integers(0, K - 1))
def test_a_missing_potential_falls_back_to_equal_broadcast_in_its_rollout_only(
    potentials, lengths, counts, of_rollout, r, k
):
    mask, others = mask_of(lengths), np.arange(R) != r
    missing = potentials.copy()
    missing[r, k] = np.nan
    plain = np.asarray(segment_advantages(of_rollout, potentials, mask, counts))
    found = np.asarray(segment_advantages(of_rollout, missing, mask, counts))
    np.testing.assert_array_equal(found[others], plain[others])
    np.testing.assert_array_equal(found[r], np.where(mask[r], of_rollout[r], 0) if k < lengths[r] else plain[r])


@given(wide_potentials, lengths, counts, of_rollouts)
def test_padding_changes_no_bit(potentials, lengths, counts, of_rollout):
    """Neither what stands in it, nor more segments, nor more rollouts; 32 is where XLA would sum in another order."""
    mask = mask_of(lengths)
    plain = np.asarray(segment_advantages(of_rollout, potentials, mask, counts))
    dirty = segment_advantages(of_rollout, np.where(mask, potentials, np.nan), mask, np.where(mask, counts, 999))
    np.testing.assert_array_equal(dirty, plain)
    for size in ((0, 3), (0, 27), (4, 0), (5, 27)):
        more = tuple((0, n) for n in size)
        wider = [np.pad(a, more, constant_values=7) for a in (potentials, counts)]
        found = np.asarray(segment_advantages(np.pad(of_rollout, more[0]), wider[0], np.pad(mask, more), wider[1]))
        np.testing.assert_array_equal(found[:R, :K], plain)
        assert (found[R:] == 0).all() and (found[:, K:] == 0).all()


@given(rewards, group_ids, valid)
def test_rollouts_that_are_not_valid_change_no_bit(rewards, group_ids, valid):
    plain = np.asarray(group_advantages(rewards, group_ids, valid, num_groups=3))
    more = [np.pad(a, (0, 5), constant_values=c) for a, c in ((rewards, np.nan), (group_ids, 1), (valid, False))]
    found = np.asarray(group_advantages(*more, num_groups=3))
    np.testing.assert_array_equal(found[:G], plain)
    np.testing.assert_array_equal(group_advantages(rewards, group_ids, valid, num_groups=7), plain)
    assert (found[G:] == 0).all()


@given(
    hnp.arrays(np.float32, (G,), elements=unit | st.sampled_from([0.1, np.float32(1e-30), np.float32(1e-20)])),
    group_ids,
    valid,
)
def test_gradients_of_rewards_are_finite(rewards, group_ids, valid):
    found = np.asarray(slope_of_group(np.where(valid, rewards, np.nan).astype(np.float32), group_ids, valid))
    assert np.isfinite(found).all() and (found[~valid] == 0).all()


@given(wide_potentials, lengths, counts, of_rollouts, st.integers(0, R * K - 1))
def test_gradients_of_potentials_and_advantages_are_finite(potentials, lengths, counts, of_rollout, missing):
    mask = mask_of(lengths)
    given_potentials = np.where(mask & (np.arange(R * K).reshape(R, K) != missing), potentials, np.nan)
    of_potentials, of_advantages = slope(given_potentials.astype(np.float32), of_rollout, mask, counts)
    assert np.isfinite(of_potentials).all() and np.isfinite(of_advantages).all()
    assert (np.asarray(of_potentials)[~mask] == 0).all()


rng = np.random.default_rng(0)
P = 4  # tasks, each a group of G rollouts
LENGTHS = rng.integers(1, K + 1, (P, G))
MASK = np.arange(K) < LENGTHS[..., None]
POTENTIALS = rng.uniform(-10, 10, (P, G, K)).astype(np.float32)
COUNTS = rng.integers(0, 60_000, (P, G, K)).astype(np.int32)
BATCHES = {
    "group_advantages": (
        partial(advantages.group_advantages, num_groups=3),
        (rng.random((P, G)).astype(np.float32), rng.integers(0, 3, (P, G)), rng.random((P, G)) < 0.8),
    ),
    "segment_returns": (advantages.segment_returns, (POTENTIALS, MASK)),
    "redistribute": (advantages.redistribute, (POTENTIALS, COUNTS)),
    "segment_advantages": (
        advantages.segment_advantages,
        (rng.normal(size=(P, G)).astype(np.float32), POTENTIALS, MASK, COUNTS),
    ),
}


@pytest.mark.parametrize("name", BATCHES)
def test_eager_compiled_and_over_a_batch_of_groups_agree(name):
    function, batch = BATCHES[name]
    eager = [np.asarray(function(*(a[p] for a in batch))) for p in range(P)]
    compiled = [np.asarray(jax.jit(function)(*(a[p] for a in batch))) for p in range(P)]
    np.testing.assert_allclose(eager, compiled, atol=2e-6)
    np.testing.assert_allclose(jax.jit(jax.vmap(function))(*batch), compiled, atol=2e-6)
    np.testing.assert_allclose(jax.vmap(function)(*batch), compiled, atol=2e-6)
