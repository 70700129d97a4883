"""The forward function: float64 oracle, packing equivalences (case 6), gradients, compute variants."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles
from tests.wc_jax.policies import loud_params, small_config
from wc_jax.policy import (
    Compute,
    PolicyConfig,
    check_params,
    from_hf_config,
    hidden_states,
    init_params,
    num_params,
    to_hf_config,
    unembed,
    weight_table,
)
from wc_jax.policy.attention import path_attention

CONFIG = small_config()
PARAMS = loud_params(CONFIG)
TOKENS = np.random.default_rng(0).integers(0, CONFIG.vocab_size, 5).astype(np.int32)


def run(tokens, positions=None, visible_until=None, compute=Compute(), params=PARAMS):  # noqa: B008
    rows = [None if x is None else np.asarray(x, np.int32)[None] for x in (tokens, positions, visible_until)]
    return np.asarray(hidden_states(params, CONFIG, *rows, compute=compute))[0]


def test_equals_the_float64_oracle():
    found = run(TOKENS)
    np.testing.assert_allclose(found, oracles.llama_hidden(PARAMS, CONFIG, TOKENS), atol=2e-5)


def test_alone_padded_left_padded_right_and_packed_are_equal():
    alone = run(TOKENS)
    junk = np.array([7, 7, 7])
    right = run([*TOKENS, *junk], [0, 1, 2, 3, 4, 0, 0, 0], [5] * 5 + [6, 7, 8])[:5]
    left = run([*junk, *TOKENS], [0, 0, 0, 0, 1, 2, 3, 4], [1, 2, 3] + [8] * 5)[3:]
    packed = run([*junk, *TOKENS], [0, 1, 2, 0, 1, 2, 3, 4], [3] * 3 + [8] * 5)[3:]
    for other in (right, left, packed):
        np.testing.assert_allclose(other, alone, atol=1e-5)


def test_a_state_does_not_see_later_tokens():
    changed = TOKENS.copy()
    changed[3] = (changed[3] + 1) % CONFIG.vocab_size
    a, b = run(TOKENS), run(changed)
    np.testing.assert_array_equal(a[:3], b[:3])
    assert (a[3:] != b[3:]).any(axis=1).all()


def naive_attention(q, k, v, visible_until):
    repeat = q.shape[2] // k.shape[2]
    k, v = jnp.repeat(k, repeat, axis=2), jnp.repeat(v, repeat, axis=2)
    scores = jnp.einsum("btnh,bsnh->bnts", q, k) / q.shape[3] ** 0.5
    column = jnp.arange(q.shape[1])
    seen = (column[None, :] <= column[:, None])[None] & (column[None, :, None] < visible_until[:, None, :])
    weights = jax.nn.softmax(jnp.where(seen[:, None], scores, -1e30), axis=-1)
    return jnp.einsum("bnts,bsnh->btnh", weights, v)


@pytest.mark.parametrize("block", [4, 5, 16, 256])
def test_blockwise_attention_and_its_backward_equal_the_naive_ones(block):
    rng = np.random.default_rng(1)
    q, k, v, g = (jnp.asarray(rng.normal(size=(2, 16, n, 8)), jnp.float32) for n in (4, 2, 2, 4))
    # Two packed samples and padding; a tree: five shared tokens, two branches, the second of which forks again.
    until = [[7] * 7 + [12] * 5 + [13, 14, 15, 16], [16] * 5 + [8] * 3 + [16] * 2 + [12] * 2 + [16] * 4]
    until = jnp.asarray(until, jnp.int32)

    def of(attend):
        return jax.jit(jax.value_and_grad(lambda q, k, v: jnp.sum(attend(q, k, v) * g), (0, 1, 2)))(q, k, v)

    found = of(lambda q, k, v: path_attention(q, k, v, until, block=block))
    expected = of(lambda q, k, v: naive_attention(q, k, v, until))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=3e-5), found, expected)


def loss(params, compute=Compute()):  # noqa: B008
    tokens = jnp.asarray(np.random.default_rng(2).integers(0, CONFIG.vocab_size, (2, 9)), jnp.int32)
    hidden = hidden_states(params, CONFIG, tokens, compute=compute)
    logits = hidden.astype(jnp.float32) @ unembed(params, CONFIG)
    return -jnp.mean(jax.nn.log_softmax(logits)[:, :-1, 3])


def test_gradient_equals_finite_differences_along_random_directions():
    params = loud_params(CONFIG, seed=4)
    grads = jax.jit(jax.grad(loss))(params)
    value = jax.jit(loss)
    for name in params:
        direction = jax.random.normal(jax.random.key(5), params[name].shape)
        direction = direction / jnp.linalg.norm(direction)
        up, down = (value({**params, name: params[name] + s * 1e-2 * direction}) for s in (1.0, -1.0))
        assert float(jnp.sum(grads[name] * direction)) == pytest.approx(float(up - down) / 2e-2, abs=2e-3), name


@pytest.mark.parametrize("compute", [Compute(unroll=True), Compute(remat="layer"), Compute(remat="dots", unroll=True)])
def test_how_it_is_computed_does_not_change_what(compute):
    a, b = jax.jit(jax.value_and_grad(loss))(PARAMS), jax.jit(jax.value_and_grad(lambda p: loss(p, compute)))(PARAMS)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), a, b)


def test_bfloat16_compute_is_close_and_keeps_float32_gradients():
    found, grads = jax.jit(jax.value_and_grad(lambda p: loss(p, Compute(dtype="bfloat16"))))(PARAMS)
    assert float(found) == pytest.approx(float(loss(PARAMS)), rel=0.05)
    assert {g.dtype for g in grads.values()} == {jnp.dtype("float32")}


def test_table_covers_params_and_names_what_is_wrong():
    params = init_params(CONFIG, jax.random.key(0))
    assert {n: w.shape for n, w in weight_table(CONFIG).items()} == {n: p.shape for n, p in params.items()}
    assert num_params(CONFIG) == sum(p.size for p in params.values())
    broken = {**params, "extra": params["embed"], "final_norm": params["embed"]}
    del broken["layers.q"]
    with pytest.raises(ValueError, match=r"missing layers.q; unknown extra; final_norm must be \(24,\)"):
        check_params(broken, CONFIG)


def test_tied_head_follows_the_embedding():
    changed = {**PARAMS, "embed": PARAMS["embed"] * 2}
    np.testing.assert_array_equal(unembed(changed, CONFIG), 2 * unembed(PARAMS, CONFIG))
    untied = small_config(tie_embeddings=False)
    assert unembed(init_params(untied, jax.random.key(0)), untied).shape == (24, 48)


def test_config_reads_both_spellings_of_rope():
    raw = to_hf_config(small_config(rope_theta=123.0))
    flat = {**raw, "rope_theta": 123.0}
    del flat["rope_parameters"]
    nested = {k: v for k, v in raw.items() if k != "rope_theta"}
    assert from_hf_config(raw) == from_hf_config(flat) == from_hf_config(nested) == small_config(rope_theta=123.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 4.0}}, "rope_parameters and rope_scaling differ"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, "rope_type must be one of .* got 'dynamic'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' needs a factor"),
        ({"rope_theta": 1.0}, "rope_theta is given twice"),
        ({"hidden_act": "gelu"}, "hidden_act must be 'silu'"),
        ({"use_sliding_window": True}, "sliding-window attention is not supported"),
        ({"num_experts": 8}, "num_experts=8: mixtures of experts are not supported"),
        ({"architectures": ["MambaForCausalLM"]}, "architectures must contain"),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, "mixtures of experts are not supported"),
        ({"num_key_value_heads": 3}, "multiple of num_kv_heads"),
    ],
)
def test_config_refuses_what_it_cannot_honor(changes, message):
    with pytest.raises(ValueError, match=message):
        from_hf_config({**to_hf_config(CONFIG), **changes})


def test_config_names_missing_keys():
    raw = to_hf_config(PolicyConfig(**{f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__}))
    del raw["hidden_size"], raw["vocab_size"]
    with pytest.raises(ValueError, match=r"lacks \['vocab_size', 'hidden_size'\]"):
        from_hf_config(raw)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("qwen2_5_coder_7b", 7.615616512), ("qwen3_8b", 8.190735360)],
)
def test_published_shapes_have_the_published_number_of_weights(name, billions):
    raw = json.loads((Path(__file__).parents[2] / "configs" / "shapes" / name / "config.json").read_text())
    config = from_hf_config(raw)
    assert num_params(config) == round(billions * 1e9)
    assert from_hf_config(to_hf_config(config)) == config


def test_the_hybrid_of_27_billion():
    raw = json.loads((Path(__file__).parents[2] / "configs" / "shapes" / "qwen3_8_27b" / "config.json").read_text())
    config = from_hf_config(raw)
    assert config.kinds[:8] == ("linear", "linear", "linear", "full") * 2 and len(config.kinds) == 64
    parts = {name: weight.num_elements for name, weight in weight_table(config).items()}
    text = sum(size for name, size in parts.items() if not name.startswith(("vision.", "mtp.")))
    assert 26.5e9 < text < 27.5e9
    assert (config.rotary_dim, config.mrope_section, config.num_mtp_layers) == (64, (11, 11, 10), 1)
    assert from_hf_config(to_hf_config(config)) == config
