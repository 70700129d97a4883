"""Masks (case 14) and means as sums divided once (case 9)."""

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.masked import all_finite, masked_count, masked_max, masked_sum, quotient, safe


def masked_mean(x, mask):
    return quotient(masked_sum(x, mask), masked_count(mask))


def test_mean_and_gradient_behind_a_nan():
    values, mask = jnp.array([1.0, jnp.nan]), jnp.array([True, False])
    value, grad = jax.value_and_grad(masked_mean)(values, mask)
    assert float(value) == 1.0
    np.testing.assert_array_equal(grad, [1.0, 0.0])


def test_log_of_zero_behind_a_mask_has_gradient_exactly_zero():
    mask = jnp.array([True, False])
    grad = jax.grad(lambda x: masked_mean(jnp.log(safe(x, mask, 1.0)), mask))(jnp.array([2.0, 0.0]))
    np.testing.assert_array_equal(grad, [0.5, 0.0])


def test_empty_mask_gives_zero_and_no_nan():
    value, grad = jax.value_and_grad(masked_mean)(jnp.array([jnp.nan, 1.0]), jnp.zeros(2, bool))
    assert float(value) == 0.0
    np.testing.assert_array_equal(grad, [0.0, 0.0])


def test_fractional_weight_is_not_clamped():
    # Losses 4 and 0 that weigh 1/4 each: their weighted mean is 2; divided by max(0.5, 1) it would be 1.
    assert float(quotient(jnp.array(1.0), jnp.array(0.5))) == 2.0


def test_quotient_of_nothing_is_zero_and_so_are_its_gradients():
    value, grads = jax.value_and_grad(quotient, (0, 1))(jnp.array(3.0), jnp.array(0.0))
    assert float(value) == 0.0 and [float(g) for g in grads] == [0.0, 0.0]


def test_count_is_exact_above_the_float32_integers():
    # 2**24 + 1 has no float32; the nearest even is 2**24, reached by rounding once, not by losing ones.
    assert float(masked_count(np.ones(2**24 + 4, bool))) == 2**24 + 4


def test_max_of_nothing_is_the_floor():
    assert float(masked_max(jnp.array([5.0]), jnp.array([False]))) == 0.0


def test_all_finite_sees_one_bad_number():
    assert bool(all_finite({"a": jnp.ones(2)}))
    assert not bool(all_finite({"a": jnp.ones(2), "b": jnp.array([1.0, jnp.inf])}))
