"""Laws of the objective: what holds for every batch and every option."""

from functools import partial

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

from tests import oracles
from wc_jax.losses import KL_ESTIMATORS
from wc_jax.objective import GAP_EDGES, empty_stats, merge, policy_objective, summarize
from wc_jax.types import Stats

SHAPE = (2, 6)  # one shape: jax compiles once per option
OPTIONS = {
    "plain": {},
    "clips": {"clip_low": 0.1, "clip_high": 0.4},
    "tis": {"tis_cap": 2.0},
    "all": {"tis_cap": 1.5, "kl_coef": 0.3, "kl_estimator": "k2", "entropy_coef": 0.1, "dual_clip": 1.5},
    "k1": {"kl_coef": 0.2, "kl_estimator": "k1"},
    "k3": {"kl_coef": 0.2},
}


@st.composite
def batches(draw):
    def numbers(low, high):
        return draw(hnp.arrays(np.float32, SHAPE, elements=st.floats(low, high, width=32)))

    return {
        "logp": numbers(-4, -0.125),
        "old_logp": numbers(-4, -0.125),
        "advantage": numbers(-3, 3),
        "sampler_logp": numbers(-4, -0.125),
        "ref_logp": numbers(-4, -0.125),
        "entropy": numbers(0, 3),
        "token_weight": numbers(0, 2),
    }, draw(hnp.arrays(np.bool_, SHAPE))


def run(batch, mask, options):
    arrays = dict(batch)
    first = [arrays.pop(name) for name in ("logp", "old_logp", "advantage")]
    return policy_objective(*first, mask, **arrays, **options)


compiled = {name: jax.jit(partial(run, options=options)) for name, options in OPTIONS.items()}
slopes = {
    name: jax.jit(jax.grad(lambda logp, batch, mask, o=options: run({**batch, "logp": logp}, mask, o)[0]))
    for name, options in OPTIONS.items()
}


def expected(batch, mask, options):
    given = {name: values for name, values in batch.items() if name != "token_weight"}
    weight = np.where(mask, np.float64(batch["token_weight"]), 0.0)
    return (weight * oracles.objective_terms(**given, **options)).sum(), weight.sum()


@pytest.mark.parametrize("name", OPTIONS)
@given(batches())
def test_the_sum_is_that_of_its_terms(name, case):
    batch, mask = case
    total, count, stats = compiled[name](batch, mask)
    wanted = expected(batch, mask, OPTIONS[name])
    assert float(total) == pytest.approx(wanted[0], rel=2e-5, abs=2e-4)
    assert float(count) == pytest.approx(wanted[1], rel=1e-5, abs=1e-6)
    assert float(stats.loss_sum) == float(total) and float(stats.num_tokens) == mask.sum()


@pytest.mark.parametrize("name", ["plain", "all"])
@given(batches(), st.sampled_from([np.nan, np.inf, -np.inf, 1e30]))
def test_what_stands_behind_the_mask_never_matters(name, case, junk):
    batch, mask = case
    dirty = {key: np.where(mask, values, np.float32(junk)) for key, values in batch.items()}
    jax.tree.map(np.testing.assert_array_equal, compiled[name](batch, mask), compiled[name](dirty, mask))
    slope = np.asarray(slopes[name](dirty["logp"], dirty, mask))
    assert np.isfinite(slope).all() and (slope[~mask] == 0).all()
    np.testing.assert_array_equal(slope, slopes[name](batch["logp"], batch, mask))


@given(batches())
def test_on_policy_the_gradient_is_minus_the_advantage(case):
    batch, mask = case
    batch = {**batch, "old_logp": batch["logp"]}
    slope = np.asarray(slopes["plain"](batch["logp"], batch, mask))
    np.testing.assert_allclose(slope, np.where(mask, -batch["advantage"] * batch["token_weight"], 0.0), atol=1e-6)


@given(batches())
def test_stats_of_parts_merge_to_those_of_the_whole(case):
    batch, mask = case
    whole = compiled["all"](batch, mask)[2]
    merged = empty_stats()
    for rows in (np.arange(2)[:, None] == 0, np.arange(2)[:, None] == 1):
        merged = merge(merged, compiled["all"](batch, mask & rows)[2])
    close(merged, whole)


