"""The composed objective: oracle, masking (5, 14), token mean (9), stats."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles
from wc_jax.objective import empty_stats, merge, policy_objective, summarize

rng = np.random.default_rng(0)
SHAPE = (3, 7)
LOGP, OLD, SAMPLER = -rng.random((3, *SHAPE)).astype(np.float32) * 3
ADVANTAGE = rng.normal(size=SHAPE).astype(np.float32)
MASK = rng.random(SHAPE) < 0.6


def loss_of(logp, mask=MASK, **options):
    total, count, _ = policy_objective(logp, OLD, ADVANTAGE, mask, **{"clip_low": 0.2, "clip_high": 0.3, **options})
    return total, count


def test_equals_the_oracle():
    total, count = loss_of(LOGP, sampler_logp=SAMPLER, tis_cap=2.0)
    expected = oracles.objective(LOGP, OLD, ADVANTAGE, MASK, 0.2, 0.3, SAMPLER, 2.0)
    assert float(total) == pytest.approx(expected[0], rel=1e-5)
    assert float(count) == expected[1] == MASK.sum()


def test_gradient_equals_finite_differences():
    grad = jax.grad(lambda x: loss_of(x)[0])(jnp.asarray(LOGP))
    for i in zip(*np.nonzero(MASK), strict=True):
        up, down = LOGP.astype(np.float64), LOGP.astype(np.float64)
        up[i] += 1e-5
        down[i] -= 1e-5
        slope = (
            oracles.objective(up, OLD, ADVANTAGE, MASK, 0.2, 0.3)[0]
            - oracles.objective(down, OLD, ADVANTAGE, MASK, 0.2, 0.3)[0]
        ) / 2e-5
        assert float(grad[i]) == pytest.approx(slope, abs=1e-4)


ALL = {"tis_cap": 1.5, "kl_coef": 0.3, "kl_estimator": "k3", "entropy_coef": 0.1, "dual_clip": 1.5}
REF, ENTROPY = -rng.random(SHAPE).astype(np.float32) * 3, rng.random(SHAPE).astype(np.float32)
WEIGHT, SHARE = rng.random((2, *SHAPE)).astype(np.float32)


def with_all_options(logp, entropy, mask=MASK):
    return policy_objective(
        logp,
        OLD,
        ADVANTAGE,
        mask,
        sampler_logp=SAMPLER,
        ref_logp=REF,
        entropy=entropy,
        token_weight=WEIGHT,
        count_weight=SHARE,
        **ALL,
    )


def terms_of_all_options(logp, entropy):
    given = {"sampler_logp": SAMPLER, "ref_logp": REF, "entropy": entropy}
    return np.float64(WEIGHT) * oracles.objective_terms(logp, OLD, ADVANTAGE, **given, **ALL)


def test_all_options_together_equal_the_oracle_and_its_finite_differences():
    (total, count), slopes = jax.value_and_grad(lambda *x: with_all_options(*x)[:2], (0, 1), has_aux=True)(
        LOGP, ENTROPY
    )
    terms = terms_of_all_options(np.float64(LOGP), np.float64(ENTROPY))
    assert float(total) == pytest.approx(terms[MASK].sum(), rel=1e-5)
    assert float(count) == pytest.approx(SHARE[MASK].sum(), rel=1e-6)
    at, step = (np.float64(LOGP), np.float64(ENTROPY)), 1e-6
    for slope, (up, down) in zip(
        slopes,
        [
            ((at[0] + step, at[1]), (at[0] - step, at[1])),
            ((at[0], at[1] + step), (at[0], at[1] - step)),
        ],
        strict=True,
    ):
        # Each term knows its own position only, so that one difference moves them all.
        wanted = (terms_of_all_options(*up) - terms_of_all_options(*down)) / (2 * step)
        np.testing.assert_allclose(slope, np.where(MASK, wanted, 0.0), rtol=1e-4, atol=1e-5)


def test_eager_equals_compiled():
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        with_all_options(LOGP, ENTROPY),
        jax.jit(with_all_options)(LOGP, ENTROPY),
    )


def test_a_divisor_of_its_own_leaves_the_sum_alone():
    ones = np.ones(SHAPE, np.float32)
    plain = policy_objective(LOGP, OLD, ADVANTAGE, MASK)
    total, count, stats = policy_objective(LOGP, OLD, ADVANTAGE, MASK, count_weight=np.where(MASK, 0.5 * ones, np.nan))
    assert float(total) == float(plain[0]) and float(count) == float(stats.weight_sum) == MASK.sum() / 2
    assert float(summarize(stats)["loss"]) == pytest.approx(float(total / count))


def test_a_total_weight_below_one_is_not_clamped():
    # Two tokens of weight 1/4, losses 4 and 0: the mean is 2; divided by max(0.5, 1) it would be 1.
    quarter = np.full(2, 0.25, np.float32)
    total, count, stats = policy_objective(
        np.zeros(2), np.zeros(2), np.array([-4.0, 0.0]), np.ones(2, bool), token_weight=quarter
    )
    assert float(count) == 0.5 and float(total / count) == float(summarize(stats)["loss"]) == 2.0


def test_nothing_behind_the_mask_matters():
    dirty = [np.where(MASK, x, np.nan) for x in (LOGP, OLD, ADVANTAGE, SAMPLER)]

    def of(logp, old, advantage, sampler):
        return policy_objective(logp, old, advantage, MASK, sampler_logp=sampler, tis_cap=2.0)

    clean, found = of(LOGP, OLD, ADVANTAGE, SAMPLER), of(*dirty)
    jax.tree.map(np.testing.assert_array_equal, clean, found)
    grad = jax.grad(lambda x: of(x, *dirty[1:])[0])(jnp.asarray(dirty[0]))
    assert np.isfinite(grad).all() and (np.asarray(grad)[~MASK] == 0).all()


def test_token_mean_over_ragged_micro_batches_is_one():
    # Losses 4 and 0, 0, 0: the mean of means would be 2.
    def of(advantage):
        n = len(advantage)
        return policy_objective(np.zeros(n), np.zeros(n), np.array(advantage), np.ones(n, bool))

    (a, na, _), (b, nb, _) = of([-4.0]), of([0.0, 0.0, 0.0])
    assert float((a + b) / (na + nb)) == 1.0


def test_token_weight_scales_terms_and_count():
    plain = policy_objective(LOGP, OLD, ADVANTAGE, MASK)
    quarter = policy_objective(LOGP, OLD, ADVANTAGE, MASK, token_weight=np.full(SHAPE, 0.25, np.float32))
    assert float(quarter[0]) == pytest.approx(float(plain[0]) / 4, rel=1e-5)
    assert float(quarter[1]) == MASK.sum() / 4


def test_empty_mask_gives_zero_loss_and_gradient():
    total, count = loss_of(LOGP, mask=np.zeros(SHAPE, bool))
    assert float(total) == 0 and float(count) == 0
    grad = jax.grad(lambda x: loss_of(x, mask=np.zeros(SHAPE, bool))[0])(jnp.asarray(LOGP))
    assert (np.asarray(grad) == 0).all()


def test_on_policy_value_is_minus_the_mean_advantage_and_ratio_is_one():
    total, count, stats = policy_objective(OLD, OLD, ADVANTAGE, MASK)
    assert float(total / count) == pytest.approx(-ADVANTAGE[MASK].mean(), abs=1e-6)
    assert float(summarize(stats)["ratio_mean"]) == 1.0 and float(stats.ratio_max) == 1.0


def test_no_gradient_reaches_what_is_given():
    for index in range(4):
        args = [jnp.asarray(x) for x in (OLD, ADVANTAGE, SAMPLER, SAMPLER)]

        def of(x, index=index, args=args):
            old, advantage, sampler, ref = [*args[:index], x, *args[index + 1 :]]
            return policy_objective(
                jnp.asarray(LOGP), old, advantage, MASK, sampler_logp=sampler, tis_cap=2.0, ref_logp=ref, kl_coef=0.1
            )[0]

        assert (np.asarray(jax.grad(of)(args[index])) == 0).all()


def test_reference_penalty_pulls_back():
    grad = jax.grad(
        lambda x: policy_objective(
            x, x, jnp.zeros(2), jnp.ones(2, bool), ref_logp=jnp.array([-1.0, -3.0]), kl_coef=1.0
        )[0]
    )(jnp.array([-2.0, -2.0]))
    assert float(grad[0]) < 0 < float(grad[1])


@pytest.mark.parametrize(
    ("options", "needs"),
    [({"tis_cap": 2.0}, "sampler_logp"), ({"kl_coef": 0.1}, "ref_logp"), ({"entropy_coef": 0.1}, "entropy")],
)
def test_an_option_without_its_input_is_refused(options, needs):
    with pytest.raises(ValueError, match=needs):
        policy_objective(LOGP, OLD, ADVANTAGE, MASK, **options)


def test_stats_of_parts_merge_to_those_of_the_whole():
    def of(rows):
        return policy_objective(
            LOGP[rows], OLD[rows], ADVANTAGE[rows], MASK[rows], sampler_logp=SAMPLER[rows], tis_cap=1.5
        )[2]

    whole, parts = of(slice(None)), merge(merge(empty_stats(), of(slice(0, 1))), of(slice(1, 3)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), whole, parts)
    sampler_gap = np.abs(OLD - SAMPLER)[MASK]
    found = summarize(whole)
    assert float(found["sampler_gap_mean"]) == pytest.approx(sampler_gap.mean(), rel=1e-5)
    assert float(found["sampler_gap_max"]) == pytest.approx(sampler_gap.max(), rel=1e-5)
    assert float(found["tis_capped_share"]) == pytest.approx((np.exp(OLD - SAMPLER)[MASK] >= 1.5).mean(), rel=1e-5)
    ratio = np.exp(LOGP - OLD)
    low, high = (ratio < 0.8) & (ADVANTAGE < 0) & MASK, (ratio > 1.2) & (ADVANTAGE > 0) & MASK
    assert float(found["clip_low_share"]) == pytest.approx(low.sum() / MASK.sum())
    assert float(found["clip_high_share"]) == pytest.approx(high.sum() / MASK.sum())


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_reference_without_its_option_is_measured_and_not_trained_on(bad):
    ref = np.where(np.arange(7)[None, :] == 2, bad, REF).astype(np.float32)
    plain = policy_objective(LOGP, OLD, ADVANTAGE, MASK)
    for name in ("k1", "k2", "k3"):
        total, _, stats = policy_objective(LOGP, OLD, ADVANTAGE, MASK, ref_logp=ref, kl_estimator=name)
        assert float(total) == float(plain[0]) and not np.isfinite(float(stats.ref_kl_sum))


def test_without_a_sampler_its_gap_is_unknown_and_not_zero():
    found = summarize(policy_objective(LOGP, OLD, ADVANTAGE, MASK)[2])
    assert float(found["sampler_missing"]) == MASK.sum()
    given = summarize(policy_objective(LOGP, OLD, ADVANTAGE, MASK, sampler_logp=OLD)[2])
    assert float(given["sampler_missing"]) == 0 == float(given["sampler_gap_max"])


def test_missing_sampler_logp_is_counted():
    sampler = np.where(np.arange(7)[None, :] == 2, np.nan, SAMPLER)
    stats = policy_objective(LOGP, OLD, ADVANTAGE, MASK, sampler_logp=sampler, tis_cap=2.0)[2]
    assert float(summarize(stats)["sampler_missing"]) == MASK[:, 2].sum() > 0
    assert np.isfinite(float(stats.gap_max))
