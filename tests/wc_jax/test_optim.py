"""The update rule (case 25: master precision)."""

import jax.numpy as jnp
import numpy as np
import pytest

from wc_jax.optim import OptimConfig, apply_gradients, learning_rate, make_optimizer


def test_small_updates_accumulate_in_float32_masters():
    # Adam with a constant gradient moves by exactly lr each time; bfloat16 storage would stay at 1.
    config = OptimConfig(lr=1e-3)
    optimizer = make_optimizer(config)
    params = {"w": jnp.ones(())}
    state = optimizer.init(params)
    stuck = jnp.ones((), jnp.bfloat16)
    for _ in range(100):
        params, state = apply_gradients(optimizer, {"w": jnp.full((), 0.5)}, state, params)
        stuck = stuck - jnp.asarray(1e-3, jnp.bfloat16)
    assert float(params["w"]) == pytest.approx(0.9, abs=1e-4)
    assert float(stuck) == 1.0


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
