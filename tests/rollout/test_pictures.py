"""Pictures in a rollout: their size, their tokens, where they stand in a sample, and on disk."""

import io
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from rollout.pictures import PictureRule, fit
from rollout.render import VIDEO, VISION
from rollout.samples import build_samples
from rollout.store import load_rollout, save_rollout
from rollout.tree import TreeBuilder
from rollout.types import Completion, Message, Picture, Shown
from tests.rollout.chat import seeing_chat, tiny_chat, tiny_tokenizer
from tests.rollout.finished import a_rollout

SMALL = PictureRule(patch_size=2, merge_size=2, min_pixels=16, max_pixels=256)


def image_bytes(height: int, width: int, mode: str = "RGB", seed: int = 0) -> bytes:
    channels = {"RGB": 3, "RGBA": 4, "L": 1}[mode]
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, channels)).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.squeeze(), mode).save(file, "png")
    return file.getvalue()


def picture(tokens_high: int, tokens_wide: int, seed: int = 0) -> Picture:
    return fit(image_bytes(4 * tokens_high, 4 * tokens_wide, seed=seed), SMALL)


@given(st.integers(1, 3000), st.integers(1, 3000))
def test_a_size_is_whole_tokens_and_stays_when_it_keeps_the_budget(height: int, width: int) -> None:
    rule = PictureRule(patch_size=16, merge_size=2, min_pixels=4096, max_pixels=1_000_000)
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ValueError, match="times as long as wide"):
            rule.size(height, width)
        return
    high, wide = rule.size(height, width)
    assert high % 32 == wide % 32 == 0 and high * wide >= 4096
    if high * wide <= 1_000_000:
        assert rule.size(high, wide) == (high, wide)


def test_a_picture_has_the_pixels_of_its_grid() -> None:
    found = fit(image_bytes(21, 9), SMALL)
    opened = Image.open(io.BytesIO(found.png))
    assert opened.size == (2 * found.grid[1], 2 * found.grid[0]) and opened.mode == "RGB"
    assert found.grid == (10, 4) and (found.num_patches, found.num_tokens) == (40, 10)


def test_an_image_that_fits_keeps_its_pixels_and_transparency_is_white() -> None:
    raw = image_bytes(8, 12)
    kept = Image.open(io.BytesIO(fit(raw, SMALL).png))
    np.testing.assert_array_equal(np.asarray(kept), np.asarray(Image.open(io.BytesIO(raw))))
    file = io.BytesIO()
    Image.new("RGBA", (8, 8), (200, 0, 0, 0)).save(file, "png")
    assert np.asarray(Image.open(io.BytesIO(fit(file.getvalue(), SMALL).png))).min() == 255


def test_gray_images_have_three_channels() -> None:
    assert Image.open(io.BytesIO(fit(image_bytes(8, 8, "L"), SMALL).png)).mode == "RGB"


def test_what_is_no_image_or_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match="5 bytes that are no image"):
        fit(b"<html", SMALL)
    # A few bytes that promise 400 million pixels.
    size = struct.pack(">II", 20_000, 20_000)
    header = b"IHDR" + size + image_bytes(4, 4)[24:29]
    bomb = image_bytes(4, 4)[:12] + header + struct.pack(">I", zlib.crc32(header)) + image_bytes(4, 4)[33:]
    with pytest.raises(ValueError, match="too large a one: Image size"):
        fit(bomb, SMALL)
    with pytest.raises(ValueError, match="4x400 pixels is too long for 256 pixels"):
        fit(image_bytes(4, 400), SMALL)


def test_the_rule_is_read_from_the_model_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="reads no images"):
        PictureRule.load(tmp_path)
    half = [0.5, 0.5, 0.5]
    raw = {"patch_size": 14, "image_mean": half, "image_std": half}
    raw["size"] = {"shortest_edge": 3136, "longest_edge": 12544}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(raw))
    assert PictureRule.load(tmp_path) == PictureRule(patch_size=14, merge_size=2, min_pixels=3136, max_pixels=12544)
    with pytest.raises(ValueError, match=r"image_mean must be \[0.5, 0.5, 0.5\], got \[0.48"):
        PictureRule.from_processor({"image_mean": [0.48, 0.46, 0.41]})


def test_a_limit_of_pixels_makes_the_rule_smaller_and_never_larger() -> None:
    assert SMALL.within(100).size(40, 40) == (8, 8) and SMALL.within(100).max_tokens == 6
    assert SMALL.within(10_000) == SMALL
    with pytest.raises(ValueError, match="one token's 4x4, got 10"):
        SMALL.within(10)


def test_digests_tell_pictures_apart() -> None:
    one = picture(1, 2)
    assert one.digest == picture(1, 2).digest != picture(1, 2, seed=1).digest
    assert one.digest != replace(one, grid=(4, 2)).digest


