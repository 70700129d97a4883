"""Exported folders of the other families in real vLLM servers: its log-probabilities are ours, after a sync too."""

import io
import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest
from PIL import Image

from rollout.pictures import Picture, PictureRule, fit
from rollout.types import Completion, Shown
from rollout.vllm import VllmEngine
from rollout.vllm_server import VllmServer
from tests.engine import Served, ask, prompt_of
from tests.rollout.tiny_model import write_tiny_model
from tests.wc_jax.pictures import png
from wc_jax.canary import make_canary, policy_score
from wc_jax.policy import Compute, DeltaConfig, Params, PolicyConfig, VisionConfig, init_params
from wc_jax.publish import Publisher
from wc_jax.weights import save_policy

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

IMAGE, VIDEO, START, END = 264, 265, 266, 267
PATCH = 16
DENSE = PolicyConfig(
    vocab_size=272, width=128, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=32, ff_dim=96, max_positions=2048
)
FOLDERS = {
    "qwen2": (replace(DENSE, family="qwen2", attention_bias=True), "float32"),
    "qwen3": (replace(DENSE, family="qwen3", has_qk_norm=True, head_dim=64, tie_embeddings=False), "float32"),
    "qwen3_bfloat16": (replace(DENSE, family="qwen3", has_qk_norm=True, head_dim=64), "bfloat16"),
    "qwen3_5": (
        replace(
            DENSE,
            family="qwen3_5",
            num_layers=4,
            head_dim=64,
            rotary_dim=16,
            mrope_section=(3, 3, 2),
            has_qk_norm=True,
            has_output_gate=True,
            zero_centered_norms=True,
            layer_kinds=("linear", "full") * 2,
            delta=DeltaConfig(key_heads=2, value_heads=4, key_dim=64, value_dim=64),
            norm_eps=1e-6,
            tie_embeddings=False,
            num_mtp_layers=1,
            vision=VisionConfig(
                depth=2, width=128, num_heads=2, ff_dim=96, out_width=128, patch_size=PATCH, num_positions=64
            ),
            image_token_id=IMAGE,
            video_token_id=VIDEO,
            vision_start_token_id=START,
            vision_end_token_id=END,
        ),
        "bfloat16",
    ),
}
# Largest difference of a token's log-probability: of float32, and of two ways to round to bfloat16.
BANDS = {"float32": 1e-3, "bfloat16": 0.05}


def weights(config: PolicyConfig, seed: int) -> Params:
    """Three times as far from zero as at the start of training: answers differ between seeds."""
    return {
        name: value * (3 if value.ndim > 2 else 1) for name, value in init_params(config, jax.random.key(seed)).items()
    }


@pytest.fixture(scope="module", params=FOLDERS)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Served]]:
    """A server on a folder that we wrote. Beside the weights, what vLLM wants to see next to a vision tower."""
    config, dtype = FOLDERS[request.param]
    folder = tmp_path_factory.mktemp(request.param) / "model"
    save_policy(folder, config, weights(config, 0), dtype)
    if config.vision is not None:
        beside = write_tiny_model(tmp_path_factory.mktemp("beside"), seed=0)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (folder / name).write_bytes((beside / name).read_bytes())
        half = [0.5, 0.5, 0.5]
        limits = {"size": {"shortest_edge": 32**2, "longest_edge": 256**2}}
        about = {"patch_size": PATCH, "merge_size": 2, "temporal_patch_size": 2, "image_mean": half, "image_std": half}
        (folder / "preprocessor_config.json").write_text(
            json.dumps({**about, **limits, "image_processor_type": "Qwen2VLImageProcessorFast"})
        )
    log = tmp_path_factory.mktemp("log") / "vllm.log"
    images = config.vision is not None
    with VllmServer(folder, dtype=dtype, max_model_len=512, kv_cache_gib=0.125, images=images, log_path=log) as server:
        engine = VllmEngine(server.base_url, weights_dir=server.weights_dir)
        yield request.param, Served(folder=folder, server=server, engine=engine)
        engine.close()


def scorer(name: str, shown: tuple[Shown, ...] = ()) -> Callable[[int, tuple[int, ...], Completion], float]:
    """How far, under the weights of a seed, the engine's log-probability of any token of an answer is from ours."""
    config, dtype = FOLDERS[name]
    score = policy_score(config, compute=Compute(dtype=dtype), pictures=shown)

    def gap(seed: int, ids: tuple[int, ...], answer: Completion) -> float:
        with jax.default_matmul_precision("highest"):
            ours = score(weights(config, seed), ids, answer.token_ids)
        return float(np.abs(ours - np.array(answer.logp)).max())

    return gap


def publish(name: str, seed: int, served: Served) -> float:
    """As a run does it. Returns the canary's gap."""
    config, dtype = FOLDERS[name]
    rule = None if config.vision is None else PictureRule.load(served.folder)
    canary = make_canary(config, compute=Compute(dtype=dtype), rule=rule, tolerance=BANDS[dtype])
    publisher = Publisher(served.engine, config, served.server.weights_dir, canary=canary, dtype=dtype)
    return publisher(weights(config, seed), seed)["sync/canary_gap"]


def test_log_probabilities_are_ours_before_and_after_a_sync(family: tuple[str, Served]) -> None:
    name, served = family
    band, ids, gap = BANDS[FOLDERS[name][1]], prompt_of(45), scorer(name)
    first = served.engine.generate(ask(ids, max_tokens=40))
    assert gap(0, ids, first) < band
    assert publish(name, 1, served) < band
    second = served.engine.generate(ask(ids, max_tokens=40))
    assert gap(1, ids, second) < band
    assert gap(0, ids, second) > 5 * band, "the old weights would show"
    assert first.token_ids != second.token_ids


@pytest.mark.parametrize("family", ["qwen3_5"], indirect=True)
def test_log_probabilities_after_pictures_are_ours(family: tuple[str, Served]) -> None:
    name, served = family
    rule = PictureRule.load(served.folder)
    ids, shown = with_pictures(fit(png(64, 96, 1), rule), fit(png(96, 64, 2), rule))
    publish(name, 0, served)
    answer = served.engine.generate(replace(ask(ids, max_tokens=40), pictures=shown))
    band = BANDS["bfloat16"]
    assert scorer(name, shown)(0, ids, answer) < band
    assert scorer(name)(0, ids, answer) > 3 * band, "a missing picture would show"
    darker = tuple(replace(each, picture=at_half(each.picture, rule)) for each in shown)
    assert scorer(name, darker)(0, ids, answer) > 2 * band, "pixels on another scale would show"


def at_half(picture: Picture, rule: PictureRule) -> Picture:
    """The same picture, half as bright."""
    with Image.open(io.BytesIO(picture.png)) as image:
        pixels = np.asarray(image) // 2
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return fit(file.getvalue(), rule)


def with_pictures(*pictures: Picture) -> tuple[tuple[int, ...], tuple[Shown, ...]]:
    """Text around pictures."""
    ids, shown = list(prompt_of(7)), []
    for k, picture in enumerate(pictures):
        shown.append(Shown(picture=picture, start=len(ids) + 1))
        ids += [START, *[IMAGE] * picture.num_tokens, END, *prompt_of(7, seed=k + 1)]
    return tuple(ids), tuple(shown)
