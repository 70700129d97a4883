"""Reads a project folder as data: relative path -> bytes. Links are never followed."""

import os
from pathlib import Path

MAX_FILE_BYTES = 16 << 20
MAX_TOTAL_BYTES = 64 << 20
_LEFT_OUT = {"node_modules", ".git", "dist"}


class ProjectError(ValueError):
    """A path that is no project; the text says why."""


def read_project(folder: Path) -> dict[str, bytes]:
    """All regular files below `folder` but dependencies, build output and version control.

    ProjectError when it is no folder, empty, or too large to be a web page's sources.
    """
    if not folder.exists():
        raise ProjectError(f"no such project folder: {folder}")
    if not folder.is_dir():
        raise ProjectError(f"a project is a folder, {folder} is a file")
    files: dict[str, bytes] = {}
    total = 0
    for parent, folders, names in os.walk(folder, onerror=_refuse):
        at_top = Path(parent) == folder
        left_out = _LEFT_OUT if at_top else {"node_modules"}
        folders[:] = sorted(name for name in folders if name not in left_out)
        for name in sorted(names):
            path = Path(parent) / name
            if path.is_symlink() or not path.is_file():
                continue
            size = path.stat().st_size
            total += size
            if size > MAX_FILE_BYTES or total > MAX_TOTAL_BYTES:
                raise ProjectError(f"{folder} is too large to be a project (at {path})")
            try:
                files[path.relative_to(folder).as_posix()] = path.read_bytes()
            except OSError as error:
                raise ProjectError(f"cannot read {path}: {error.strerror}") from error
    if not files:
        raise ProjectError(f"{folder} holds no files")
    return files


def _refuse(error: OSError) -> None:
    raise ProjectError(f"cannot read {error.filename}: {error.strerror}") from error
