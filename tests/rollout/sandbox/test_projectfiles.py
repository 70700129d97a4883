"""Laws of paths and files that need no sandbox."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.sandbox.projectfiles import MAX_SNAPSHOT_FILE_BYTES, ProjectFiles, split_path

PATHS = st.text(st.sampled_from("./ab\0~\\ é"), max_size=12)


@given(PATHS)
def test_an_accepted_path_stays_below(path: str) -> None:
    try:
        parts = split_path(path)
    except ValueError:
        assert "\0" in path or path.startswith("/") or ".." in path.split("/")
    else:
        root = "/project"
        assert os.path.normpath(os.path.join(root, *parts)) == os.path.normpath(f"{root}/{path}")
        assert os.path.normpath(f"{root}/{path}").startswith(root)


def test_writing_replaces_whole_files_and_leaves_no_part(tmp_path: Path) -> None:
    files = ProjectFiles(tmp_path)
    files.write("a/b.txt", b"long old text")
    files.write("a/b.txt", b"new")
    (tmp_path / "folder" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        files.write("folder", b"no")
    assert files.snapshot() == {"a/b.txt": b"new"}
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b.txt", "folder", "x"]


def test_a_hard_link_elsewhere_keeps_its_content(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("host")
    project = tmp_path / "project"
    project.mkdir()
    os.link(outside, project / "a.txt")
    ProjectFiles(project).write("a.txt", b"agent")
    assert outside.read_text() == "host"


def test_a_snapshot_is_bounded(tmp_path: Path) -> None:
    for number in range(6):
        with open(tmp_path / f"{number}.bin", "wb") as file:
            file.truncate(MAX_SNAPSHOT_FILE_BYTES - 1 if number else MAX_SNAPSHOT_FILE_BYTES + 1)
    assert sorted(ProjectFiles(tmp_path).snapshot()) == ["1.bin", "2.bin", "3.bin", "4.bin"]
