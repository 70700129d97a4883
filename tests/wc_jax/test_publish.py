"""Case 10: weights that did not arrive are found out, at every sync, or the run stops."""

from collections.abc import Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollout.engine import Request
from rollout.scripted import ScriptedEngine
from rollout.types import Completion
from rollout.vllm import VllmEngine
from tests.engine import VOCAB, Served
from wc_jax.canary import Canary, canary_prompt, policy_score
from wc_jax.policy.config import PolicyConfig
from wc_jax.publish import Publisher, PublishError
from wc_jax.weights import load_policy

# The server may have to be started first, and a busy machine needs minutes for that.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def policy(served: Served) -> tuple[PolicyConfig, dict[str, jax.Array]]:
    config, params = load_policy(served.folder)
    return config, dict(params)


def publisher(served: Served, config: PolicyConfig, engine: VllmEngine | None = None) -> Publisher:
    canary = Canary(score=policy_score(config), prompt_ids=canary_prompt(VOCAB))
    return Publisher(engine or served.engine, config, served.server.weights_dir, canary=canary)


def step(params: Mapping[str, jax.Array], seed: int) -> dict[str, jax.Array]:
    """Parameters after a made-up update: every tensor moves, the tied embedding too."""
    rng = np.random.default_rng(seed)
    return {
        name: value + jnp.asarray(0.05 * rng.standard_normal(value.shape), value.dtype)
        for name, value in params.items()
    }


@pytest.mark.engine
def test_proved_at_step_0_after_steps_and_after_a_reconnect(
    served: Served, policy: tuple[PolicyConfig, dict[str, jax.Array]]
) -> None:
    config, params = policy
    publish = publisher(served, config)
    for version in range(3):
        assert publish(params, version)["sync/canary_gap"] < 1e-4
        assert served.engine.version() == version
        params = step(params, version)
    again = VllmEngine(served.server.base_url, weights_dir=served.server.weights_dir)
    assert publisher(served, config, again)(params, 2)["sync/canary_gap"] < 1e-4
    again.close()
    assert list(served.server.weights_dir.iterdir()) == []


@pytest.mark.engine
def test_same_weights_again_and_again_keep_the_gap_flat(
    served: Served, policy: tuple[PolicyConfig, dict[str, jax.Array]]
) -> None:
    config, params = policy
    publish = publisher(served, config)
    gaps = [publish(params, version)["sync/canary_gap"] for version in range(5)]
    assert max(gaps) - min(gaps) < 1e-6


@pytest.mark.engine
@pytest.mark.parametrize("name", ["embed", "layers.q", "final_norm"])
def test_one_flipped_weight_is_found(
    served: Served, policy: tuple[PolicyConfig, dict[str, jax.Array]], name: str
) -> None:
    config, params = policy
    index = np.unravel_index(int(jnp.argmax(jnp.abs(params[name]))), params[name].shape)
    flipped = params | {name: params[name].at[index].multiply(-1)}
    score = policy_score(config)

    def score_the_right_ones(_: object, prompt: object, answer: object) -> np.ndarray:
        return score(params, prompt, answer)  # type: ignore[arg-type]

    canary = Canary(score=score_the_right_ones, prompt_ids=canary_prompt(VOCAB, num_tokens=200), num_tokens=32)
    publish = Publisher(served.engine, config, served.server.weights_dir, canary=canary)
    assert publish(params, 0)["sync/canary_gap"] < 1e-4
    with pytest.raises(PublishError, match="does not use the trainer's weights"):
        publish(flipped, 1)


@pytest.mark.engine
def test_weights_of_another_shape_are_refused(
    served: Served, policy: tuple[PolicyConfig, dict[str, jax.Array]]
) -> None:
    config, params = policy
    wrong = params | {"final_norm": params["final_norm"][:-1]}
    with pytest.raises(PublishError, match=r"final_norm must be \(64,\), got \(63,\)"):
        publisher(served, config)(wrong, 3)
    assert publisher(served, config)(params, 3)["sync/canary_gap"] < 1e-4


@pytest.mark.engine
def test_folder_that_cannot_be_written(
    served: Served, policy: tuple[PolicyConfig, dict[str, jax.Array]], tmp_path: Path
) -> None:
    config, params = policy
    publish = Publisher(served.engine, config, tmp_path / "gone", canary=None)
    with pytest.raises(PublishError, match="could not write"):
        publish(params, 1)


class Liar(ScriptedEngine):
    """An engine that reports what the test says it reports."""

    reported: int | None = None
    num_cached = 0

    def version(self) -> int:
        return super().version() if self.reported is None else self.reported

    def generate(self, request: Request) -> Completion:
        answer = super().generate(request)
        return Completion(
            token_ids=answer.token_ids,
            logp=answer.logp,
            policy_versions=answer.policy_versions,
            finish_reason=answer.finish_reason,
            num_cached_tokens=self.num_cached,
        )


@pytest.fixture
def liar() -> Liar:
    return Liar(lambda rollout_id, turn: "a", encode=lambda text: [5], end_id=2, logp=lambda token: -1.0)


TINY = PolicyConfig(vocab_size=8, width=4, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=2, ff_dim=4)


def lying_publisher(engine: Liar, folder: Path, *, logp: float = -1.0) -> Publisher:
    canary = Canary(score=lambda params, prompt, answer: np.full(len(answer), logp), prompt_ids=(1, 2))
    return Publisher(engine, TINY, folder, canary=canary)


def tiny_params() -> dict[str, jax.Array]:
    from wc_jax.policy.table import init_params

    return dict(init_params(TINY, jax.random.key(0)))


def test_scripted_engine_is_published_to_like_a_real_one(liar: Liar, tmp_path: Path) -> None:
    assert lying_publisher(liar, tmp_path)(tiny_params(), 4)["sync/canary_gap"] == 0.0
    assert liar.published == [(tmp_path / "step-4.safetensors", 4)]


def test_another_version_reported(liar: Liar, tmp_path: Path) -> None:
    liar.reported = 3
    with pytest.raises(PublishError, match="reports version 3 after version 4"):
        lying_publisher(liar, tmp_path)(tiny_params(), 4)


def test_prefix_cache_that_survived(liar: Liar, tmp_path: Path) -> None:
    liar.num_cached = 64
    with pytest.raises(PublishError, match="64 cached tokens"):
        lying_publisher(liar, tmp_path)(tiny_params(), 4)


@pytest.mark.parametrize("logp", [-1.002, float("nan")])
def test_gap_over_the_tolerance(liar: Liar, tmp_path: Path, logp: float) -> None:
    with pytest.raises(PublishError, match="trainer"):
        lying_publisher(liar, tmp_path, logp=logp)(tiny_params(), 4)
