"""report.html: what a run did, on one page that needs nothing else.

Everything comes from files of the run folder, so a report can be written again after a resume.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from wc_jax import atomic
from wc_jax.curves import draw_curves
from wc_jax.run_folder import RunFolder

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One final page of a held-out rollout, with what was asked for."""

    label: str
    task_id: str
    brief: str
    reward: float
    reason: str
    """Why there is no picture, or what was wrong; may be empty."""
    screenshot: bytes
    """PNG; empty when the page did not render."""

    @property
    def data_uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.screenshot).decode()


def write_report(run: RunFolder, *, num_steps: int, title: str = "") -> Path:
    """Writes RUN_DIR/report.html in one move and returns its path. Raises OSError."""
    rows = read_rows(run.metrics)
    evaluations = read_rows(run.evaluations)
    page = Environment(loader=PackageLoader("wc_jax"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    text = page.get_template("report.html").render(
        title=title or run.path.resolve().name,
        sentences=summarize(rows, evaluations, num_steps=num_steps),
        curves=draw_curves(rows, evaluations),
        pages=load_pages(run.pages, evaluations),
        evaluations=evaluations,
        config=run.config.read_text() if run.config.exists() else "",
    )
    atomic.write_text(run.report, text)
    return run.report


def read_rows(path: Path) -> list[Row]:
    """The objects of a JSON-lines file; none if there is no file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def summarize(rows: Sequence[Row], evaluations: Sequence[Row], *, num_steps: int) -> list[str]:
    """What happened, in sentences.

    >>> summarize([{"step": 1}], [{"step": 0, "reward_mean": 0.25, "num_rollouts": 8}], num_steps=2)[1]
    'Held-out mean reward at step 0: 0.250 over 8 rollouts. There is no later evaluation yet.'
    """
    done = int(rows[-1]["step"]) if rows else 0
    sentences = [f"{done} of {num_steps} steps are done."]
    scored = [row for row in evaluations if row.get("reward_mean") is not None]
    if len(scored) == 1:
        sentences.append(
            f"Held-out mean reward at step {scored[0]['step']}: {scored[0]['reward_mean']:.3f} over"
            f" {scored[0]['num_rollouts']} rollouts. There is no later evaluation yet."
        )
    elif scored:
        first, last = scored[0], scored[-1]
        change = last["reward_mean"] - first["reward_mean"]
        moved = "rose" if change > 0 else "fell" if change < 0 else "stayed"
        sentences.append(
            f"Held-out mean reward {moved} from {first['reward_mean']:.3f} (step {first['step']}) to"
            f" {last['reward_mean']:.3f} (step {last['step']}), {change:+.3f},"
            f" over {last['num_rollouts']} rollouts each time."
        )
    failed = sum(int(row.get("num_failed") or 0) for row in rows)
    if failed:
        sentences.append(f"{failed} rollouts were lost to the infrastructure and are in no statistic.")
    seconds = sum(sum(row["seconds"].values()) for row in rows if row.get("seconds"))
    if seconds:
        sentences.append(f"The steps took {seconds / 60:.1f} minutes together.")
    return sentences


def save_pages(folder: Path, step: int, shown: Sequence[Shown]) -> None:
    """Keeps the pages of one evaluation as `<label>` PNG files and one JSON file, `<step>.json` last."""
    folder.mkdir(parents=True, exist_ok=True)
    described = []
    for page in shown:
        name = f"{step}.{page.label}.png"
        atomic.write_bytes(folder / name, page.screenshot)
        described.append(
            {
                "label": page.label,
                "task_id": page.task_id,
                "brief": page.brief,
                "reward": page.reward,
                "reason": page.reason,
                "file": name,
            }
        )
    atomic.write_text(folder / f"{step}.json", json.dumps(described, indent=1))


def load_pages(folder: Path, evaluations: Sequence[Row]) -> list[Shown]:
    """The pages of the newest evaluation that left any."""
    for row in reversed(evaluations):
        index = folder / f"{row['step']}.json"
        if index.exists():
            entries = json.loads(index.read_text())
            return [Shown(screenshot=(folder / entry.pop("file")).read_bytes(), **entry) for entry in entries]
    return []