def test_a_message_shows_its_pictures_before_its_text() -> None:
    chat = seeing_chat()
    shown = (picture(1, 2), picture(2, 2, seed=1))
    message = Message(role="tool", content="hello", pictures=shown)
    ids = chat.message_ids(message)
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([*VISION, VIDEO])
    start, image, end = (tokenizer.token_to_id(token) for token in VISION)
    plain = chat.message_ids(replace(message, pictures=()))
    opening = len(plain) - len(chat.text_ids("hello")) - len(chat.closing_ids(ended=False))
    block = (start, image, image, end, start, *[image] * 4, end)
    assert ids == plain[:opening] + block + plain[opening:]
    places = chat.shown(message, after=3)
    assert [place.picture for place in places] == list(shown)
    for place in places:
        assert set(((0,) * 3 + ids)[place.start : place.stop]) == {image}
    assert [place.stop - place.start for place in places] == [2, 4]


def test_markers_of_pictures_inside_a_page_are_text() -> None:
    chat = seeing_chat()
    for marker in (*VISION, VIDEO):
        ids = chat.message_ids(Message(role="tool", content=f"a {marker} b"))
        assert marker not in chat.decode(ids)
        assert marker.replace("_", " ") in chat.decode(ids)
    # A tokenizer that knows no such markers spells them out as any other text.
    assert VISION[1] in tiny_chat().decode(tiny_chat().text_ids(VISION[1]))


def test_a_policy_that_reads_text_only_is_shown_no_picture() -> None:
    with pytest.raises(ValueError, match="reads text only"):
        tiny_chat().message_ids(Message(role="tool", content="", pictures=(picture(1, 1),)))


def answered(tree: TreeBuilder, *ids: int) -> None:
    versions, logp = (0,) * len(ids), (-1.0,) * len(ids)
    tree.add_answer("", (), Completion(token_ids=ids, logp=logp, policy_versions=versions, finish_reason="stop"))


def looking() -> TreeBuilder:
    """9 9 [the picture's 4] 9, answered 1 2; then 8 [its 2] 8, answered 3: 14 tokens."""
    tree = TreeBuilder()
    tree.add_message("user", "", (9, 9, 7, 7, 7, 7, 9), (Shown(picture=picture(2, 2), start=2),))
    answered(tree, 1, 2)
    tree.add_message("tool", "", (8, 7, 7, 8), (Shown(picture=picture(1, 2, seed=1), start=1),))
    answered(tree, 3)
    return tree


def test_a_sample_carries_the_pictures_of_its_path_and_trains_none_of_their_tokens() -> None:
    (sample,) = build_samples(looking().build())
    assert [(place.start, place.stop) for place in sample.pictures] == [(2, 6), (10, 12)]
    for place in sample.pictures:
        assert set(sample.tokens[place.start : place.stop]) == {7}
        assert not sample.loss_mask[place.start : place.stop].any()
    assert sample.num_trained == 3


@pytest.mark.parametrize(
    ("max_tokens", "length", "starts"),
    [
        (14, 14, [2, 10]),
        (13, 13, [1, 9]),
        (12, 12, [0, 8]),
        (11, 8, [4]),
        (9, 8, [4]),
        (8, 8, [4]),
        (7, 7, [3]),
        (3, 2, []),
    ],
)
def test_a_picture_cut_at_the_front_is_left_out_whole(max_tokens: int, length: int, starts: list[int]) -> None:
    (sample,) = build_samples(looking().build(), max_tokens=max_tokens)
    assert len(sample.tokens) == len(sample.loss_mask) == len(sample.node_ids) == length
    assert [place.start for place in sample.pictures] == starts
    whole = build_samples(looking().build())[0]
    np.testing.assert_array_equal(sample.tokens, whole.tokens[-length:])
    np.testing.assert_array_equal(sample.loss_mask, whole.loss_mask[-length:])
    np.testing.assert_array_equal(sample.node_ids, whole.node_ids[-length:])


def test_copies_below_a_rewrite_keep_their_pictures() -> None:
    tree = looking()
    first, *_, last = tree.branch()
    tree.rewrite(first)
    tree.add_message("user", "", (5,))
    for node in tree.nodes[1:4]:
        tree.add_copy(node)
    answered(tree, 4)
    _, second = build_samples(tree.build())
    assert [place.start for place in second.pictures] == [2, 11]
    assert last.pictures == ()


def test_rollouts_with_pictures_come_back_equal_and_store_each_picture_once(tmp_path: Path) -> None:
    tree = looking()
    tree.add_message("tool", "", (7, 7, 7, 7), (Shown(picture=picture(2, 2), start=0),))
    answered(tree, 5)
    rollout = replace(a_rollout(), tree=tree.build(), potentials=(0.0, 1.0))
    folder = save_rollout(tmp_path, rollout)
    assert load_rollout(folder).tree == rollout.tree
    assert sorted(path.name for path in (folder / "pictures").iterdir()) == sorted(
        f"{picture(*size, seed=seed).digest}.png" for *size, seed in ((2, 2, 0), (1, 2, 1))
    )
    assert not (save_rollout(tmp_path, a_rollout("train/3/shop/9")) / "pictures").exists()
