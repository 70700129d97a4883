"""The report: one page, self-contained, that says in words what happened."""

import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from wc_jax.report import Shown, load_pages, save_pages, summarize, write_report
from wc_jax.run_folder import RunFolder


def png(color: str) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (40, 30), color).save(out, "PNG")
    return out.getvalue()


def fill(run: RunFolder) -> None:
    run.path.mkdir(exist_ok=True)
    rows = [
        {
            "step": step,
            "reward_mean": 0.2 + 0.1 * step,
            "reward_std": 0.1,
            "gates": {"build": 0.9, "entry": 0.9, "render": 0.8},
            "output_tokens_mean": 200.0,
            "entropy": 0.4 if step != 2 else None,
            "sampler_gap_mean": 1e-5,
            "sampler_gap_max": 1e-4,
            "seconds": {"rollouts": 20.0, "update": 10.0},
            "num_failed": 1 if step == 3 else 0,
        }
        for step in (1, 2, 3)
    ]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    evaluations = [
        {"step": 0, "reward_mean": 0.25, "reward_std": 0.1, "gates_passed": 1.0, "num_rollouts": 8},
        {"step": 3, "reward_mean": 0.5, "reward_std": 0.1, "gates_passed": 1.0, "num_rollouts": 8},
    ]
    run.evaluations.write_text("".join(json.dumps(row) + "\n" for row in evaluations))
    save_pages(
        run.pages,
        3,
        [
            Shown(label="best", task_id="t1", brief="A <b>bakery</b>", reward=0.9, reason="", screenshot=png("green")),
            Shown(label="worst", task_id="t2", brief="A shop", reward=0.0, reason="build failed", screenshot=b""),
        ],
    )


class Outline(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href")]


def test_the_page_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    run = RunFolder(path=tmp_path / "bakeries")
    fill(run)
    text = write_report(run, num_steps=3).read_text()
    outline = Outline()
    outline.feed(text)
    assert outline.tags.count("svg") == 7
    assert [address for address in outline.addresses if not address.startswith(("#", "data:image/png"))] == []
    assert not re.search(r"url\((?!#)|@import|<script", text)
    assert "rose from 0.250 (step 0) to 0.500 (step 3), +0.250, over 8 rollouts" in text
    assert "A &lt;b&gt;bakery&lt;/b&gt;" in text and "No picture. build failed" in text
    assert [path.name for path in run.path.iterdir() if "partial" in path.name] == []


def test_pages_come_back_as_saved(tmp_path: Path) -> None:
    run = RunFolder(path=tmp_path)
    fill(run)
    best, worst = load_pages(run.pages, [{"step": 0}, {"step": 3}])
    assert best.screenshot == png("green") and best.brief == "A <b>bakery</b>"
    assert worst.screenshot == b"" and worst.reward == 0.0


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    text = write_report(RunFolder(path=tmp_path), num_steps=3).read_text()
    assert "0 of 3 steps are done" in text and "<svg" not in text


def test_sentences_say_fell_and_lost() -> None:
    rows = [{"step": 4, "num_failed": 2, "seconds": {"update": 90.0}}]
    evaluations = [
        {"step": 0, "reward_mean": 0.5, "num_rollouts": 4},
        {"step": 4, "reward_mean": 0.4, "num_rollouts": 4},
    ]
    text = " ".join(summarize(rows, evaluations, num_steps=4))
    assert "fell from 0.500 (step 0) to 0.400 (step 4), -0.100" in text
    assert "2 rollouts were lost" in text and "1.5 minutes" in text
