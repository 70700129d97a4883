"""Credit on inputs worked by hand (cases 2, 13, 15 of the trackers' list)."""

import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from rollout.types import Rollout, Stop
from tests.rollout.finished import a_rollout
from tests.rollout.trees import Sketch
from wc_jax.advantages import group_advantages, redistribute, segment_advantages, segment_returns
from wc_jax.aggregation import sample_weights
from wc_jax.credit import CreditConfig, credit_groups


def test_two_rollouts_of_rewards_one_and_zero_get_plus_and_minus_one():
    found = group_advantages(jnp.array([1.0, 0.0]), jnp.array([0, 0]), num_groups=1)
    np.testing.assert_allclose(found, [1.0, -1.0], atol=1e-5)


def test_equal_rewards_give_exactly_zero_although_their_float32_std_is_not():
    rewards = np.full(3, 0.1, np.float32)
    assert (np.asarray(group_advantages(rewards, np.zeros(3, np.int32), num_groups=1)) == 0).all()


def test_a_failed_rollout_is_in_no_statistic_and_a_real_zero_is():
    rewards = jnp.array([1.0, 1.0, jnp.nan, 0.0])
    valid = jnp.array([True, True, False, True])
    found = np.asarray(group_advantages(rewards, jnp.zeros(4, jnp.int32), valid, num_groups=1))
    std = np.sqrt(2 / 9)
    np.testing.assert_allclose(found, [(1 / 3) / std, (1 / 3) / std, 0, (-2 / 3) / std], atol=1e-5)


@pytest.mark.parametrize("valid", [[True, False], [False, False]])
def test_fewer_than_two_valid_rollouts_give_nothing(valid):
    found = group_advantages(jnp.array([1.0, 0.0]), jnp.array([0, 0]), jnp.array(valid), num_groups=1)
    assert (np.asarray(found) == 0).all()


def test_groups_do_not_see_each_other_and_empty_ones_do_not_matter():
    ids = jnp.array([4, 1, 4, 1])
    found = group_advantages(jnp.array([1.0, 10.0, 0.0, 30.0]), ids, num_groups=6)
    np.testing.assert_allclose(found, [1, -1, -1, 1], atol=1e-5)


def test_gradient_of_a_flat_group_is_finite():
    grad = jax.grad(lambda r: group_advantages(r, jnp.zeros(3, jnp.int32), num_groups=1).sum())(jnp.full(3, 0.1))
    assert np.isfinite(grad).all()


def test_segment_is_paid_for_its_own_progress():
    # Progress 0 -> .2 -> .2 -> 1 at the openings; equal lengths; undiscounted.
    found = segment_returns(jnp.array([[0.0, 0.2, 0.2, 1.0]]), jnp.ones((1, 4), bool), gamma=1.0)
    np.testing.assert_allclose(found, [[1.0, 0.8, 0.8, 0.0]], atol=1e-6)


def test_clip_then_center_again_in_the_papers_order():
    # Centered: 30 * 3/4 = 22.5 and -7.5; clipped 5 and -5; their weighted mean is -2.5.
    found = redistribute(jnp.array([[30.0, 0.0]]), jnp.array([[1, 3]]), clip_offset=5.0)
    np.testing.assert_allclose(found, [[7.5, -2.5]], atol=1e-5)


def test_one_trained_segment_has_no_offset():
    found = redistribute(jnp.array([[1234.567, 9.0, 3.3]]), jnp.array([[0, 7, 0]]))
    assert (np.asarray(found) == 0).all()


def test_returns_use_all_segments_and_centering_only_the_trained():
    potentials = jnp.array([[0.0, 0.5, 1.0]])
    found = segment_advantages(jnp.array([2.0]), potentials, jnp.ones((1, 3), bool), jnp.array([[1, 0, 1]]), gamma=1.0)
    # b = (1, .5, 0) on all three; centered over the first and the last.
    np.testing.assert_allclose(found, [[2.5, 2.0, 1.5]], atol=1e-6)


def test_credit_moves_within_a_rollout_of_a_flat_group():
    found = segment_advantages(jnp.zeros(1), jnp.array([[0.0, 1.0]]), jnp.ones((1, 2), bool), jnp.ones((1, 2)))
    assert float(found[0, 0]) > 0 > float(found[0, 1])


def rollout_of(name: str, num_segments: int, potentials: list[float] | None = None, **outcome) -> Rollout:
    """Each segment generates two tokens of its own below one prompt; without potentials all of them are missing."""
    sketch = Sketch()
    prompt = sketch.add(None, "user")
    leaves = [sketch.add(sketch.add(prompt, "user"), "assistant", generated=2) for _ in range(num_segments)]
    known = [float("nan")] * (num_segments + 1) if potentials is None else potentials
    return replace(a_rollout(name, **outcome), tree=sketch.tree(*leaves), potentials=tuple(known))


def test_a_rollout_of_three_samples_is_one_data_point_in_any_order():
    # Mean .5 and std .5 over two rollouts; over the four samples they would be .75 and .43.
    credited = credit_groups([[rollout_of("a", 3, reward=1.0), rollout_of("b", 1, reward=0.0)]], CreditConfig())
    assert len(credited.samples) == 4
    for order in itertools.permutations(range(4)):
        of = np.array([credited.rollouts[i] for i in order])
        np.testing.assert_allclose([credited.advantages[i] for i in order], np.where(of == 0, 1, -1), atol=1e-5)
        trained = np.array([credited.samples[i].num_trained for i in order])
        weight, _ = sample_weights(trained, of, num_rollouts=2, aggregation="rollout_mean")
        np.testing.assert_allclose(np.bincount(of, np.asarray(weight) * trained), [1.0, 1.0], rtol=1e-6)


def test_a_failed_rollout_has_no_sample_and_a_group_of_one_valid_has_none_at_all():
    failed = rollout_of("dead", 2, stop=Stop.INFRA_FAILED)
    first = [rollout_of("a", 1, reward=1.0), rollout_of("b", 1, reward=1.0), failed, rollout_of("c", 1, reward=0.0)]
    alone = [rollout_of("d", 2, reward=1.0), replace(failed, rollout_id="dead too")]
    credited = credit_groups([first, alone], CreditConfig())
    assert credited.sample_ids == ("a#0", "b#0", "c#0") and set(credited.by_rollout["dead"]) == {0.0}
    # Mean 2/3 and std .4714 over the three valid ones: a real 0 is one of them.
    np.testing.assert_allclose(credited.advantages, [0.7071, 0.7071, -1.4142], atol=1e-4)


def test_a_flat_group_moves_credit_within_its_rollouts_unless_told_not_to():
    def flat(name: str) -> list[Rollout]:
        return [rollout_of(f"{name}{i}", 2, [0.0, 0.8, 0.8], reward=0.1) for i in range(3)]

    # b = (.8, 0) with the discount left out; equal token counts center it to +-.4.
    moved = credit_groups([flat("a")], CreditConfig(gamma=1.0))
    np.testing.assert_allclose(moved.advantages, [0.4, -0.4] * 3, atol=1e-6)
    still = credit_groups([flat("a")], CreditConfig(redistribute_in_zero_variance_groups=False))
    assert set(still.advantages) == {0.0}


def test_shapes_that_do_not_fit_are_refused_in_tests():
    """The stand-ins of `wc_jax.shapes` are for others' projects; here the annotations are checked on each call."""
    with pytest.raises(jaxtyping.TypeCheckError, match="token_counts"):
        redistribute(jnp.ones((1, 2)), jnp.ones((1, 3)))
