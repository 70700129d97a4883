"""What a sandbox is: a place that runs untrusted commands and holds one project.

This package is a leaf: it imports nothing of ours. Backends implement `Sandbox`; everybody else
takes a `SandboxFactory` and never asks which backend it got.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

Files = Mapping[str, bytes]
"""A project as data: relative POSIX path -> content. No absolute paths, no `..`, no links."""


class SandboxError(RuntimeError):
    """The sandbox itself failed (could not start, died, refused a path). Never a verdict on the project."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one sandbox may use. Reaching a limit ends the command, never the host."""

    memory_bytes: int = 1536 << 20
    num_processes: int = 256
    cpus: float = 2.0
    disk_bytes: int = 256 << 20
    max_output_bytes: int = 256 << 10
    """Output kept per command; the rest is drained and counted in `ExecResult.dropped_bytes`."""


@dataclass(frozen=True, kw_only=True)
class ExecResult:
    """How one command ended."""

    exit_code: int | None
    """None when the command was killed at its time limit."""
    output: str
    """Standard output and error together, in the order they came; undecodable bytes replaced."""
    timed_out: bool
    dropped_bytes: int
    seconds: float


class Sandbox(Protocol):
    """One isolated project folder with commands. Every method may raise `SandboxError`."""

    @property
    def sandbox_id(self) -> str: ...

    def exec(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Runs `argv` with no standard input; the whole process tree is gone when this returns."""

    def read(self, path: str, *, max_bytes: int = 4 << 20) -> bytes:
        """One regular file of the project. FileNotFoundError if absent; links out are refused."""

    def write(self, path: str, data: bytes) -> None:
        """Creates or replaces one file, parents included."""

    def list(self, path: str = ".") -> list[str]:
        """All regular files below `path`, sorted, relative to the project; dependencies left out."""

    def snapshot(self, path: str = ".") -> dict[str, bytes]:
        """`list` with contents, as data."""

    def close(self) -> None:
        """Kills what runs, frees what was held. Safe to call twice."""


class SandboxFactory(Protocol):
    """Makes a sandbox that holds `files`, with `node_modules` (if given) visible and read-only."""

    def __call__(self, files: Files, *, node_modules: Path | None = None) -> Sandbox: ...
