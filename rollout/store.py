"""Rollouts on disk: one folder each, complete or not there at all.

RUN/rollouts/step_00003/train/<task_id>/<index>/
    summary.json      what a list needs
    rollout.json      everything but bytes; values that are not finite stand as null
    final.png         the verifier's screenshot, when there is one
    files/            the final project
    pictures/         what the policy was shown, each once, by the digest of its content
    advantages.json   one value a segment, added once the group is known
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

from rollout.types import Node, Picture, Rollout, Shown, Stop, Tree, Turn
from verifier.tasks import task_from_json, task_to_json
from verifier.types import Gate, Report

SCREENSHOT = "final.png"
"""The verifier's picture of the final page, in a rollout's folder."""

PICTURES = "pictures"
"""The folder of what the policy was shown, in a rollout's folder."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One line of a list of rollouts."""

    key: str
    """Folder below `RUN/rollouts`, POSIX."""
    rollout_id: str
    phase: str
    step: int
    task_id: str
    index: int
    stop: str
    reward: float | None
    """None when there is no report."""
    failed_gates: tuple[str, ...]
    num_turns: int
    num_segments: int
    num_generated_tokens: int
    num_tool_errors: int


def rollout_folder(run_dir: Path, rollout_id: str) -> Path:
    """Where a rollout of that id lives; ids are `<phase>/<step>/<task_id>/<index>`.

    >>> rollout_folder(Path("runs/a"), "train/3/shop/0").as_posix()
    'runs/a/rollouts/step_00003/train/shop/0'
    """
    phase, step, task_id, index = _parts(rollout_id)
    return run_dir / "rollouts" / f"step_{step:05d}" / _safe(phase) / _safe(task_id) / str(index)


