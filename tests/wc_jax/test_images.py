"""Pictures in a batch: every image token finds its own picture, each picture is there once a row, none is confused."""

import io
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from PIL import Image

from rollout.pictures import picture_patches
from rollout.types import Sample, Shown
from tests.wc_jax.pictures import IMAGE, picture, seeing
from tests.wc_jax.policies import sample
from wc_jax.batch import pack, plan
from wc_jax.image_rows import ImageSpace, space_needed
from wc_jax.images import mrope_positions, patch_places, sample_positions

A, B, C = picture(1, 2), picture(1, 2, seed=1), picture(2, 3, seed=2)


def test_patches_put_back_in_their_places_are_the_image():
    pixels = np.asarray(Image.open(io.BytesIO(C.png)))
    found = np.zeros_like(pixels)
    for patch, (row, column) in zip(picture_patches(C), patch_places(C.grid, 2), strict=True):
        found[2 * row : 2 * row + 2, 2 * column : 2 * column + 2] = patch.reshape(3, 2, 2).transpose(1, 2, 0)
    np.testing.assert_array_equal(found, pixels)


def test_four_patches_in_a_row_are_one_square():
    for block in patch_places((4, 6), 2).reshape(-1, 4, 2):
        assert (block - block[0]).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]] and not (block[0] % 2).any()


def test_a_picture_with_other_sides_than_its_grid_says_is_refused():
    with pytest.raises(ValueError, match="4x8 patches cannot have 8x12 pixels"):
        picture_patches(replace(C, grid=(4, 8)))


def test_text_after_an_image_goes_on_behind_its_longer_side():
    tokens = np.array([1, *[IMAGE] * 6, 2, *[IMAGE] * 2, 3, 4])
    found = mrope_positions(tokens, [(6, 4), (2, 4)], IMAGE, 2)
    assert found[:, 0].tolist() == [0, 1, 1, 1, 1, 1, 1, 4, 5, 5, 7, 8]
    assert found[:, 1].tolist() == [0, 1, 1, 2, 2, 3, 3, 4, 5, 5, 7, 8]
    assert found[:, 2].tolist() == [0, 1, 2, 1, 2, 1, 2, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("tokens", "grids", "message"),
    [
        ([1, IMAGE, 2], [(2, 4)], "image 0 of 2x4 patches needs 2 image tokens"),
        ([1, IMAGE], [(2, 4)], "image 0 of 2x4"),
        ([1, IMAGE, 2], [(2, 2), (2, 2)], "image 1 of 2x2"),
        ([IMAGE], [(2, 2), (2, 2)], "image 1 of 2x2"),
        ([IMAGE, 3, IMAGE], [(2, 2)], "1 images, but image tokens for more from index 1 on"),
        ([IMAGE], [], "0 images"),
    ],
)
def test_image_tokens_without_images_are_refused(tokens, grids, message):
    with pytest.raises(ValueError, match=message):
        mrope_positions(np.array(tokens), grids, IMAGE, 2)


def test_positions_of_a_sample_are_those_of_its_tokens_and_a_sampled_image_id_is_text():
    one = seeing(1, A, 2, C, 3, 4)
    expected = mrope_positions(one.tokens, [A.grid, C.grid], IMAGE, 2)
    np.testing.assert_array_equal(sample_positions(one), expected)
    last = replace(one, tokens=np.where(np.arange(len(one.tokens)) == len(one.tokens) - 1, IMAGE, one.tokens))
    np.testing.assert_array_equal(sample_positions(last), expected)
    batch, _ = pack([last], row_tokens=12)
    assert batch.images.slot[0, :12].tolist() == [-1, 0, 1, -1, 2, 3, 4, 5, 6, 7, -1, -1]


@st.composite
def samples_with_pictures(draw: st.DrawFn) -> list[Sample]:
    """Samples that often begin alike, up to the pictures in them."""
    parts = st.one_of(st.integers(1, 2), st.sampled_from([A, B, C]))
    found: list[list] = []
    for _ in range(draw(st.integers(1, 5))):
        kept = found[draw(st.integers(0, len(found) - 1))] if found and draw(st.booleans()) else []
        kept = kept[: draw(st.integers(0, len(kept)))]
        found.append(
            kept + draw(st.lists(parts, max_size=4)) + draw(st.lists(st.integers(1, 2), min_size=1, max_size=3))
        )
    return [seeing(0, *parts) for parts in found]


