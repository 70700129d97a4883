"""Reports on disk: readable JSON with the screenshot as a PNG beside it."""

import json
import os
from pathlib import Path
from typing import Any

from verifier.types import Gate, Report


def report_to_json(report: Report, *, screenshot: str | None = None) -> dict[str, Any]:
    """Everything but the picture, of which only the file name `screenshot` is kept."""
    return {
        "task_id": report.task_id,
        "reward": report.reward,
        "penalty": report.penalty,
        "gates": [{"name": g.name, "ok": g.ok, "reason": g.reason} for g in report.gates],
        "f_det": report.f_det,
        "f_vlm": report.f_vlm,
        "judge": "absent" if report.f_vlm is None else "present",
        "requirement_values": dict(report.requirement_values),
        "seconds": {name: round(value, 4) for name, value in report.seconds.items()},
        "screenshot": screenshot,
    }


def report_from_json(given: dict[str, Any], *, screenshot: bytes = b"") -> Report:
    """The inverse of `report_to_json`. ValueError that names a field which is missing."""
    try:
        return Report(
            task_id=given["task_id"],
            reward=given["reward"],
            gates=tuple(Gate(**gate) for gate in given["gates"]),
            f_det=given["f_det"],
            f_vlm=given["f_vlm"],
            requirement_values=given["requirement_values"],
            penalty=given["penalty"],
            screenshot=screenshot,
            seconds=given["seconds"],
        )
    except KeyError as error:
        raise ValueError(f"this is no verifier report: it has no field {error}") from error


def write_atomically(path: Path, data: bytes) -> None:
    """Readers see the old file or the whole new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_report(path: Path, report: Report) -> None:
    """Writes `path` and, if there is a picture, the PNG of the same name beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = path.with_suffix(".png") if report.screenshot else None
    if picture is not None:
        write_atomically(picture, report.screenshot)
    given = report_to_json(report, screenshot=picture.name if picture is not None else None)
    write_atomically(path, (json.dumps(given, indent=2) + "\n").encode())


def read_report(path: Path) -> Report:
    """Reads what `write_report` wrote. ValueError for a file that is no report."""
    given = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict):
        raise ValueError(f"{path} is no verifier report: needs a JSON object")
    name = given.get("screenshot")
    # Only the file beside it: a report from elsewhere must not make us read other files.
    picture = path.parent / Path(name).name if name else None
    data = picture.read_bytes() if picture is not None and picture.is_file() else b""
    return report_from_json(given, screenshot=data)
