"""Files that are there whole or not at all, whatever moment a process is killed at."""

import os
from pathlib import Path


def write_bytes(path: Path, data: bytes) -> None:
    """Replaces `path` in one move; a reader sees the old content or the new one. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`write_bytes` in UTF-8."""
    write_bytes(path, text.encode())
