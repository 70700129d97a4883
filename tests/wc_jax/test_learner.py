"""The learner: what the config names reaches the update, sharing changes nothing, and nothing compiles twice."""

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import ConfigError, load
from tests.wc_jax.pictures import picture, seeing
from tests.wc_jax.policies import loud_params, sample, small_config, small_multimodal
from tests.wc_jax.small_runs import write_config
from wc_jax.config import Config
from wc_jax.credit import Credited
from wc_jax.learner import Learner

POLICY = small_config()
# With this rate and eps Adam's first update is g / (1 + |g|): parameters show the gradient itself.
OPTIM = {"lr": 1.0, "eps": 1.0, "max_grad_norm": 0.0}
BATCH = {"row_tokens": 64, "micro_rows": 1}
WINDOW = {"agent": {"window_tokens": 64, "max_answer_tokens": 32}, "credit": {"max_sample_tokens": 64}}


def learner(tmp_path: Path, policy=POLICY, **changes) -> Learner:
    sections = {"optim": OPTIM, **WINDOW, **changes, "batch": {**BATCH, **changes.get("batch", {})}}
    path = write_config(tmp_path / "config.yaml", tmp_path / "model", tmp_path / "run", **sections)
    return Learner(load(str(path), [], Config), policy)


def credited(num_samples: int = 5) -> Credited:
    """Samples that begin alike, of three rollouts."""
    prompt = np.random.default_rng(9).integers(0, POLICY.vocab_size, 6)
    samples = []
    for i in range(num_samples):
        one = sample(12 + 3 * i, 6, seed=i)
        one.tokens[:6] = prompt
        samples.append(one)
    rollouts = tuple(min(i, 2) for i in range(num_samples))
    return Credited(
        samples=tuple(samples),
        advantages=tuple([1.0, -0.5, 0.25, -1.0, 2.0][:num_samples]),
        sample_ids=tuple(f"r{r}#{i}" for i, r in enumerate(rollouts)),
        rollouts=rollouts,
        by_rollout={},
    )


def updated(one: Learner):
    state, metrics = one.update(one.init(loud_params(POLICY)), credited())
    return jax.tree.map(np.asarray, state.params), metrics


def test_sharing_what_samples_have_in_common_changes_nothing_but_the_work(tmp_path):
    apart, _ = updated(learner(tmp_path, batch={"share_prefixes": False}))
    shared, metrics = updated(learner(tmp_path))
    for name, value in apart.items():
        np.testing.assert_allclose(shared[name], value, atol=1e-5, err_msg=name)
    assert metrics["shared_share"] > 0.1


@pytest.mark.parametrize(
    "objective",
    [
        {"aggregation": "sequence_mean"},
        {"aggregation": "rollout_mean"},
        {"aggregation": "dr_grpo", "constant_length": 20},
        {"entropy_coef": 0.5},
        {"tis_cap": 0.5},
    ],
)
def test_each_option_of_the_objective_reaches_the_gradient(tmp_path, objective):
    plain, _ = updated(learner(tmp_path))
    other, metrics = updated(learner(tmp_path, objective=objective))
    assert max(np.abs(plain[name] - other[name]).max() for name in plain) > 1e-4
    assert np.isfinite(metrics["loss"]) and metrics["skipped"] == 0.0


def test_the_reference_is_the_starting_policy(tmp_path):
    one = learner(tmp_path, objective={"kl_coef": 0.5})
    state = one.init(loud_params(POLICY))
    state, first = one.update(state, credited())
    assert first["ref_kl"] == pytest.approx(0.0, abs=1e-6)
    state, second = one.update(state, credited())
    assert second["ref_kl"] > 1e-4
    # One program scores the policy and the reference.
    assert second["num_compiled"] == 2


def test_other_numbers_of_samples_compile_nothing(tmp_path):
    one = learner(tmp_path, batch={"rows": 6})
    state = one.init(loud_params(POLICY))
    for num_samples in (5, 2, 4, 0, 3):
        state, metrics = one.update(state, credited(num_samples))
        assert metrics["num_compiled"] == 2
    assert int(state.num_skipped) == 1


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ({"aggregation": "dr_grpo"}, "constant_length belongs to aggregation=dr_grpo"),
        ({"constant_length": 5}, "constant_length belongs to aggregation=dr_grpo"),
        ({"kl_estimator": "k2"}, "kl_estimator=k2 has no effect without kl_coef"),
        ({"dual_clip": 1.0}, "dual_clip must be above 1"),
        ({"entropy_coef": -0.1}, "entropy_coef must be 0 or more"),
    ],
)
def test_options_that_do_nothing_or_make_no_sense_are_refused(tmp_path, objective, message):
    with pytest.raises(ConfigError, match=message):
        learner(tmp_path, objective=objective)


def test_samples_with_pictures_are_trained_and_text_after_them_compiles_nothing(tmp_path):
    policy = small_multimodal(vision=replace(small_multimodal().vision, patch_size=2))
    one = learner(tmp_path, batch={"row_tokens": 192}, policy=policy)
    sections = [seeing(1, 2, picture(2, 3, seed=i), 3, 4, 5, trained=2, image_id=40) for i in range(3)]
    shown = Credited(
        samples=tuple(sections), advantages=(1.0, -1.0, 0.5), sample_ids=("a#0", "b#0", "c#0"), rollouts=(0, 1, 2),
        by_rollout={},
    )  # fmt: skip
    start = loud_params(policy)
    state, metrics = one.update(one.init(start), shown)
    assert metrics["skipped"] == 0 and metrics["num_tokens"] == 6
    assert all(np.array_equal(start[n], w) == n.startswith(("vision.", "mtp.")) for n, w in state.params.items())
    _, after = one.update(state, credited(3))
    assert after["num_compiled"] == metrics["num_compiled"] == 2