def save_rollout(run_dir: Path, rollout: Rollout) -> Path:
    """Writes a rollout's folder in one rename; one that was there before is replaced.

    Raises:
        ValueError: the id has another form, or a project path leads out of the project.
        OSError: the disk refused; nothing half-written is left behind.
    """
    folder = rollout_folder(run_dir, rollout.rollout_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".writing-", dir=folder.parent))
    try:
        _write(temporary / "new", rollout)
        if folder.exists():
            os.rename(folder, temporary / "old")
        os.rename(temporary / "new", folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def save_advantages(run_dir: Path, rollout_id: str, advantages: Sequence[float]) -> None:
    """Adds the advantage of each segment (0 for one that is not trained) to a saved rollout."""
    _write_json(rollout_folder(run_dir, rollout_id) / "advantages.json", [_finite(value) for value in advantages])


def load_advantages(folder: Path) -> list[float] | None:
    """The advantage of each segment, or None when none were stored."""
    path = folder / "advantages.json"
    return [_number(value) for value in json.loads(path.read_bytes())] if path.is_file() else None


def load_rollout(folder: Path) -> Rollout:
    """What `save_rollout` wrote. Raises FileNotFoundError, or ValueError for a broken file."""
    data = json.loads((folder / "rollout.json").read_bytes())
    shot = folder / SCREENSHOT
    root = folder / "files"
    paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    report = data["report"] and {**data["report"], "screenshot": shot.read_bytes() if shot.is_file() else b""}
    return Rollout(
        **{
            **data,
            "task": task_from_json(data["task"]),
            "tree": Tree(
                nodes=tuple(_node(node, folder) for node in data["tree"]["nodes"]),
                leaves=tuple(data["tree"]["leaves"]),
            ),
            "stop": Stop(data["stop"]),
            "potentials": tuple(map(_number, data["potentials"])),
            "turns": tuple(Turn(**turn) for turn in data["turns"]),
            "report": report and Report(**{**report, "gates": tuple(Gate(**gate) for gate in report["gates"])}),
            "files": {path.relative_to(root).as_posix(): path.read_bytes() for path in paths},
        }
    )


def list_rollouts(run_dir: Path) -> list[Summary]:
    """All complete rollouts of a run, ordered by step, phase, task and index.

    A run that is being written can be listed: what is unfinished or unreadable is left out.
    """
    found = list(_summaries(run_dir / "rollouts"))
    return sorted(found, key=lambda summary: (summary.step, summary.phase, summary.task_id, summary.index))


def _summaries(root: Path) -> Iterator[Summary]:
    for path in root.glob("step_*/*/*/*/summary.json"):
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            continue
        try:
            data = json.loads(path.read_bytes())
            key = path.parent.relative_to(root).as_posix()
            yield Summary(**{**data, "key": key, "failed_gates": tuple(data["failed_gates"])})
        except (OSError, ValueError, TypeError, KeyError):
            continue


def _write(folder: Path, rollout: Rollout) -> None:
    folder.mkdir()
    _write_json(folder / "rollout.json", _to_json(rollout))
    if rollout.report is not None and rollout.report.screenshot:
        (folder / SCREENSHOT).write_bytes(rollout.report.screenshot)
    shown = {item.picture.digest: item.picture for node in rollout.tree.nodes for item in node.pictures}
    if shown:
        (folder / PICTURES).mkdir()
    for digest, picture in shown.items():
        (folder / PICTURES / f"{digest}.png").write_bytes(picture.png)
    for name, content in rollout.files.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise ValueError(f"a project's paths are relative and stay inside it, got {name!r}")
        (folder / "files" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "files" / path).write_bytes(content)
    _write_json(folder / "summary.json", _summary(rollout))


def _summary(rollout: Rollout) -> dict[str, Any]:
    phase, step, task_id, index = _parts(rollout.rollout_id)
    gates = rollout.report.gates if rollout.report else ()
    return {
        "rollout_id": rollout.rollout_id,
        "phase": phase,
        "step": step,
        "task_id": task_id,
        "index": index,
        "stop": rollout.stop.value,
        "reward": _finite(rollout.reward),
        "failed_gates": [gate.name for gate in gates if not gate.ok],
        "num_turns": len(rollout.turns),
        "num_segments": len(rollout.tree.leaves),
        "num_generated_tokens": sum(node.num_generated for node in rollout.tree.nodes if node.origin_id is None),
        "num_tool_errors": rollout.num_tool_errors,
    }


def _to_json(rollout: Rollout) -> dict[str, Any]:
    report = rollout.report
    return {
        "rollout_id": rollout.rollout_id,
        "task": task_to_json(rollout.task),
        "tree": {
            "nodes": [_node_to_json(node) for node in rollout.tree.nodes],
            "leaves": rollout.tree.leaves,
        },
        "stop": rollout.stop.value,
        "potentials": [_finite(value) for value in rollout.potentials],
        "turns": [vars(turn) for turn in rollout.turns],
        "report": report
        and {
            name: [vars(gate) for gate in value] if name == "gates" else value
            for name, value in _plain(report).items()
            if name != "screenshot"
        },
        "error": rollout.error,
        "num_tool_errors": rollout.num_tool_errors,
    }


def _plain(value: Any) -> dict[str, Any]:
    return {name: dict(item) if isinstance(item, Mapping) else item for name, item in vars(value).items()}


def _node_to_json(node: Node) -> dict[str, Any]:
    pictures = [
        {"digest": p.digest, "grid": p.grid, "merge_size": p.merge_size, "start": shown.start}
        for shown in node.pictures
        for p in (shown.picture,)
    ]
    return {**vars(node), "logp": [_finite(value) for value in node.logp], "pictures": pictures}


def _node(data: dict[str, Any], folder: Path) -> Node:
    arrays = {name: tuple(data[name]) for name in ("token_ids", "policy_versions")}
    pictures = tuple(
        Shown(
            picture=Picture(
                png=(folder / PICTURES / f"{item['digest']}.png").read_bytes(),
                grid=(item["grid"][0], item["grid"][1]),
                merge_size=item["merge_size"],
            ),
            start=item["start"],
        )
        for item in data.get("pictures", ())
    )
    return Node(**{**data, **arrays, "logp": tuple(map(_number, data["logp"])), "pictures": pictures})


def _parts(rollout_id: str) -> tuple[str, int, str, int]:
    phase, _, rest = rollout_id.partition("/")
    step, _, rest = rest.partition("/")
    task_id, _, index = rest.rpartition("/")
    if not (phase and step.isdecimal() and task_id and index.isdecimal()):
        raise ValueError(
            f"a rollout id is <phase>/<step>/<task_id>/<index>, for example train/3/shop/0, got {rollout_id!r}"
        )
    return phase, int(step), task_id, int(index)


def _safe(name: str) -> str:
    """A file name for any text: no separators, nothing hidden, nothing that leads up."""
    quoted = quote(name, safe="")
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _write_json(path: Path, data: Any) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(json.dumps(data, allow_nan=False, separators=(",", ":")))
    os.replace(temporary, path)
