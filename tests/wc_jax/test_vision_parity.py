"""Images against `transformers`: pixels, grids, tower features, M-RoPE positions, states and gradients of the whole.

Two policies (the second with odd sizes: patches of 6, merged by 3, 3 frames, one layer), two images of different
sizes (one has its size already, one is resized), two samples that show both in another order.
"""

import json
import subprocess
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rollout.pictures import PictureRule, fit, picture_patches
from tests.wc_jax.pictures import png, seeing
from tests.wc_jax.policies import loud_params, small_multimodal
from tests.wc_jax.test_parity import ENGINE_PYTHON, compare_gradients
from wc_jax.batch import pack
from wc_jax.images import mrope_positions
from wc_jax.logprobs import token_logprobs
from wc_jax.policy import IN_FLOAT32, VisionConfig, hidden_states, unembed
from wc_jax.policy.vision import image_features
from wc_jax.weights import load_policy, save_policy

PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np, torch
from PIL import Image
from transformers import Qwen3_5ForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
root = Path(sys.argv[1])
weight = torch.tensor(np.load(root / "weight.npy"))
for name in sys.argv[2:]:
    folder = root / name
    processor = Qwen2VLImageProcessorPil(**json.loads((folder / "preprocessor_config.json").read_text()))
    images = [Image.open(folder / f"{i}.png") for i in range(2)]
    seen = processor(images=images, return_tensors="pt")
    model, report = Qwen3_5ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    found = {"pixels": seen["pixel_values"], "grids": seen["image_grid_thw"]}
    found["features"] = model.model.visual(seen["pixel_values"], grid_thw=seen["image_grid_thw"]).pooler_output
    tokens = torch.tensor(np.load(folder / "tokens.npy"))
    both = processor(images=[images[i] for i in (0, 1, 1, 0)], return_tensors="pt")
    kinds = (tokens == model.config.image_token_id).int()
    found["positions"] = model.model.get_rope_index(tokens, kinds, both["image_grid_thw"])[0].permute(1, 2, 0)
    out = model(tokens, pixel_values=both["pixel_values"], image_grid_thw=both["image_grid_thw"],
                mm_token_type_ids=kinds, output_hidden_states=True)
    found["hidden"] = out.hidden_states[-1]
    found["logp"] = out.logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    (found["logp"] * weight).sum().backward()
    np.savez(folder / "found.npz", **{k: v.detach().numpy() for k, v in found.items()})
    np.savez(folder / "grads.npz", **{k: p.grad.numpy() for k, p in model.named_parameters() if p.grad is not None})
