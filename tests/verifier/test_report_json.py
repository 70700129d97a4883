import json
from pathlib import Path

import pytest

from verifier.report_json import read_report, write_report
from verifier.types import Gate, Report

REPORT = Report(
    task_id="t",
    reward=0.5,
    gates=(Gate(name="build", ok=True), Gate(name="render", ok=False, reason="blank “page”")),
    f_det=0.75,
    f_vlm=None,
    requirement_values={"menu": 1.0},
    penalty=0.1,
    screenshot=b"\x89PNG...",
    seconds={"build": 0.5},
)


def test_round_trip_with_the_picture_beside(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    write_report(path, REPORT)
    assert read_report(path) == REPORT
    assert sorted(p.name for p in path.parent.iterdir()) == ["report.json", "report.png"]
    assert json.loads(path.read_text())["judge"] == "absent"


def test_what_is_no_report_is_refused_and_no_other_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(ValueError, match="no verifier report"):
        read_report(tmp_path / "a.json")
    write_report(tmp_path / "r.json", REPORT)
    given = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps(given | {"screenshot": "/etc/hostname"}))
    assert read_report(tmp_path / "r.json").screenshot == b""