def close(a, b):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), a, b)


@jax.jit
def over_micro_batches(batch, mask):
    """Row by row, as the step does."""

    def add(stats, row):
        return merge(stats, run(*row, OPTIONS["all"])[2]), None

    return jax.lax.scan(add, empty_stats(), (batch, mask))[0]


@jax.jit
def over_devices(batch, mask):
    """A row a device: sums by psum, maxima by pmax, as their names say."""

    def on_one(batch, mask):
        stats = run(batch, mask, OPTIONS["all"])[2]._asdict()
        return Stats(
            **{
                name: jax.lax.pmax(x, "device") if name.endswith("_max") else jax.lax.psum(x, "device")
                for name, x in stats.items()
            }
        )

    return jax.tree.map(lambda x: x[0], jax.vmap(on_one, axis_name="device")(batch, mask))


@given(batches())
def test_stats_are_those_of_the_whole_over_micro_batches_and_devices(case):
    whole = compiled["all"](*case)[2]
    close(over_micro_batches(*case), whole)
    close(over_devices(*case), whole)


@given(hnp.arrays(np.float32, (400,), elements=st.floats(0, 8, width=32)), st.integers(1, 400))
def test_the_gaps_quantile_is_known_to_one_bin(gaps, num_known):
    zeros = np.zeros(400, np.float32)
    sampler = np.where(np.arange(400) < num_known, -gaps, np.nan)
    stats = policy_objective(zeros, zeros, zeros, zeros == 0, sampler_logp=sampler)[2]
    found = summarize(stats)
    assert float(found["sampler_missing"]) == 400 - num_known
    exact = float(np.quantile(gaps[:num_known], 0.99, method="inverted_cdf"))
    width = float(GAP_EDGES[1] / GAP_EDGES[0])
    assert exact <= float(found["sampler_gap_p99"]) * 1.0001
    assert float(found["sampler_gap_p99"]) <= max(exact * width, 1e-7) * 1.0001


@pytest.mark.parametrize("name", KL_ESTIMATORS)
def test_a_reference_pulls_and_is_not_pulled(name):
    logp, ref = jnp.array([-1.0, -2.0]), jnp.array([-2.0, -0.5])
    d_logp, d_ref = jax.grad(
        lambda logp, ref: policy_objective(
            logp, logp, jnp.zeros(2), jnp.ones(2, bool), ref_logp=ref, kl_coef=1.0, kl_estimator=name
        )[0],
        (0, 1),
    )(logp, ref)
    assert (np.asarray(d_logp) != 0).all() and (np.asarray(d_ref) == 0).all()


def test_the_estimators_agree_in_the_mean_where_two_distributions_are_close():
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.ones(5) * 5)
    q = p * np.exp(0.05 * rng.normal(size=5))
    q /= q.sum()
    exact = float((p * np.log(p / q)).sum())
    for name in ("k1", "k2", "k3"):
        mean = float((p * np.asarray(KL_ESTIMATORS[name](np.log(p), np.log(q)))).sum())
        assert mean == pytest.approx(exact, rel=0.1), name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clip_low": 1.0}, "clip_low must be in \\[0, 1\\), got 1.0"),
        ({"clip_low": -0.1}, "clip_low must be in \\[0, 1\\), got -0.1; 0.2 is usual"),
        ({"clip_high": -0.1}, "clip_high must be 0 or more"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1, got 1.0"),
        ({"tis_cap": 0.0}, "tis_cap must be above 0, got 0.0; 2 is usual, None is off"),
        ({"entropy_coef": -1.0}, "entropy_coef must be 0 or more, got -1.0; 0 is off"),
        ({"kl_coef": -1.0}, "kl_coef must be 0 or more"),
        ({"kl_coef": float("nan")}, "kl_coef must be 0 or more"),
        ({"kl_estimator": "k4"}, "kl_estimator must be one of k1, k2, k3, got 'k4'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    one = np.zeros(1, np.float32)
    with pytest.raises(ValueError, match=message):
        policy_objective(one, one, one, one == 0, sampler_logp=one, ref_logp=one, **options)