"""
ODD = VisionConfig(
    depth=1, width=32, num_heads=4, ff_dim=20, out_width=24, patch_size=6, merge_size=3, temporal_patch_size=3,
    num_positions=25,
)  # fmt: skip
POLICIES = {"usual": small_multimodal(), "odd": small_multimodal(vision=ODD)}
LENGTH = 90  # a chunk of the recurrent layers and a part of another
ROW = 128

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ENGINE_PYTHON.exists(), reason="the engine's environment is not installed"),
]


def raw_images(vision: VisionConfig) -> list[bytes]:
    side = vision.patch_size * vision.merge_size
    return [png(2 * side, 3 * side, seed=1), png(5 * side - 3, 3 * side + 2, seed=2)]


def processor(vision: VisionConfig) -> dict:
    side = vision.patch_size * vision.merge_size
    return {
        "patch_size": vision.patch_size,
        "merge_size": vision.merge_size,
        "temporal_patch_size": vision.temporal_patch_size,
        "size": {"shortest_edge": side**2, "longest_edge": 40 * side**2},
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
    }


@cache
def samples(name: str) -> tuple:
    """Two of LENGTH tokens; the second shows the pictures the other way around."""
    vision = POLICIES[name].vision
    rule = PictureRule.from_processor(processor(vision))
    one, two = (fit(raw, rule) for raw in raw_images(vision))
    text = np.random.default_rng(0).integers(0, 40, 2 * LENGTH).tolist()
    left = LENGTH - one.num_tokens - two.num_tokens
    found = []
    for pictures in ((one, two), (two, one)):
        words = [text.pop() for _ in range(left)]
        found.append(seeing(*words[:20], pictures[0], *words[20:25], pictures[1], *words[25:], image_id=40))
    return tuple(found)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder for each policy, and what transformers makes of it and of its images."""
    root = tmp_path_factory.mktemp("vision")
    np.save(root / "weight.npy", np.random.default_rng(0).random((2, LENGTH - 1)).astype(np.float32))
    for name, config in POLICIES.items():
        save_policy(root / name, config, loud_params(config))
        (root / name / "preprocessor_config.json").write_text(json.dumps(processor(config.vision)))
        for i, raw in enumerate(raw_images(config.vision)):
            (root / name / f"{i}.png").write_bytes(raw)
        np.save(root / name / "tokens.npy", np.stack([s.tokens for s in samples(name)]).astype(np.int64))
    done = subprocess.run(
        [ENGINE_PYTHON, "-c", PROGRAM, str(root), *POLICIES], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return root


def pictures_of(name: str) -> list:
    return [shown.picture for shown in samples(name)[0].pictures]


@pytest.mark.parametrize("name", POLICIES)
def test_grids_and_pixels_are_theirs(theirs, name):
    """To the bit before normalization: both resize bytes with Pillow's bicubic filter."""
    config, found = POLICIES[name].vision, np.load(theirs / name / "found.npz")
    assert [(1, *p.grid) for p in pictures_of(name)] == [tuple(grid) for grid in found["grids"].tolist()]
    patches = np.concatenate([picture_patches(p) for p in pictures_of(name)])
    frames = found["pixels"].reshape(len(patches), 3, config.temporal_patch_size, -1)
    for frame in range(config.temporal_patch_size):
        pixels = frames[:, :, frame].reshape(len(patches), -1)
        np.testing.assert_array_equal(np.round((pixels + 1.0) * 127.5), patches)
        np.testing.assert_allclose(patches / np.float32(127.5) - 1, pixels, atol=1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_features_are_theirs(theirs, name):
    config, params = load_policy(theirs / name)
    batch, _ = pack(samples(name)[:1], row_tokens=ROW)
    found = image_features(params, config.vision, batch.images, compute=IN_FLOAT32)[0]
    np.testing.assert_allclose(found, np.load(theirs / name / "found.npz")["features"], atol=1e-4)


@pytest.mark.parametrize("name", POLICIES)
def test_positions_are_theirs(theirs, name):
    expected = np.load(theirs / name / "found.npz")["positions"]
    for sample, positions in zip(samples(name), expected, strict=True):
        grids = [shown.picture.grid for shown in sample.pictures]
        found = mrope_positions(sample.tokens, grids, 40, POLICIES[name].vision.merge_size)
        np.testing.assert_array_equal(found, positions)


@pytest.mark.parametrize(("name", "row_tokens"), [("usual", ROW), ("usual", 2 * ROW), ("odd", ROW)])
def test_states_logprobs_and_gradients_are_theirs(theirs, name, row_tokens):
    """Each sample in a row of its own, and both in one row, where each picture is computed once."""
    config, params = load_policy(theirs / name)
    batch, layout = pack(samples(name), row_tokens=row_tokens, align=64)
    assert len(batch.tokens) == 2 * ROW // row_tokens
    assert batch.images.patches.shape[1] == sum(p.num_patches for p in pictures_of(name))
    places = [layout.place(i) for i in range(2)]
    weight, tokens = np.load(theirs / "weight.npy"), np.stack([s.tokens for s in samples(name)])

    def loss(params):
        states = hidden_states(
            params, config, batch.tokens, batch.positions, batch.visible_until, batch.predecessor, batch.images
        )
        hidden = jnp.stack([states[place.row, place.columns] for place in places])
        logp, _ = token_logprobs(
            hidden[:, :-1].reshape(-1, config.width), unembed(params, config), jnp.asarray(tokens[:, 1:].ravel())
        )
        logp = logp.reshape(2, -1)
        return jnp.sum(logp * weight), (hidden, logp)

    (_, (hidden, logp)), grads = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    expected = np.load(theirs / name / "found.npz")
    np.testing.assert_allclose(hidden, expected["hidden"], atol=1e-4)
    np.testing.assert_allclose(logp, expected["logp"], atol=1e-4)
    with np.load(theirs / name / "grads.npz") as found:
        compare_gradients(grads, {key: found[key] for key in found.files}, config)
