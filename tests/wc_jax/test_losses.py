"""Per-token terms (case 25) against hand-worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from wc_jax.losses import KL_ESTIMATORS, clipped_surrogate, kl_k3, tis_weight


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 1.0, -1.2, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.5, -1.0, 1.5, 1.5),
        (0.5, -1.0, 0.8, 0.0),
    ],
)
def test_surrogate_value_and_slope(ratio, advantage, loss, slope):
    logp = jnp.log(jnp.array([ratio]))
    value, grad = jax.value_and_grad(lambda x: clipped_surrogate(x, jnp.zeros(1), jnp.array([advantage])).sum())(logp)
    assert float(value) == pytest.approx(loss, abs=1e-6)
    assert float(grad[0]) == pytest.approx(slope, abs=1e-6)


def test_asymmetric_bounds():
    term = clipped_surrogate(
        jnp.log(jnp.array([1.9, 0.1])), jnp.zeros(2), jnp.array([1.0, -1.0]), clip_low=0.5, clip_high=0.8
    )
    np.testing.assert_allclose(term, [-1.8, 0.5], atol=1e-6)


def test_dual_clip_bounds_negative_advantages_only():
    logp = jnp.log(jnp.array([9.0, 9.0]))
    term = clipped_surrogate(logp, jnp.zeros(2), jnp.array([-1.0, 1.0]), dual_clip=3.0)
    np.testing.assert_allclose(term, [3.0, -1.2], atol=1e-6)


def test_absurd_ratio_with_zero_advantage_is_not_nan():
    value, grad = jax.value_and_grad(lambda x: clipped_surrogate(x, jnp.full(1, -500.0), jnp.zeros(1)).sum())(
        jnp.zeros(1)
    )
    assert float(value) == 0.0 and np.isfinite(grad).all()


def test_tis_weight_is_capped_and_constant():
    old = jnp.array([-1.0])
    assert float(tis_weight(old, jnp.array([-3.0]), cap=2.0)[0]) == 2.0
    assert float(jax.grad(lambda x: tis_weight(x, jnp.array([-1.2])).sum())(old)[0]) == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_missing_sampler_logp_weighs_one(bad):
    assert float(tis_weight(jnp.array([-1.0]), jnp.array([bad], jnp.float32))[0]) == 1.0


def test_k3_is_nonnegative_zero_at_home_and_has_a_gradient():
    logp = jnp.linspace(-3.0, 0.0, 7)
    assert (np.asarray(kl_k3(logp, jnp.full(7, -1.5))) >= 0).all()
    assert float(jax.grad(lambda x: kl_k3(x, jnp.array(-1.0)))(jnp.array(-2.0))) != 0.0
    assert float(kl_k3(jnp.array(-1.0), jnp.array(-2.0))) == pytest.approx(np.exp(-1) - 1 + 1, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "value", "slope"),
    [("k1", 2.0, 1.0), ("k2", 2.0, 2.0), ("k3", np.exp(-2) + 1, 1 - np.exp(-2))],
)
def test_estimators_and_their_gradients_by_hand(name, value, slope):
    found = jax.value_and_grad(lambda x: KL_ESTIMATORS[name](x, jnp.array(-3.0)))(jnp.array(-1.0))
    np.testing.assert_allclose(found, (value, slope), rtol=1e-6)


@pytest.mark.parametrize(("name", "slope"), [("k1", 1.0), ("k2", 29.0), ("k3", 1.0)])
def test_a_policy_sure_of_what_the_reference_excludes_is_pulled_back(name, slope):
    # 29 nats apart; bounding both sides of the difference would leave the penalty without a gradient here.
    assert float(jax.grad(lambda x: KL_ESTIMATORS[name](x, jnp.array(-30.0)))(jnp.array(-1.0))) == pytest.approx(slope)


def test_k3_of_a_token_left_far_behind_is_finite():
    value, slope = jax.value_and_grad(lambda x: kl_k3(x, jnp.array(-1.0)))(jnp.array(-500.0))
    assert np.isfinite(value) and float(slope) == 0.0


def _mean_gradient(name, logits, ref):
    """Of the estimate's mean over the policy's own tokens, the tokens being fixed: what a batch of them gives."""
    weight = jax.lax.stop_gradient(jax.nn.softmax(logits))
    return jax.grad(lambda x: (weight * KL_ESTIMATORS[name](jax.nn.log_softmax(x), ref)).sum())(logits)


def test_mean_gradients_are_those_that_the_docstrings_promise():
    rng = np.random.default_rng(0)
    logits, ref = jnp.asarray(rng.normal(size=5), jnp.float32), jax.nn.log_softmax(jnp.asarray(rng.normal(size=5)))
    ref = ref.astype(jnp.float32)

    def forward(x):
        return (jax.nn.softmax(x) * (jax.nn.log_softmax(x) - ref)).sum()

    def backward(x):
        return (jnp.exp(ref) * (ref - jax.nn.log_softmax(x))).sum()

    for name, promised in (("k1", jnp.zeros(5)), ("k2", jax.grad(forward)(logits)), ("k3", jax.grad(backward)(logits))):
        np.testing.assert_allclose(_mean_gradient(name, logits, ref), promised, atol=1e-6, err_msg=name)
