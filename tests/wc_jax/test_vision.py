"""The vision tower: images do not see each other, and how it is computed changes nothing."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.pictures import picture, seeing
from tests.wc_jax.policies import loud_params, small_multimodal
from wc_jax.batch import pack
from wc_jax.image_rows import ImageSpace
from wc_jax.policy import Compute, VisionConfig
from wc_jax.policy.vision import image_features, layer_norm, position_embeddings
from wc_jax.policy.vision_table import vision_table
from wc_jax.types import Images

VISION = VisionConfig(depth=2, width=16, num_heads=2, ff_dim=36, out_width=24, patch_size=2, num_positions=16)
PARAMS = loud_params(small_multimodal(vision=VISION))
A, B = picture(1, 2), picture(3, 2, seed=1)


def rows(*samples, num_patches=48) -> Images:
    """The images of samples, a row each."""
    batch, layout = pack(samples, row_tokens=16, space=ImageSpace(num_patches=num_patches, patch_size=2))
    assert [layout.place(i).row for i in range(len(samples))] == list(range(len(samples)))
    return batch.images


TWO = rows(seeing(1, A, 2, B, 3, 4, 5, 6), seeing(1, B, 2, A, 3, 4, 5, 6))


def features(images, compute=Compute(), params=PARAMS):  # noqa: B008
    return jax.jit(lambda params, images: image_features(params, VISION, images, compute=compute))(params, images)


def features_and_gradients(compute):
    """Of TWO: the features of its images, and of their weighted sum each weight's gradient."""
    weight = np.random.default_rng(0).random((2, 12, VISION.out_width)).astype(np.float32)
    used = (TWO.until > TWO.since + 1)[:, ::4, None]

    def loss(params):
        out = jnp.where(used, image_features(params, VISION, TWO, compute=compute), 0.0)
        return jnp.sum(out * weight), out

    own = {name: PARAMS[name] for name in vision_table(VISION)}
    grads, out = jax.jit(jax.grad(loss, has_aux=True))(own)
    return out, grads


@pytest.fixture(scope="module")
def plain():
    return features_and_gradients(Compute())


def assert_alike(found, expected):
    np.testing.assert_allclose(found[0], expected[0], atol=5e-5)
    for name, gradient in expected[1].items():
        scale = float(np.abs(gradient).max())
        assert scale > 1e-2, name
        np.testing.assert_allclose(found[1][name], gradient, atol=2e-5 * max(scale, 10.0), err_msg=name)


def test_an_image_alone_is_the_image_beside_others():
    """Row 0 holds A, then B; row 1 B, then A; each alone; neither pixels of padding nor its length matter."""
    found = features(TWO)
    assert found.shape == (2, 12, VISION.out_width)
    np.testing.assert_allclose(found[0, :2], found[1, 6:8], atol=2e-5)
    np.testing.assert_allclose(found[0, 2:8], found[1, :6], atol=2e-5)
    noisy = TWO.patches.copy()
    noisy[:, 32:] = np.random.default_rng(0).integers(0, 256, noisy[:, 32:].shape)
    noisy[0, 8:32] = 7
    again = features(TWO._replace(patches=noisy))
    np.testing.assert_allclose(again[0, :2], found[0, :2], atol=2e-5)
    np.testing.assert_allclose(again[1, :8], found[1, :8], atol=2e-5)
    assert np.abs(again[0, 2:8] - found[0, 2:8]).max() > 0.1 and np.isfinite(again).all()
    short = features(rows(seeing(2, B, *[3] * 9), seeing(1, A, 2), num_patches=24))
    np.testing.assert_allclose(short[0], found[0, 2:8], atol=2e-5)
    np.testing.assert_allclose(short[1, :2], found[0, :2], atol=2e-5)


def test_every_patch_of_an_image_sees_every_other():
    changed = TWO.patches.copy()
    changed[0, 31] ^= 255  # the last patch of B
    moved = np.abs(features(TWO._replace(patches=changed)) - features(TWO)).max(axis=-1)
    assert (moved[0, 2:8] > 1e-3).all() and moved[0, :2].max() < 2e-5 and moved[1].max() < 2e-5


