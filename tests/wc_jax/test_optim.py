"""The update rule (case 25: master precision)."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from wc_jax.optim import OptimConfig, apply_gradients, learning_rate, make_optimizer


@pytest.mark.parametrize(("master", "end"), [("float32", 0.9), ("bfloat16", 1.0)])
def test_small_updates_accumulate_in_float32_masters_only(master, end):
    # Adam with a constant gradient moves by exactly lr each time. This is why bfloat16 masters are refused.
    optimizer = make_optimizer(OptimConfig(lr=1e-3))
    params = {"w": jnp.ones((), master)}
    state = optimizer.init(params)
    for _ in range(100):
        params, state = apply_gradients(optimizer, {"w": jnp.full((), 0.5, master)}, state, params)
    assert params["w"].dtype == master
    assert float(params["w"]) == pytest.approx(end, abs=1e-4)


def run(optimizer, num_steps, size=64, gradient=None):
    """Parameters and state after `num_steps` random gradients, or after the given one each time."""
    params = {"layers.q": jnp.ones(size)}
    state = optimizer.init(params)
    step = jax.jit(lambda grads, state, params: apply_gradients(optimizer, grads, state, params))
    for i in range(num_steps):
        grads = jax.random.normal(jax.random.key(i), (size,)) if gradient is None else jnp.full(size, gradient(i))
        params, state = step({"layers.q": grads}, state, params)
    return params, state


def test_float32_moments_are_optax_adam_bit_for_bit():
    ours = run(make_optimizer(OptimConfig(lr=1e-2, weight_decay=0.1, max_grad_norm=1.0, b2=0.99)), 5)
    plain = run(
        optax.chain(
            optax.clip_by_global_norm(1.0),
            optax.scale_by_adam(b1=0.9, b2=0.99, eps=1e-8),
            optax.add_decayed_weights(0.1),
            optax.scale_by_learning_rate(1e-2),
        ),
        5,
    )
    for left, right in ((ours[0], plain[0]), (ours[1][1], plain[1][1])):
        assert [leaf.tobytes() for leaf in jax.tree.leaves(left)] == [leaf.tobytes() for leaf in jax.tree.leaves(right)]


def test_bfloat16_moments_halve_the_state_and_follow_float32():
    def moments(state):
        return state[1].mu, state[1].nu

    full_params, full = run(make_optimizer(OptimConfig(lr=1e-2)), 50, size=512)
    half_params, half = run(make_optimizer(OptimConfig(lr=1e-2, moments_dtype="bfloat16")), 50, size=512)
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(moments(state))) for state in (full, half)]
    assert sizes == [2 * 4 * 512, 2 * 2 * 512]
    assert half_params["layers.q"].dtype == jnp.float32
    assert jnp.abs(full_params["layers.q"] - half_params["layers.q"]).max() < 1e-2
    # Once more, bit for bit: the rounding is a function of the step.
    again = run(make_optimizer(OptimConfig(lr=1e-2, moments_dtype="bfloat16")), 50, size=512)
    assert again[0]["layers.q"].tobytes() == half_params["layers.q"].tobytes()


def test_a_second_moment_in_bfloat16_can_fall():
    # One large gradient, then 1000 of zero: nu falls to 0.999^1000 = 0.368 of it. Rounded to the nearest it stays.
    optimizer = make_optimizer(OptimConfig(max_grad_norm=0.0, moments_dtype="bfloat16"))
    _, state = run(optimizer, 1001, size=4096, gradient=lambda i: 1.0 if i == 0 else 0.0)
    nu = np.asarray(state[0].nu["layers.q"], np.float64)
    np.testing.assert_allclose(nu.mean(), 1e-3 * 0.999**1000, rtol=0.01)
    stuck = jnp.bfloat16(1e-3)
    assert jnp.float32(stuck) * 0.999 > 0 and (jnp.float32(stuck) * 0.999).astype(jnp.bfloat16) == stuck


def test_first_step_equals_the_formula_by_hand():
    config = OptimConfig(lr=0.1, weight_decay=0.5, max_grad_norm=1.0, b1=0.9, b2=0.99, eps=1e-8)
    optimizer = make_optimizer(config)
    params = {"layers.q": jnp.array([2.0, -2.0]), "final_norm": jnp.array([1.0])}
    grads = {"layers.q": jnp.array([3.0, 0.0]), "final_norm": jnp.array([4.0])}
    moved, _ = apply_gradients(optimizer, grads, optimizer.init(params), params)
    # Bias-corrected Adam's first direction is the sign; decay touches the matrix only.
    np.testing.assert_allclose(moved["layers.q"], [2 - 0.1 * (1 + 0.5 * 2), -2 - 0.1 * (0 - 0.5 * 2)], atol=1e-6)
    np.testing.assert_allclose(moved["final_norm"], [0.9], atol=1e-6)


def test_clip_keeps_direction_and_global_length():
    optimizer = make_optimizer(OptimConfig(lr=1.0, max_grad_norm=1.0))
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    _, state = apply_gradients(
        optimizer, {"a": jnp.array([30.0]), "b": jnp.array([40.0])}, optimizer.init(params), params
    )
    moments = state[1].mu
    np.testing.assert_allclose([moments["a"][0], moments["b"][0]], [0.06, 0.08], rtol=1e-5)


def test_schedules():
    warm = learning_rate(OptimConfig(lr=1.0, warmup_steps=4))
    np.testing.assert_allclose([float(warm(i)) for i in range(6)], [0.25, 0.5, 0.75, 1, 1, 1], atol=1e-6)
    cosine = learning_rate(OptimConfig(lr=1.0, schedule="cosine", warmup_steps=2, total_steps=12, final_share=0.1))
    assert float(cosine(7)) == pytest.approx(0.55, abs=1e-6)
    assert float(cosine(12)) == float(cosine(50)) == pytest.approx(0.1, abs=1e-6)
    assert float(learning_rate(OptimConfig(lr=0.3))(99)) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be at least 0"),
        ({"schedule": "cosine"}, "total_steps must exceed warmup_steps"),
        ({"weight_decay": -0.1}, "must be at least 0"),
    ],
)
def test_bad_settings_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        OptimConfig(**options)
