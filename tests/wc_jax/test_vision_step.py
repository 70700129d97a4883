"""Rows with images through the compiled functions: nothing of an image is trained, eight devices are as one."""

import subprocess
import sys
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.pictures import RULE, picture, seeing
from tests.wc_jax.policies import loud_params, small_multimodal
from wc_jax.batch import pack
from wc_jax.image_rows import ImageSpace
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, VisionConfig
from wc_jax.sharding import place_batch, place_state
from wc_jax.step import init_state, make_score_fn, make_train_step

CONFIG = small_multimodal(
    num_layers=2,
    layer_kinds=("linear", "full"),
    num_mtp_layers=0,
    vision=VisionConfig(depth=2, width=16, num_heads=2, ff_dim=20, out_width=24, patch_size=2, num_positions=9),
)
PARAMS = loud_params(CONFIG)
# Adam's first update is then g / (1 + |g|): parameters show the gradient itself.
OPTIM = OptimConfig(lr=1.0, eps=1.0)
A, B = picture(2, 2), picture(1, 3, seed=1)
SPACE = ImageSpace(num_patches=32, patch_size=RULE.patch_size)
SAMPLES = [
    seeing(1, A, 2, 3, B, 4, 5, 6, trained=3, image_id=40),
    seeing(1, A, 2, 3, 9, 8, trained=2, image_id=40),
    seeing(*range(1, 30), trained=9),
    seeing(7, B, 2, 3, 4, trained=2, image_id=40),
]


def rows(samples=SAMPLES, space=SPACE):
    return pack(samples, row_tokens=64, num_rows=4, share=True, align=64, space=space, advantages=[1.0, -0.5, 2.0, 0.7])


@cache
def step_of(compute):
    return make_train_step(CONFIG, OPTIM, compute=compute, chunk=16, micro_rows=2)


def trained(batch, compute=Compute()):  # noqa: B008
    """`(params after one update, metrics)`."""
    state = init_state(jax.tree.map(jnp.array, PARAMS), OPTIM)
    if compute.mesh is not None:
        state, batch = place_state(state, CONFIG, compute.mesh), place_batch(batch, compute.mesh)
    state, metrics = step_of(compute)(state, batch)
    return {name: np.asarray(w) for name, w in state.params.items()}, metrics


def test_text_is_scored_the_same_beside_images_and_without_the_tower():
    """All three positions of text are one; a row without images has the same states as in a batch without any."""
    score = make_score_fn(CONFIG, chunk=16)
    batch, layout = rows()
    logp, _ = score(PARAMS, batch)
    alone, _ = pack(SAMPLES[2:3], row_tokens=64, align=64)
    assert alone.images is None and alone.positions.ndim == 2
    expected = score(PARAMS, alone)[0][0]
    here = layout.place(2)
    np.testing.assert_allclose(np.asarray(logp)[here.row, here.columns], expected[:29], atol=2e-5)


def test_pixels_move_what_comes_after_them_and_other_images_compile_nothing():
    score = make_score_fn(CONFIG, chunk=16)
    batch, layout = rows()
    before = np.asarray(score(PARAMS, batch)[0])
    other = replace(SAMPLES[3], pictures=(replace(SAMPLES[3].pictures[0], picture=picture(1, 3, seed=5)),))
    changed, again = rows([*SAMPLES[:3], other])
    after = np.asarray(score(PARAMS, changed)[0])
    assert score._cache_size() == 1
    for i in range(4):
        was, now = layout.place(i), again.place(i)
        differs = np.abs(after[now.row, now.columns] - before[was.row, was.columns]).max()
        assert (differs > 1e-3) == (i == 3), i


def test_an_update_reaches_the_tower_through_text_alone():
    """The loss counts the answers' tokens only; the tower's weights have gradients all the same."""
    batch, _ = rows()
    params, metrics = trained(batch)
    assert metrics["num_tokens"] == 3 + 2 + 9 + 2
    moved = {name: np.abs(params[name] - np.asarray(PARAMS[name])).max() for name in PARAMS}
    assert min(size for name, size in moved.items() if name.startswith("vision.")) > 1e-6
    text, _ = trained(rows([SAMPLES[2]] * 4)[0])
    for name in PARAMS:
        if name.startswith("vision."):
            np.testing.assert_array_equal(text[name], PARAMS[name])


PROGRAM = """
from tests.wc_jax.test_vision_step import *
from wc_jax.mesh import MeshShape, make_mesh
batch, _ = rows()
expected, one = trained(batch)
mesh = make_mesh(MeshShape(data=2, sequence=2, tensor=2))
found, many = trained(batch, Compute(mesh=mesh))
for name in expected:
    np.testing.assert_allclose(found[name], expected[name], atol=2e-4, err_msg=name)
np.testing.assert_allclose(many["grad_norm"], one["grad_norm"], rtol=1e-4)
print(jax.device_count())
"""


@pytest.mark.slow
def test_eight_devices_update_as_one_does():
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "8"
