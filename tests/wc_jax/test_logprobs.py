"""Chunked log-probabilities (cases 8, 14, 22)."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles
from wc_jax.logprobs import token_logprobs

T, D, V = 7, 5, 11
rng = np.random.default_rng(0)
HIDDEN, UNEMBED = rng.normal(size=(T, D)).astype(np.float32), rng.normal(size=(D, V)).astype(np.float32)
TARGETS = rng.integers(0, V, T).astype(np.int32)
MASK = np.array([1, 1, 0, 1, 1, 0, 1], bool)


@pytest.mark.parametrize("chunk", [1, 3, 7, 1024])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_the_direct_form(chunk, temperature):
    logp, entropy = token_logprobs(HIDDEN, UNEMBED, TARGETS, temperature=temperature, chunk=chunk)
    expected = oracles.token_logprobs(HIDDEN, UNEMBED, TARGETS, temperature)
    np.testing.assert_allclose(logp, expected[0], atol=2e-6)
    np.testing.assert_allclose(entropy, expected[1], atol=2e-6)


def test_temperature_halves_and_three_to_one_becomes_nine_to_one():
    logp, _ = token_logprobs(
        np.ones((1, 1), np.float32), np.array([[0.0, np.log(3)]], np.float32), np.array([1]), temperature=0.5
    )
    assert float(logp[0]) == pytest.approx(np.log(0.9), abs=1e-6)


def test_gradients_with_mask_and_chunks_equal_the_direct_ones():
    weight = rng.normal(size=(2, T)).astype(np.float32)

    def direct(h, w):
        logp = jax.nn.log_softmax(h @ w / 0.7, axis=1)
        picked, entropy = logp[jnp.arange(T), TARGETS], -jnp.sum(jnp.exp(logp) * logp, axis=1)
        return jnp.sum(jnp.where(MASK, weight[0] * picked + weight[1] * entropy, 0.0))

    def chunked(h, w):
        logp, entropy = token_logprobs(h, w, TARGETS, temperature=0.7, chunk=3, loss_mask=MASK)
        return jnp.sum(weight[0] * logp + weight[1] * entropy)

    for found, expected in zip(
        jax.grad(chunked, (0, 1))(HIDDEN, UNEMBED), jax.grad(direct, (0, 1))(HIDDEN, UNEMBED), strict=True
    ):
        np.testing.assert_allclose(found, expected, atol=3e-6)


def test_masked_positions_are_zero_and_may_be_nan():
    hidden = jnp.asarray(np.where(MASK[:, None], HIDDEN, np.nan))

    def of(h):
        logp, entropy = token_logprobs(h, UNEMBED, TARGETS, chunk=3, loss_mask=MASK)
        return jnp.sum(logp) + jnp.sum(entropy), (logp, entropy)

    grad, (logp, entropy) = jax.grad(of, has_aux=True)(hidden)
    full = token_logprobs(HIDDEN, UNEMBED, TARGETS)
    np.testing.assert_allclose(logp, np.where(MASK, full[0], 0), atol=1e-6)
    np.testing.assert_allclose(entropy, np.where(MASK, full[1], 0), atol=1e-6)
    assert np.isfinite(grad).all() and (np.asarray(grad)[~MASK] == 0).all()


def test_nothing_trained_gives_zeros():
    logp, entropy = token_logprobs(HIDDEN, UNEMBED, TARGETS, chunk=2, loss_mask=np.zeros(T, bool))
    assert not np.asarray(logp).any() and not np.asarray(entropy).any()


def test_extreme_logits_stay_finite():
    logp, entropy = token_logprobs(
        np.array([[1.0]], np.float32), np.array([[0.0, 300.0, -300.0]], np.float32), np.array([2])
    )
    assert float(logp[0]) == pytest.approx(-600) and float(entropy[0]) == pytest.approx(0, abs=1e-6)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="temperature must be above 0"):
        token_logprobs(HIDDEN, UNEMBED, TARGETS, temperature=0.0)
    with pytest.raises(ValueError, match="chunk must be above 0"):
        token_logprobs(HIDDEN, UNEMBED, TARGETS, chunk=0)


def _temporary_bytes(function, *shapes):
    structs = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
    return jax.jit(function).lower(*structs).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("argnums", [None, (0, 1)])
def test_no_buffer_of_tokens_times_vocabulary_exists(argnums):
    tokens, vocab, dim = 32_768, 151_936, 8
    of = partial(_sum_of_logprobs, chunk=512)
    function = of if argnums is None else jax.grad(of, argnums)
    used = _temporary_bytes(
        function,
        ((tokens, dim), jnp.float32),
        ((dim, vocab), jnp.float32),
        ((tokens,), jnp.int32),
        ((tokens,), jnp.bool_),
    )
    assert used < 6 * 512 * vocab * 4 < tokens * vocab * 4 / 10


def _sum_of_logprobs(h, w, t, m, *, chunk):
    logp, entropy = token_logprobs(h, w, t, chunk=chunk, loss_mask=m)
    return jnp.sum(logp) + jnp.sum(entropy)


def test_frozen_head_gets_no_gradient_buffer():
    dim, vocab = 2048, 16_384
    used = _temporary_bytes(
        jax.grad(partial(_sum_of_logprobs, chunk=8)),
        ((64, dim), jnp.float32),
        ((dim, vocab), jnp.float32),
        ((64,), jnp.int32),
        ((64,), jnp.bool_),
    )
    assert used < dim * vocab * 4 / 2


def test_masked_positions_cost_nothing():
    tokens, dim, vocab = 8192, 128, 2048
    hidden, unembed = jnp.ones((tokens, dim)), jnp.ones((dim, vocab))
    grad = jax.jit(jax.grad(lambda h, m: _sum_of_logprobs(h, unembed, jnp.zeros(tokens, jnp.int32), m, chunk=256)))

    def seconds(mask):
        taken = []
        for _ in range(4):
            start = time.process_time()
            grad(hidden, mask).block_until_ready()
            taken.append(time.process_time() - start)
        return min(taken)

    # Scattered one in 32: each original chunk holds some. Four in five of the work must be gone.
    assert seconds(jnp.arange(tokens) % 32 == 0) < 0.2 * seconds(jnp.ones(tokens, bool))
