"""The report's plots as inline SVG, drawn from the lines of metrics.jsonl and evaluations.jsonl."""

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Rows = Sequence[Mapping[str, Any]]

_INK, _ACCENT = "#3b4252", "#0b7285"
_PHASES = ("#0b7285", "#e8590c", "#5f3dc4", "#2b8a3e", "#c2255c", "#868e96", "#f2b705")


def draw_curves(rows: Rows, evaluations: Rows) -> list[tuple[str, str]]:
    """(title, SVG text) of each plot that has anything to show."""
    plots = [
        ("Reward of training rollouts", _svg(lambda axes: _reward(axes, rows))),
        ("Held-out score", _svg(lambda axes: _heldout(axes, evaluations))),
        ("Share passing the gates", _svg(lambda axes: _gates(axes, rows))),
        ("Generated tokens a rollout", _svg(lambda axes: _line(axes, rows, "output_tokens_mean", "tokens"))),
        ("Policy entropy", _svg(lambda axes: _line(axes, rows, "entropy", "nats a token"))),
        ("Gap between sampler and trainer", _svg(lambda axes: _gap(axes, rows))),
        ("Seconds by phase", _svg(lambda axes: _seconds(axes, rows))),
    ]
    return [(title, svg) for title, svg in plots if svg]


def _svg(draw: Any) -> str:
    """One figure, or nothing when `draw` found no data (it then returns False)."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    style: Any = {"svg.hashsalt": "report", "svg.fonttype": "none", "font.size": 9, "axes.edgecolor": _INK}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(4.6, 2.6))
        # By hand: a layout engine draws everything twice.
        figure.subplots_adjust(left=0.14, right=0.98, bottom=0.18, top=0.96)
        axes = figure.add_subplot()
        if not draw(axes):
            return ""
        axes.set_xlabel("step")
        axes.ticklabel_format(axis="y", useOffset=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        out = io.StringIO()
        FigureCanvasSVG(figure)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    # Without the XML prolog (it names a DTD's address) and the empty metadata the page stays self-contained.
    text = out.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def column(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    """Steps and values where `name` is a finite number; `a/b` looks into group `a`."""
    steps, values = [], []
    for row in rows:
        value: Any = row
        for part in name.split("/"):
            value = value.get(part) if isinstance(value, Mapping) else None
        if isinstance(value, int | float) and math.isfinite(value):
            steps.append(int(row["step"]))
            values.append(float(value))
    return steps, values


def _line(axes: "Axes", rows: Rows, name: str, label: str) -> bool:
    steps, values = column(rows, name)
    if not steps:
        return False
    axes.plot(steps, values, color=_ACCENT, marker="o", markersize=3, linewidth=1.4)
    axes.set_ylabel(label)
    return True


def _reward(axes: "Axes", rows: Rows) -> bool:
    steps, mean = column(rows, "reward_mean")
    if not steps:
        return False
    spread_steps, spread = column(rows, "reward_std")
    if spread_steps == steps:
        low = [max(0.0, m - s) for m, s in zip(mean, spread, strict=True)]
        high = [min(1.0, m + s) for m, s in zip(mean, spread, strict=True)]
        axes.fill_between(steps, low, high, color=_ACCENT, alpha=0.15, linewidth=0)
    axes.plot(steps, mean, color=_ACCENT, marker="o", markersize=3, linewidth=1.4)
    axes.set_ylim(0, 1)
    axes.set_ylabel("mean, band ± 1 std")
    return True


def _heldout(axes: "Axes", evaluations: Rows) -> bool:
    if not _line(axes, evaluations, "reward_mean", "mean reward"):
        return False
    axes.set_ylim(0, 1)
    return True


def _gates(axes: "Axes", rows: Rows) -> bool:
    found = False
    for gate, color in zip(("build", "entry", "render"), _PHASES, strict=False):
        steps, values = column(rows, f"gates/{gate}")
        if steps:
            axes.plot(steps, values, color=color, label=gate, linewidth=1.4)
            found = True
    if found:
        axes.set_ylim(0, 1.03)
        axes.set_ylabel("share of rollouts")
        axes.legend(frameon=False, loc="lower right")
    return found


def _gap(axes: "Axes", rows: Rows) -> bool:
    found = False
    for name, label, color in (("sampler_gap_mean", "mean", _ACCENT), ("sampler_gap_max", "largest", _PHASES[1])):
        steps, values = column(rows, name)
        if steps:
            axes.plot(steps, values, color=color, label=label, linewidth=1.4)
            found = True
    if found:
        axes.set_ylabel("|difference|, nats")
        axes.legend(frameon=False)
    return found


def _seconds(axes: "Axes", rows: Rows) -> bool:
    timed = [row for row in rows if row.get("seconds")]
    names = list(dict.fromkeys(name for row in timed for name in row["seconds"]))
    if not names:
        return False
    steps = [int(row["step"]) for row in timed]
    bottom = [0.0] * len(steps)
    for name, color in zip(names, _PHASES * 3, strict=False):
        heights = [float(row["seconds"].get(name) or 0.0) for row in timed]
        axes.bar(steps, heights, bottom=bottom, label=name, color=color, width=0.85)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, fontsize=7, ncols=2)
    return True
