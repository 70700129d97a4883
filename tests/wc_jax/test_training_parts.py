"""Training a part of a policy: adapters, the drafting head, and what must then stay as it was."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.policies import FAMILIES, loud_params, sample, small_config, small_multimodal
from wc_jax.batch import pack
from wc_jax.forward import batch_states, mtp_nll
from wc_jax.optim import OptimConfig
from wc_jax.policy import IN_FLOAT32, LoraConfig, hidden_states, init_adapters, trained_names, unembed, weight_table
from wc_jax.policy.lora import is_adapter, merged
from wc_jax.policy.mtp import mtp_states
from wc_jax.step import init_state, make_train_step

CHUNK = IN_FLOAT32.delta_chunk
OPTIM = OptimConfig(lr=1e-2, weight_decay=0.1)


def with_lora(config, **settings):
    from dataclasses import replace

    return replace(config, lora=LoraConfig(rank=2, alpha=6.0, **settings))


def some_batch(num_rows=2):
    samples = [sample(100, 40, seed=1), sample(70, 30, seed=2)]
    batch, _ = pack(samples, row_tokens=128, align=CHUNK, num_rows=num_rows, advantages=[1.0, -0.5])
    return batch._replace(tokens=batch.tokens % 40)


@pytest.mark.parametrize("name", ["llama_biased", "qwen3_5"])
def test_adapters_add_their_product_to_the_weights(name):
    config = with_lora(FAMILIES[name])
    params = loud_params(config)
    tokens = np.random.default_rng(0).integers(0, 40, (1, 20)).astype(np.int32)
    plain = FAMILIES[name]
    found = hidden_states(params, config, tokens)
    np.testing.assert_allclose(found, hidden_states(merged(params, config.lora), plain, tokens), atol=2e-4)
    assert merged(params, config.lora).keys() == weight_table(plain).keys()
    fresh = {**params, **init_adapters(config, jax.random.key(0))}
    without = {key: value for key, value in params.items() if not is_adapter(key)}
    np.testing.assert_allclose(hidden_states(fresh, config, tokens), hidden_states(without, plain, tokens), atol=1e-5)
    assert not np.allclose(found, hidden_states(without, plain, tokens), atol=0.1)


def test_a_module_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match=r"\['query'\] are no linear layers of this policy; it has \['down', 'gate'"):
        weight_table(with_lora(small_config(), modules=("q", "query")))


@pytest.mark.parametrize("part", ["adapters", "drafting head"])
def test_an_update_moves_only_what_is_trained(part):
    config = with_lora(small_multimodal()) if part == "adapters" else small_multimodal()
    names = trained_names(config, mtp=part == "drafting head")
    params = loud_params(config)
    state = init_state({name: jnp.array(w) for name, w in params.items()}, OPTIM, names)
    moments = jax.tree_util.tree_flatten_with_path(state.opt_state)[0]
    held = {key.key for path, _ in moments for key in path if hasattr(key, "key")}
    assert held == names
    step = make_train_step(config, OPTIM, trained=names, mtp_coef=1.0 if part == "drafting head" else 0.0)
    state, metrics = step(state, some_batch())
    assert metrics["skipped"] == 0
    for name, before in params.items():
        moved = not np.array_equal(before, state.params[name])
        assert moved == (name in names), name


def test_the_drafting_heads_loss_leaves_the_policys_gradient_alone():
    config, batch = small_multimodal(), some_batch()
    params = loud_params(config)

    def loss(params):
        hidden = batch_states(params, config, batch, compute=IN_FLOAT32)
        return mtp_nll(params, config, batch, hidden, compute=IN_FLOAT32, chunk=64)

    for name, gradient in jax.grad(loss)(params).items():
        assert bool(jnp.any(gradient != 0)) == name.startswith("mtp."), name


def test_the_drafting_head_by_hand_and_alike_for_packed_and_alone():
    """Against the definition, one sample alone; then packed after another, its states are the same."""
    config = small_multimodal()
    params = loud_params(config)
    one, two = sample(70, 30, seed=3), sample(50, 20, seed=4)
    tokens = two.tokens % 40
    hidden = np.asarray(hidden_states(params, config, tokens[None]))[0]
    w = {name.removeprefix("mtp."): np.asarray(v, np.float64) for name, v in params.items() if name.startswith("mtp.")}

    def norm(x, scale):
        return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + config.norm_eps) * (1 + scale)

    pair = [norm(np.asarray(params["embed"], np.float64)[tokens[1:]], w["embed_norm"])]
    x = np.concatenate([*pair, norm(hidden[:-1].astype(np.float64), w["hidden_norm"])], axis=1) @ w["fc"]
    x = _one_layer(x, {name.removeprefix("layers."): v[0] for name, v in w.items() if "layers." in name}, config, norm)
    expected = norm(x, w["final_norm"])

    batch, layout = pack([one, two], row_tokens=192, align=CHUNK)
    batch = batch._replace(tokens=batch.tokens % 40)
    states = mtp_states(
        params, config, batch_states(params, config, batch, compute=IN_FLOAT32), batch, compute=IN_FLOAT32
    )
    place = layout.place(1)
    np.testing.assert_allclose(np.asarray(states)[place.row, place.columns][1:], expected, atol=2e-4)


def _one_layer(x, w, config, norm):
    """Gated attention and the feed-forward unit, float64."""
    length, heads, dim = len(x), config.num_heads, config.head_dim
    h = norm(x, w["attn_norm"])
    q, k, v = (h @ w[name] for name in "qkv")
    q, gate = q.reshape(length, heads, dim), h @ w["q_gate"]
    k, v = (y.reshape(length, config.num_kv_heads, dim) for y in (k, v))
    q, k = norm(q, w["q_norm"]), norm(k, w["k_norm"])
    half = config.rotary_dim // 2
    angle = np.arange(length)[:, None] / config.rope_theta ** (np.arange(half) / half)

    def turn(y):
        a, b, rest = y[..., :half], y[..., half : 2 * half], y[..., 2 * half :]
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)

    q, k = turn(q), np.repeat(turn(k), heads // config.num_kv_heads, axis=1)
    v = np.repeat(v, heads // config.num_kv_heads, axis=1)
    scores = np.einsum("qnh,knh->nqk", q, k) / np.sqrt(dim)
    scores[:, np.triu(np.ones((length, length), bool), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    out = np.einsum("nqk,knh->qnh", weights / weights.sum(axis=-1, keepdims=True), v).reshape(length, -1)
    x = x + (out / (1 + np.exp(-gate))) @ w["o"]
    h = norm(x, w["mlp_norm"])
    gate = h @ w["gate"]
    return x + (gate / (1 + np.exp(-gate)) * (h @ w["up"])) @ w["down"]


def test_the_drafting_heads_loss_is_of_tokens_with_two_before_them():
    config = small_multimodal()
    params = loud_params(config)
    only = sample(4, 1, seed=5)  # tokens 1, 2 and 3 are trained; token 1 has one token before it
    batch, _ = pack([only], row_tokens=64, align=CHUNK)
    batch = batch._replace(tokens=batch.tokens % 40)
    hidden = batch_states(params, config, batch, compute=IN_FLOAT32)
    states = mtp_states(params, config, hidden, batch, compute=IN_FLOAT32)
    logits = np.asarray(states[0] @ unembed(params, config), np.float64)
    logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    expected = -sum(logp[t - 1, batch.tokens[0, t]] for t in (2, 3))
    found = mtp_nll(params, config, batch, hidden, compute=IN_FLOAT32, chunk=64)
    np.testing.assert_allclose(found, expected, rtol=1e-5)
