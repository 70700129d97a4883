"""What the compiled programs of scoring and training hold at the paper's sizes (case 22): compiled, never run."""

import re

import jax
import jax.numpy as jnp
import pytest

from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, DeltaConfig, PolicyConfig, weight_table
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch

SIZES = [(32_768, 151_936, True), (65_536, 248_320, False)]


def shapes(num_tokens: int, vocab: int, tied: bool, **changes):
    """Config, parameters and one row, as shapes. Narrow, so that nothing but tokens and vocabulary is large."""
    config = PolicyConfig(
        vocab_size=vocab,
        width=64,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=32,
        ff_dim=96,
        tie_embeddings=tied,
        **changes,
    )
    params = {name: jax.ShapeDtypeStruct(w.shape, jnp.float32) for name, w in weight_table(config).items()}
    ints, floats, flags = (jax.ShapeDtypeStruct((1, num_tokens), t) for t in (jnp.int32, jnp.float32, jnp.bool_))
    return config, params, Batch(ints, ints, ints, ints, flags, floats, floats, floats, floats, floats)


def largest_buffer(compiled) -> int:
    """Elements of the largest array that the optimized program names."""
    found = re.findall(r"(?:f|bf|s|u|pred)\d*\[([\d,]+)\]", compiled.as_text())
    return max(int(jnp.prod(jnp.array([int(n) for n in dims.split(",")], jnp.float32))) for dims in set(found))


@pytest.mark.parametrize(("num_tokens", "vocab", "tied"), SIZES)
def test_scoring_and_training_hold_neither_logits_nor_attention_weights_of_a_row(num_tokens, vocab, tied):
    config, params, batch = shapes(num_tokens, vocab, tied)
    optim = OptimConfig()
    state = jax.eval_shape(lambda p: init_state(p, optim), params)
    score = make_score_fn(config).lower(params, batch).compile()
    train = make_train_step(config, optim, compute=Compute(remat="layer")).lower(state, batch).compile()
    weights = vocab * 64
    row = num_tokens * 96
    for name, compiled in (("score", score), ("train", train)):
        # One array of the row's logits would be over 500 times as large.
        assert largest_buffer(compiled) <= max(weights, 4 * row), name
        # A few copies of the row's states and of the embedding, and one tile of logits.
        limit = 4 * (12 * row + 4 * weights + 4 * 1024 * 4096)
        used = compiled.memory_analysis().temp_size_in_bytes
        assert used < limit < num_tokens * vocab * 4 / 20, name
        assert used < num_tokens * num_tokens * 4 / 4, name


RECURRENT = {
    "family": "qwen3_5",
    "layer_kinds": ("linear", "full"),
    "delta": DeltaConfig(key_heads=1, value_heads=2, key_dim=32, value_dim=32),
}


@pytest.mark.parametrize("changes", [{}, RECURRENT], ids=["attention", "recurrence too"])
def test_a_row_twice_as_long_takes_no_more_than_twice_the_memory(changes):
    used = []
    for num_tokens in (16_384, 32_768):
        config, params, batch = shapes(num_tokens, 4096, True, **changes)
        state = jax.eval_shape(lambda p: init_state(p, OptimConfig()), params)
        step = make_train_step(config, OptimConfig(), compute=Compute(remat="layer"), chunk=256)
        used.append(step.lower(state, batch).compile().memory_analysis().temp_size_in_bytes)
    assert used[1] < 2.05 * used[0]
