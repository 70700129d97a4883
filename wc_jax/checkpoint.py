"""Orbax checkpoints that are whole or absent, and that restore bit for bit.

    checkpoints/step_7/state/       Orbax: parameters, optimizer state, step
    checkpoints/step_7/position.json   everything else that a resume must know; written last

A checkpoint is written beside its place and moved there in one rename, so a kill or a full disk at any
moment leaves the older ones as they were. Anything not named step_<number> is ignored.

Several processes write one checkpoint together, each its own part, into a folder that all of them see;
process 0 opens and moves it. It can be restored by another number of processes, on another mesh.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp

from wc_jax import atomic
from wc_jax.processes import ALONE, Processes

State = TypeVar("State")
Found = TypeVar("Found")
_NAME = re.compile(r"step_(\d+)")
_POSITION = "position.json"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read; the text says what to do. Older ones are intact."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """Where a run stands, besides its arrays."""

    step: int
    """Updates done; metrics.jsonl counts up to this one."""
    seed: int
    """The run's seed: with the step it gives all randomness of what follows."""
    num_tasks_dealt: int
    """The data cursor."""
    policy_version: int
    """Version of the published weights."""


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """The checkpoints of one run, newest `keep` kept."""

    folder: Path
    keep: int = 2
    processes: Processes = ALONE
    """All of them must save and restore together."""

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep must be 1 or more, got {self.keep}")

    def steps(self) -> list[int]:
        """Steps that can be restored, in numeric order."""
        found = (_NAME.fullmatch(path.parent.name) for path in self.folder.glob(f"*/{_POSITION}"))
        return sorted(int(match[1]) for match in found if match)

    def save(self, state: Any, position: Position) -> None:
        """Writes, then removes those too old. Raises `CheckpointError`, with the older ones intact."""
        partial = self.folder / f".step_{position.step}.partial"
        try:
            if self.processes.is_first:
                self._sweep()
                partial.mkdir(parents=True)
            self.processes.wait(what="an open checkpoint")
            with _quiet():
                ocp.Checkpointer(ocp.StandardCheckpointHandler()).save(partial.resolve() / "state", state)
            self.processes.wait(what="a written checkpoint")
            if self.processes.is_first:
                atomic.write_text(partial / _POSITION, json.dumps(dataclasses.asdict(position)))
                shutil.rmtree(self._path(position.step), ignore_errors=True)
                partial.rename(self._path(position.step))
        except (OSError, ValueError) as error:
            # Orbax reports a failed write as ValueError.
            if self.processes.is_first:
                shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(self._failure(position.step, state, error)) from error
        if self.processes.is_first:
            self._prune()
        self.processes.wait(what="a kept checkpoint")

    def restore(self, like: State, step: int | None = None) -> tuple[State, Position]:
        """State and position of `step` (None: the newest), placed as the arrays of `like` are.

        Raises `CheckpointError` when it is missing or of another shape than `like`.
        """
        abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, like)

        def read(path: Path) -> State:
            checkpointer = ocp.Checkpointer(ocp.StandardCheckpointHandler())
            return checkpointer.restore(path, args=ocp.args.StandardRestore(abstract))

        return self._read(read, step)

    def restore_params(self, step: int | None = None) -> tuple[dict[str, np.ndarray], Position]:
        """The weights alone, on the host, whatever mesh they lay on; neither moments nor devices are needed.

        Raises `CheckpointError` when the checkpoint is missing or can't be read.
        """

        def read(path: Path) -> dict[str, np.ndarray]:
            checkpointer = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
            stored = checkpointer.metadata(path).item_metadata.tree["params"]
            like = {"params": {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in stored.items()}}
            on_host = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), like)
            args = ocp.args.PyTreeRestore(item=like, restore_args=on_host, partial_restore=True)
            return dict(checkpointer.restore(path, args=args)["params"])

        return self._read(read, step)

    def _read(self, read: Callable[[Path], Found], step: int | None) -> tuple[Found, Position]:
        """What `read` makes of the state's folder, and the position."""
        steps = self.steps()
        if not steps or (step is not None and step not in steps):
            raise CheckpointError(f"no checkpoint of step {step} in {self.folder}; there are: {steps}")
        path = self._path(steps[-1] if step is None else step)
        try:
            with _quiet():
                found = read(path.resolve() / "state")
            position = Position(**json.loads((path / _POSITION).read_text()))
        except (OSError, ValueError, TypeError, KeyError) as error:
            older = [str(other) for other in steps if self._path(other) != path]
            advice = f"remove {path} to go on from step {older[-1]}" if older else "start over with fresh=true"
            raise CheckpointError(f"can't restore {path}: {_first_line(error)}; {advice}") from error
        return found, position

    def _path(self, step: int) -> Path:
        return self.folder / f"step_{step}"

    def _prune(self) -> None:
        """Removes those too old."""
        for step in self.steps()[: -self.keep]:
            # Renamed first: a kill while the files go must not leave half a checkpoint under its name.
            doomed = self._path(step).rename(self.folder / f".step_{step}.partial")
            shutil.rmtree(doomed, ignore_errors=True)

    def _sweep(self) -> None:
        """Removes what a killed save left."""
        for path in self.folder.glob(".step_*.partial"):
            shutil.rmtree(path, ignore_errors=True)

    def _failure(self, step: int, state: Any, error: Exception) -> str:
        need = sum(leaf.nbytes for leaf in jax.tree.leaves(state)) / 2**20
        free = shutil.disk_usage(self.folder if self.folder.exists() else Path("/")).free / 2**20
        full = getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error)
        reason = "the disk is full" if full else _first_line(error)
        older = self.steps()
        left = f"the checkpoint of step {older[-1]} is intact" if older else "there is no older checkpoint"
        return (
            f"could not save the checkpoint of step {step} in {self.folder}: {reason} (it needs up to {need:.0f} MiB,"
            f" {free:.0f} MiB are free); {left}. Make room and run the same command again"
        )


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0][:300] if text else type(error).__name__


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Orbax logs a failed write with several tracebacks; we say it once, ourselves."""
    logger = logging.getLogger("absl")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
