"""The order that the pixel leg must keep, on pages drawn here: what is worse looks worse."""

import io
import json

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

from verifier.__main__ import main
from verifier.pixels import compare

WIDTH, HEIGHT = 720, 1500
WORDS = "garden bread morning open every day from seven until six come and visit our small bakery by the river".split()


def draw(seed: int, *, accent: str = "#2b6", has_pictures: bool = True) -> np.ndarray:
    """A page with a header, paragraphs, buttons and pictures; its words and places depend on the seed."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (WIDTH, HEIGHT), "#fcfcf8")
    pen = ImageDraw.Draw(image)
    font, large = ImageFont.load_default(15), ImageFont.load_default(34)
    pen.rectangle((0, 0, WIDTH, 70), fill=accent)
    pen.text((24, 18), " ".join(rng.choice(WORDS, 2)).title(), "white", large)
    y = 100
    while y < HEIGHT - 150:
        left = int(rng.integers(20, 80))
        pen.text((left, y), " ".join(rng.choice(WORDS, 3)).title(), "#222", large)
        for line in range(3):
            pen.text((left, y + 46 + 22 * line), " ".join(rng.choice(WORDS, 9)), "#333", font)
        if has_pictures:
            grain = rng.integers(0, 256, (8, 12, 3), np.uint8)
            image.paste(Image.fromarray(grain).resize((150, 96), Image.Resampling.BICUBIC), (500, y + 8))
        pen.rounded_rectangle((left, y + 118, left + 120, y + 146), 6, fill=accent)
        y += int(rng.integers(170, 210))
    return np.asarray(image)


def draw_cards(seed: int) -> np.ndarray:
    """Another design: three columns of cards on a dark ground."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (WIDTH, HEIGHT), "#16181d")
    pen = ImageDraw.Draw(image)
    font = ImageFont.load_default(20)
    for y in range(30, HEIGHT - 200, int(rng.integers(190, 230))):
        for column in range(3):
            x = 20 + column * 233
            pen.rounded_rectangle((x, y, x + 213, y + 160), 12, fill="#fff")
            for line in range(4):
                pen.text((x + 14, y + 14 + 34 * line), " ".join(rng.choice(WORDS, 2)), "#06c", font)
    return np.asarray(image)


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def score(candidate: np.ndarray, reference: np.ndarray | None = None) -> float:
    return compare(png(PAGE if reference is None else reference), png(candidate)).score


def resized(pixels: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BICUBIC))


def blurred(pixels: np.ndarray) -> np.ndarray:
    return resized(resized(pixels, WIDTH * 2 // 3, HEIGHT * 2 // 3), WIDTH, HEIGHT)


def cut(pixels: np.ndarray, share: float) -> np.ndarray:
    """The same with nothing in its lower part."""
    found = pixels.copy()
    found[int(HEIGHT * share) :] = pixels[90, 2]
    return found


PAGE = draw(0)
TALLER = np.concatenate([PAGE, PAGE[-1:]])
MOVED = np.concatenate([np.broadcast_to(PAGE[90, 2], (20, WIDTH, 3)), PAGE])


def test_what_is_worse_is_worth_less() -> None:
    values = [score(x) for x in (PAGE, TALLER, blurred(PAGE), MOVED, cut(PAGE, 0.85), cut(PAGE, 0.5))]
    assert values == sorted(values, reverse=True) and len(set(values)) == len(values)
    assert values[0] == 1.0 and values[1] > 0.99 and values[3] >= 0.9
    assert 0.3 <= values[5] <= 0.6


def test_a_page_half_as_long_again_or_stretched_is_no_copy() -> None:
    stretched = score(resized(PAGE, WIDTH, round(HEIGHT * 1.18)))
    assert 0.5 <= stretched <= 0.75
    assert 0.5 <= score(resized(PAGE, WIDTH, round(HEIGHT / 1.18))) <= 0.75
    assert score(np.concatenate([PAGE, draw(5)])) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_another_page_is_worth_little(seed: int) -> None:
    assert score(draw_cards(seed)) <= 0.15
    assert score(PAGE, reference=draw_cards(seed)) <= 0.15


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_other_words_and_pictures_in_the_same_design_are_worth_about_half_at_most(seed: int) -> None:
    assert score(draw(seed)) < 0.55


@pytest.mark.parametrize("color", ["white", "#2b6", "#fcfcf8", "black"])
def test_a_blank_page_is_worth_nothing(color: str) -> None:
    blank = np.asarray(Image.new("RGB", (WIDTH, HEIGHT), color))
    assert score(blank) <= 0.05
    assert score(PAGE, reference=blank) <= 0.05
    assert score(blank, reference=blank) == 1.0
    other = np.asarray(Image.new("RGB", (WIDTH, HEIGHT), "#b34"))
    assert score(other, reference=blank) == 0.0


def test_a_banner_that_pushes_the_rest_down_costs_a_break_and_no_more() -> None:
    banner = np.broadcast_to(np.array([40, 60, 160], np.uint8), (60, WIDTH, 3))
    assert 0.65 < score(np.concatenate([PAGE[:90], banner, PAGE[90:]])) < 0.97


def test_the_words_in_plain_text_are_not_the_page() -> None:
    """web.md, case 1."""
    image = Image.new("RGB", (WIDTH, HEIGHT), "white")
    ImageDraw.Draw(image).text((8, 8), "\n".join([" ".join(WORDS)] * 20), "black", ImageFont.load_default(15))
    assert score(np.asarray(image)) < 0.3


def test_other_colors_show() -> None:
    assert score(255 - PAGE) < 0.3
    gray = np.repeat(PAGE.mean(axis=2, keepdims=True).astype(np.uint8), 3, axis=2)
    assert score(gray) < 0.97


def test_the_candidate_is_scaled_to_the_references_width() -> None:
    """web.md, cases 33 and 35."""
    double = resized(PAGE, WIDTH * 2, HEIGHT * 2)
    found = compare(png(PAGE), png(double))
    assert found.score > 0.97 and (found.reference_height, found.candidate_height) == (HEIGHT, HEIGHT)
    assert compare(png(PAGE[:20]), png(PAGE[:21])).score > 0.95, "less than a block"
    assert compare(png(PAGE), png(PAGE[:1, :1])).score <= 0.05


def test_ssim_is_that_of_the_papers() -> None:
    assert compare(png(PAGE), png(PAGE)).ssim == pytest.approx(1.0, abs=1e-6)
    assert 0.2 < compare(png(PAGE), png(MOVED)).ssim < 0.9, "it does not know of moves"


def test_transparency_lies_on_white() -> None:
    clear = np.concatenate([PAGE, np.zeros((HEIGHT, WIDTH, 1), np.uint8)], axis=2)
    assert compare(png(PAGE), png(clear)).score == 0.0


def test_the_command_line(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    a, b, text = tmp_path / "a.png", tmp_path / "b.png", tmp_path / "c.png"
    a.write_bytes(png(PAGE))
    b.write_bytes(png(MOVED))
    text.write_text("no picture")
    assert main(["compare", str(a), str(b)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"score", "ssim", "reference_height", "candidate_height"} and found["score"] > 0.9
    assert main(["compare", str(a), str(text)]) == 2
    assert "the candidate is no picture that can be read" in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "none.png"), str(a)]) == 2
    assert "no picture at" in capsys.readouterr().err
