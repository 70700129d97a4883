"""The compiled steps: alignment (7), on policy (8), splits (9), no signal (15), recompilation."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles
from tests.wc_jax.policies import loud_params, sample, small_config
from wc_jax.batch import pack
from wc_jax.forward import batch_logprobs
from wc_jax.objective import policy_objective
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute
from wc_jax.step import init_state, make_score_fn, make_sft_step, make_train_step

CONFIG = small_config()
# eps=1: with Adam's first step at a small eps only the sign of a gradient would be compared.
OPTIM = OptimConfig(lr=1e-2, weight_decay=0.1, eps=1.0)
SAMPLES = [sample(9, 3, 0), sample(12, 2, 1), sample(5, 1, 2), sample(16, 9, 3), sample(4, 3, 4)]
ADVANTAGES = [1.0, -0.5, 0.25, -1.0, 2.0]
score = make_score_fn(CONFIG, temperature=0.8, chunk=16)


@cache
def step_of(**options):
    """One compiled step per set of options: compiling is what these tests would spend their time on."""
    return make_train_step(CONFIG, OPTIM, temperature=0.8, chunk=16, **options)


def fresh(optim=OPTIM):
    return init_state(loud_params(CONFIG), optim)


def make_batch(order=range(5), row_tokens=16, num_rows=4):
    batch, layout = pack(
        [SAMPLES[i] for i in order],
        row_tokens=row_tokens,
        num_rows=num_rows,
        advantages=[ADVANTAGES[i] for i in order],
    )
    return batch, [layout.place(i) for i in range(len(order))]


def scored(batch):
    return batch._replace(old_logp=np.asarray(score(loud_params(CONFIG), batch)[0]))


def test_each_generated_token_gets_its_own_logprob_and_nothing_else_does():
    batch, places = make_batch()
    logp, entropy = score(loud_params(CONFIG), batch)
    params = loud_params(CONFIG)
    for one, place in zip(SAMPLES, places, strict=True):
        hidden = oracles.llama_hidden(params, CONFIG, one.tokens)
        expected = oracles.token_logprobs(hidden[:-1], np.asarray(params["embed"]).T, one.tokens[1:], 0.8)
        for found, full in zip((logp, entropy), expected, strict=True):
            here = np.asarray(found)[place.row, place.columns]
            np.testing.assert_allclose(here[one.loss_mask], full[one.loss_mask[1:]], atol=1e-4)
            assert (here[~one.loss_mask] == 0).all()


def test_padding_content_and_row_order_change_nothing():
    batch, places = make_batch()
    padding = (batch.predecessor < 0) & (batch.visible_until == np.arange(1, 17)[None])
    assert padding.sum() == batch.tokens.size - sum(len(one.tokens) for one in SAMPLES)
    dirty = batch._replace(tokens=np.where(padding, 11, batch.tokens))
    a, b = (np.asarray(score(loud_params(CONFIG), x)[0]) for x in (batch, dirty))
    np.testing.assert_array_equal(a, b)
    other, others = make_batch(order=[4, 2, 0, 1, 3], row_tokens=24, num_rows=3)
    c = np.asarray(score(loud_params(CONFIG), other)[0])
    for i, j in enumerate([4, 2, 0, 1, 3]):
        x, y = others[i], places[j]
        np.testing.assert_allclose(c[x.row, x.columns], a[y.row, y.columns], atol=1e-5)


def test_on_policy_ratio_is_one():
    _, metrics = step_of()(fresh(), scored(make_batch()[0]))
    assert float(metrics["ratio_mean"]) == pytest.approx(1.0, abs=1e-6)
    assert float(metrics["approx_kl"]) == pytest.approx(0.0, abs=1e-6)
    expected = sum(-a * s.num_trained for a, s in zip(ADVANTAGES, SAMPLES, strict=True)) / sum(
        s.num_trained for s in SAMPLES
    )
    assert float(metrics["loss"]) == pytest.approx(expected, abs=1e-5)


def updated(batch=None, **options):
    state, metrics = step_of(**options)(fresh(), scored(make_batch()[0] if batch is None else batch))
    return state.params, metrics


def test_micro_batches_order_and_packing_give_one_gradient():
    params, metrics = updated()
    variants = [
        updated(micro_rows=1),
        updated(batch=make_batch(order=[3, 1, 4, 0, 2])[0]),
        updated(batch=make_batch(row_tokens=20, num_rows=6)[0], micro_rows=2),
    ]
    for other, other_metrics in variants:
        assert float(other_metrics["grad_norm"]) == pytest.approx(float(metrics["grad_norm"]), rel=1e-4)
        for name, value in params.items():
            np.testing.assert_allclose(other[name], value, atol=2e-6, err_msg=name)


def test_remat_and_unroll_give_the_same_update():
    params, _ = updated()
    other, _ = updated(compute=Compute(remat="layer", unroll=True))
    for name, value in params.items():
        np.testing.assert_allclose(other[name], value, atol=2e-6, err_msg=name)


def test_micro_rows_must_divide():
    with pytest.raises(ValueError, match="micro_rows must divide the batch's 4 rows, got 3"):
        updated(micro_rows=3)


def frozen_parts(state):
    return jax.tree.map(np.array, (state.params, state.opt_state, state.step))


@pytest.mark.parametrize("kind", ["no trained token", "zero advantages"])
def test_a_batch_without_signal_is_skipped_and_counted(kind):
    batch = scored(make_batch()[0])
    zero = np.zeros_like(batch.advantage)
    if kind == "no trained token":
        batch = batch._replace(loss_mask=zero.astype(bool), token_weight=zero, count_weight=zero)
    else:
        batch = batch._replace(advantage=zero)
    state, _ = step_of()(fresh(), scored(make_batch()[0]))
    before = frozen_parts(state)
    state, metrics = step_of()(state, batch)
    jax.tree.map(np.testing.assert_array_equal, before, frozen_parts(state))
    assert float(metrics["skipped"]) == 1.0 and int(state.num_skipped) == 1 and int(state.step) == 1
    assert float(metrics["grad_norm"]) == 0.0


def test_zero_advantages_with_a_reference_penalty_do_train():
    batch = scored(make_batch()[0])
    batch = batch._replace(advantage=np.zeros_like(batch.advantage), ref_logp=batch.old_logp - 0.5)
    penalized = partial(policy_objective, kl_coef=0.1)
    _, metrics = step_of(objective=penalized, trains_without_advantage=True)(fresh(), batch)
    assert float(metrics["skipped"]) == 0.0 and float(metrics["grad_norm"]) > 0


def test_a_broken_gradient_moves_nothing_and_shows():
    batch = scored(make_batch()[0])
    old = batch.old_logp.copy()
    old[np.nonzero(batch.loss_mask)[0][0], np.nonzero(batch.loss_mask)[1][0]] = np.nan
    state = fresh()
    before = frozen_parts(state)
    state, metrics = step_of()(state, batch._replace(old_logp=old))
    jax.tree.map(np.testing.assert_array_equal, before, frozen_parts(state))
    assert float(metrics["skipped"]) == 1.0 and not np.isfinite(float(metrics["grad_norm"]))


def test_second_and_third_step_compile_nothing():
    step, state = step_of(), fresh()
    state, _ = step(state, scored(make_batch()[0]))
    compiled = step._cache_size()
    for order in (range(5), [1, 0, 2], [4, 3, 2, 1, 0]):
        state, _ = step(state, scored(make_batch(order=order)[0]))
    assert step._cache_size() == compiled == 1


def test_learning_raises_the_probability_of_what_paid():
    batch = scored(make_batch()[0])
    optim = OptimConfig(lr=3e-3)
    step = make_train_step(CONFIG, optim, temperature=0.8, chunk=16)
    state = fresh(optim)
    for _ in range(5):
        state, _ = step(state, batch)
    logp = np.asarray(score(state.params, batch)[0])
    change = (logp - batch.old_logp)[batch.loss_mask]
    assert np.corrcoef(change, batch.advantage[batch.loss_mask])[0, 1] > 0.5


def test_sft_overfits_its_rows_and_counts_tokens():
    batch, _ = make_batch()
    optim = OptimConfig(lr=2e-2)
    step = make_sft_step(CONFIG, optim, chunk=16, compute=Compute(unroll=True))
    state = fresh(optim)
    state, first = step(state, batch)
    for _ in range(60):
        state, last = step(state, batch)
    assert int(first.token_count) == sum(s.num_trained for s in SAMPLES)
    assert float(last.nll_sum) < 0.1 * float(first.nll_sum)
    assert int(state.step) == 61 and step._cache_size() == 1


def test_the_last_token_of_a_segment_predicts_nothing():
    # A mask that (wrongly) claims a segment's first token must find no predecessor in the neighbor.
    batch, places = make_batch()
    second = next(p for p in places if p.columns[0] > 0)
    mask = np.zeros_like(batch.loss_mask)
    mask[second.row, second.columns[0]] = True
    logp, _ = batch_logprobs(
        loud_params(CONFIG),
        CONFIG,
        jax.tree.map(jnp.asarray, batch._replace(loss_mask=mask)),
        compute=Compute(),
        temperature=1.0,
        chunk=16,
    )
    assert not np.asarray(logp).any()


def test_bfloat16_masters_train_with_float32_sums():
    params = jax.tree.map(lambda p: p.astype(jnp.bfloat16), loud_params(CONFIG))
    step = step_of(micro_rows=1, compute=Compute(dtype="bfloat16"))
    state, metrics = step(init_state(params, OPTIM), scored(make_batch()[0]))
    assert {p.dtype for p in state.params.values()} == {jnp.dtype("bfloat16")}
    assert float(metrics["skipped"]) == 0.0 and float(metrics["grad_norm"]) > 0.0