@given(samples_with_pictures(), st.booleans(), st.sampled_from([1, 4]))
def test_each_image_token_finds_its_part_of_its_own_picture(samples, share, align):
    row_tokens = -(-max(len(s.tokens) for s in samples) // align) * align + 2 * align
    batch, layout = pack(samples, row_tokens=row_tokens, share=share, align=align)
    if batch.images is None:
        assert not any(s.pictures for s in samples) and batch.positions.ndim == 2
        return
    features = batch.images.patches.reshape(len(batch.tokens), -1, 4 * 12)
    for i, one in enumerate(samples):
        row, columns = layout.place(i).row, layout.place(i).columns
        np.testing.assert_array_equal(batch.positions[row, columns], sample_positions(one))
        is_text = np.ones(len(one.tokens), bool)
        for shown in one.pictures:
            is_text[shown.start : shown.stop] = False
            slots = batch.images.slot[row, columns[shown.start : shown.stop]]
            np.testing.assert_array_equal(features[row, slots].reshape(-1, 12), picture_patches(shown.picture))
        assert (batch.images.slot[row, columns[is_text]] == -1).all()
        assert not (batch.loss_mask & (batch.images.slot >= 0)).any()


@given(samples_with_pictures(), st.booleans())
def test_a_row_holds_each_picture_once_and_padding_sees_itself_only(samples, share):
    batch, layout = pack(samples, row_tokens=max(len(s.tokens) for s in samples) + 8, share=share)
    assert batch.images is None or batch.images.since.dtype == batch.images.until.dtype == np.int32
    for row in range(layout.num_rows if batch.images else 0):
        images = [x[row] for x in batch.images]
        patches, place, grid, since, until, slot = images
        here = {runs.source for runs in layout.runs if runs.row == row}
        pictures = {shown.picture for i in here for shown in samples[i].pictures}
        start = 0
        while start < len(since) and until[start] > start + 1:
            assert (since[start : until[start]] == start).all() and (until[start : until[start]] == until[start]).all()
            assert (grid[start : until[start]] == grid[start]).all()
            np.testing.assert_array_equal(place[start : until[start]], patch_places(tuple(grid[start]), 2))
            (one,) = (p for p in pictures if np.array_equal(picture_patches(p), patches[start : until[start]]))
            pictures.remove(one)
            start = int(until[start])
        assert not pictures
        own = np.arange(start, len(since))
        assert (since[start:] == own).all() and (until[start:] == own + 1).all() and not patches[start:].any()
        assert slot.max() < max(start // 4, 1)


def test_equal_tokens_with_other_pictures_are_not_merged():
    apart, alike = [seeing(1, A, 2, 3), seeing(1, B, 2, 4)], [seeing(1, A, 2, 3), seeing(1, A, 2, 4)]
    assert (apart[0].tokens[:4] == apart[1].tokens[:4]).all()
    batch, layout = pack(apart, row_tokens=12, share=True)
    assert layout.num_computed == 5 + 4  # what stands before the picture is shared
    assert sorted(int(batch.images.slot[0, layout.place(i).columns[1]]) for i in range(2)) == [0, 2]
    batch, layout = pack(alike, row_tokens=12, share=True)
    # A trained token stands after its predecessor, which each of the two branches therefore has for itself.
    assert layout.num_computed == 3 + 2 + 2 and batch.images.patches.shape == (1, 8, 12)


def test_samples_that_share_no_token_share_a_picture_of_their_row():
    batch, _ = pack([seeing(1, A, 3), seeing(2, A, 4)], row_tokens=8)
    assert batch.images.patches.shape[1] == A.num_patches
    assert batch.images.slot[0].tolist() == [-1, 0, 1, -1, -1, 0, 1, -1]


def test_a_branch_inside_a_picture_points_at_the_same_picture():
    one, two = seeing(1, 1, C, 3, 4), seeing(1, 1, C, 5, 6)
    batch, layout = pack([one, two], row_tokens=20, share=True, align=4)
    assert layout.num_computed == 8 + 2 + 2
    one, two = seeing(1, C, 3, 4), seeing(1, C, 5, 6)
    batch, layout = pack([one, two], row_tokens=20, share=True, align=4)
    assert layout.runs[-1].start == 4 and batch.images.patches.shape[1] == C.num_patches
    for i in range(2):
        assert batch.images.slot[0, layout.place(i).columns].tolist() == [-1, 0, 1, 2, 3, 4, 5, -1, -1]


def test_text_alone_has_no_images_unless_there_is_room_for_them():
    batch, _ = pack([sample(4, 1)], row_tokens=8)
    assert batch.images is None and batch.positions.shape == (1, 8)
    space = ImageSpace(num_patches=8, patch_size=2)
    batch, _ = pack([sample(4, 1)], row_tokens=8, space=space, num_rows=2)
    assert batch.images.patches.shape == (2, 8, 12) and batch.positions.shape == (2, 8, 3)
    assert (batch.images.slot == -1).all() and (batch.images.grid == 1).all()
    np.testing.assert_array_equal(batch.positions[0, :4], np.repeat(np.arange(4)[:, None], 3, axis=1))


def test_room_is_what_the_fullest_row_needs():
    samples = [seeing(1, A, 2), seeing(1, C, 2), seeing(3, B, A, 1)]
    layout = plan(samples, row_tokens=8)
    assert layout.num_rows == 3
    assert space_needed(layout, samples) == ImageSpace(num_patches=24, patch_size=2, merge_size=2)
    with pytest.raises(ValueError, match="have 24 patches or more but there is room for 16"):
        pack(samples, row_tokens=8, space=ImageSpace(num_patches=16, patch_size=2))
    with pytest.raises(ValueError, match=r"12 bytes a patch, merged by 2, but this policy's have 768, merged by 2"):
        pack(samples, row_tokens=8, space=ImageSpace(num_patches=64))
    with pytest.raises(ValueError, match="multiple of 2², the patches of a token, got 6"):
        ImageSpace(num_patches=6)


def test_a_sample_whose_pictures_do_not_fit_is_refused_by_its_id():
    one = seeing(1, A, 2)
    for pictures in ((Shown(picture=A, start=3),), (Shown(picture=A, start=-1),), (*one.pictures, *one.pictures)):
        with pytest.raises(ValueError, match="sample x: a picture at .* is not whole"):
            pack([replace(one, pictures=pictures)], row_tokens=8, sample_ids=["x"])
    with pytest.raises(ValueError, match="sample x trains image tokens"):
        pack([replace(one, loss_mask=np.ones(4, bool))], row_tokens=8, sample_ids=["x"])
