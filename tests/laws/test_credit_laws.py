"""Laws of credit: what holds for every input."""

import hypothesis.strategies as st
import jax
import numpy as np
from hypothesis import given
from hypothesis.extra import numpy as hnp

from tests import oracles
from wc_jax import advantages

R, K = 3, 5  # one shape: jax compiles once
# Compiled, because a thousand examples of eager calls take minutes.
group_advantages = jax.jit(advantages.group_advantages, static_argnames="num_groups")
segment_returns = jax.jit(advantages.segment_returns, static_argnames="gamma")
redistribute = jax.jit(advantages.redistribute, static_argnames="clip_offset")
segment_advantages = jax.jit(advantages.segment_advantages)
gradient = jax.jit(jax.grad(lambda p, a, m, n: (advantages.segment_advantages(a, p, m, n) ** 2).sum()))
one_by_one = jax.jit(jax.vmap(lambda a, p, m, n: advantages.segment_advantages(a[None], p[None], m[None], n[None])[0]))
unit = st.floats(0, 1, width=32)
counts = hnp.arrays(np.int32, (R, K), elements=st.integers(0, 65_536))
lengths = hnp.arrays(np.int32, (R,), elements=st.integers(1, K))
potentials = hnp.arrays(np.float32, (R, K), elements=unit)


def mask_of(lengths):
    return np.arange(K)[None, :] < lengths[:, None]


@given(
    hnp.arrays(np.float32, (6,), elements=unit),
    hnp.arrays(np.int32, (6,), elements=st.integers(0, 2)),
    hnp.arrays(np.bool_, (6,)),
)
def test_group_advantages_equal_the_oracle_and_sum_to_zero(rewards, group_ids, valid):
    found = np.asarray(group_advantages(rewards, group_ids, valid, num_groups=3))
    spread = (
        max(np.ptp(rewards[(group_ids == g) & valid]) for g in range(3) if ((group_ids == g) & valid).any())
        if valid.any()
        else 0.0
    )
    # Below this spread float32 rewards hold no digits to divide by.
    if spread == 0 or spread > 1e-3:
        np.testing.assert_allclose(found, oracles.group_advantages(rewards, group_ids, valid, 3), rtol=2e-3, atol=2e-3)
    for g in range(3):
        assert abs(found[group_ids == g].sum()) < 1e-2
    assert (found[~valid] == 0).all()


@given(potentials, lengths, st.sampled_from([0.0, 0.5, 0.995, 1.0]))
def test_returns_equal_the_recursion_and_end_in_zero(potentials, lengths, gamma):
    mask = mask_of(lengths)
    found = np.asarray(segment_returns(potentials, mask, gamma=gamma))
    np.testing.assert_allclose(found, oracles.segment_returns(potentials, mask, gamma), atol=2e-6)
    assert all(found[r, lengths[r] - 1] == 0 for r in range(R))


@given(hnp.arrays(np.float32, (R, K), elements=st.floats(-100, 100, width=32)), counts)
def test_offsets_conserve_credit(returns, counts):
    found = np.asarray(redistribute(returns, counts, clip_offset=5.0)).astype(np.float64)
    np.testing.assert_allclose(found, oracles.redistribute(returns, counts, 5.0), atol=3e-4)
    for r in range(R):
        assert abs((counts[r] * found[r]).sum()) <= 1e-6 * max((counts[r] * np.abs(found[r])).sum(), 1e-3)
    assert (found[counts == 0] == 0).all()


@given(potentials, lengths, counts, hnp.arrays(np.float32, (R,), elements=st.floats(-3, 3, width=32)))
def test_segment_advantages_equal_the_oracle(potentials, lengths, counts, of_rollout):
    mask = mask_of(lengths)
    found = segment_advantages(of_rollout, potentials, mask, counts)
    expected = oracles.segment_advantages(of_rollout, potentials, mask, counts, 0.995, 5.0)
    np.testing.assert_allclose(found, expected, atol=5e-6)


@given(potentials, lengths, counts, st.integers(0, R - 1), st.integers(0, K - 1))
def test_a_missing_potential_falls_back_to_equal_broadcast(potentials, lengths, counts, r, k):
    mask = mask_of(lengths)
    potentials = potentials.copy()
    potentials[r, k] = np.nan
    found = np.asarray(segment_advantages(np.arange(R, dtype=np.float32), potentials, mask, counts))
    assert np.isfinite(found).all()
    if k < lengths[r]:
        np.testing.assert_array_equal(found[r], np.where(mask[r], np.float32(r), 0))


@given(potentials, lengths, counts)
def test_padding_changes_nothing(potentials, lengths, counts):
    mask, of_rollout = mask_of(lengths), np.linspace(-1, 1, R).astype(np.float32)
    plain = segment_advantages(of_rollout, potentials, mask, counts)
    dirty = segment_advantages(of_rollout, np.where(mask, potentials, np.nan), mask, np.where(mask, counts, 999))
    np.testing.assert_array_equal(plain, dirty)
    wider = [np.pad(a, ((0, 0), (0, 3)), constant_values=7) for a in (potentials, counts)]
    found = segment_advantages(of_rollout, wider[0], np.pad(mask, ((0, 0), (0, 3))), wider[1])
    np.testing.assert_allclose(found[:, :K], plain, atol=1e-6)
    assert (np.asarray(found)[:, K:] == 0).all()


@given(potentials, lengths, counts)
def test_gradients_are_finite_and_vmap_agrees(potentials, lengths, counts):
    mask = mask_of(lengths)
    args = (np.ones(R, np.float32), np.where(mask, potentials, np.float32(np.nan)), mask, counts)
    assert np.isfinite(gradient(args[1], args[0], *args[2:])).all()
    np.testing.assert_allclose(one_by_one(*args), segment_advantages(*args), atol=1e-6)


def test_eager_equals_compiled():
    rng = np.random.default_rng(0)
    args = (np.ones(R, np.float32), rng.random((R, K), np.float32), np.ones((R, K), bool), np.ones((R, K)))
    np.testing.assert_allclose(advantages.segment_advantages(*args), segment_advantages(*args), atol=1e-6)