@pytest.mark.parametrize("compute", [Compute(remat="dots"), Compute(remat="layer", unroll=True)])
def test_what_is_recomputed_changes_nothing(compute, plain):
    assert_alike(features_and_gradients(compute), plain)


def test_bfloat16_is_close():
    quiet = {name: value * (0.2 if value.ndim > 1 else 1.0) for name, value in PARAMS.items()}
    found, expected = features(TWO, Compute(dtype="bfloat16"), quiet), features(TWO, params=quiet)
    assert found.dtype == jnp.bfloat16
    error = np.abs(np.asarray(found[:, :8], np.float32) - expected[:, :8])
    assert error.mean() < 0.02 * np.abs(expected[:, :8]).mean()


def test_no_array_holds_all_pairs_of_patches():
    num_patches = 4096
    images = Images(
        jax.ShapeDtypeStruct((1, num_patches, 12), jnp.uint8),
        *[jax.ShapeDtypeStruct((1, num_patches, 2), jnp.int32)] * 2,
        *[jax.ShapeDtypeStruct((1, num_patches), jnp.int32)] * 2,
        jax.ShapeDtypeStruct((1, 1024), jnp.int32),
    )

    def loss(params, images):
        return jnp.sum(image_features(params, VISION, images, compute=Compute(remat="layer")))

    program = str(jax.make_jaxpr(jax.grad(loss))(PARAMS, images))
    sizes = [np.prod([int(n) for n in shape.split(",")]) for shape in re.findall(r"[fiub]\d+\[([\d,]+)\]", program)]
    assert num_patches * 16 <= max(sizes) < num_patches**2 / 8


def test_positions_on_a_grid_as_large_as_the_table_are_the_table():
    table = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
    place = np.stack(np.meshgrid(np.arange(4), np.arange(4), indexing="ij"), -1).reshape(1, 16, 2).astype(np.int32)
    found = position_embeddings(jnp.asarray(table), jnp.asarray(place), jnp.full_like(place, 4))
    np.testing.assert_array_equal(found[0], table)


@pytest.mark.parametrize(("height", "width"), [(2, 6), (7, 3), (1, 1), (8, 2)])
def test_positions_are_bilinear_with_corners_on_corners(height, width):
    table = np.random.default_rng(0).normal(size=(25, 3)).astype(np.float32)
    square = table.reshape(5, 5, 3).astype(np.float64)
    place = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), -1).reshape(1, -1, 2)
    grid = np.broadcast_to(np.array([height, width]), place.shape)
    found = position_embeddings(*map(jnp.asarray, (table, place.astype(np.int32), grid.astype(np.int32))))[0]
    for value, (row, column) in zip(np.asarray(found), place[0], strict=True):
        down, right = (i * 4 / (n - 1) if n > 1 else 0.0 for i, n in ((row, height), (column, width)))
        # A table of 5 x 5 is a sum of tents, one on each of its points.
        tent_down, tent_right = (np.maximum(0, 1 - np.abs(np.arange(5) - at)) for at in (down, right))
        np.testing.assert_allclose(value, np.einsum("r,c,rcd->d", tent_down, tent_right, square), atol=1e-5)


def test_layer_norm_has_mean_and_deviation_as_asked():
    x = np.random.default_rng(0).normal(3.0, 5.0, (2, 3, 8)).astype(np.float32)
    found = np.asarray(layer_norm(jnp.asarray(x), jnp.full(8, 2.0), jnp.full(8, 0.5)))
    np.testing.assert_allclose(found.mean(-1), 0.5, atol=1e-5)
    np.testing.assert_allclose(found.std(-1), 2.0, atol=1e-4)


def test_a_row_of_half_blocks_is_our_own_mistake():
    with pytest.raises(AssertionError, match="whole blocks"):
        features(Images(*(x[:, :6] for x in TWO[:5]), TWO.slot))
