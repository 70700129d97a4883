"""The run's folder: who owns it, what it was started with, and what a resume must undo."""

import fcntl
import importlib.metadata
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import yaml

from configs import ConfigError, to_plain
from wc_jax import atomic
from wc_jax.config import Config
from wc_jax.processes import Processes

# Settings that change what is watched or how fast, or that tell a run to go on, but never the numbers (a mesh
# changes the order in which they are summed).
_MAY_DIFFER = frozenset({
    "run_dir", "num_steps", "fresh", "rollout.concurrency", "rollout.max_retries", "verifier.max_pages",
    "engine.port", "engine.start_timeout_s", "checkpoint.every", "checkpoint.keep",
    "track.tensorboard", "track.wandb_project", "distributed.coordinator", "distributed.num_processes",
    "distributed.process_id", "distributed.auto", "distributed.start_timeout_s", "distributed.failure_timeout_s",
    "mesh.data", "mesh.fsdp", "mesh.tensor", "mesh.sequence",
})  # fmt: skip

_ENGINE_LOG = re.compile(r"engine(\.\d+)?\.log")


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """Names of what lies in a run's folder. `claim` it before writing."""

    path: Path
    _locks: list[TextIOWrapper] = field(default_factory=list, repr=False, compare=False)

    @property
    def config(self) -> Path:
        """The resolved config; last to go when a run is thrown away, first to come when one starts."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations.jsonl"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def pages(self) -> Path:
        """Screenshots of the best and the worst held-out page of each evaluation."""
        return self.path / "pages"

    def engine_log(self, process: int = 0) -> Path:
        """What the model server of a process says; there before anything else when it does not come up."""
        return self.path / (f"engine.{process}.log" if process else "engine.log")

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def claim(self) -> None:
        """Makes the folder ours until `release` or the end of the process. Raises `ConfigError` if taken."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = (self.path / ".lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise ConfigError(
                f"another process is using the run folder {self.path}; stop it, or choose another run_dir"
            ) from None
        self._locks.append(lock)

    def release(self) -> None:
        """Gives the folder back. Safe to call twice."""
        while self._locks:
            self._locks.pop().close()

    def forget_after(self, step: int) -> None:
        """Removes what steps after `step` left behind, so that they can be done again."""
        for path in (self.metrics, self.evaluations):
            keep_lines(path, step)
        _remove_later(self.rollouts, step)
        _remove_later(self.pages, step)

    def clear(self) -> None:
        """Throws away all that a run writes. The config goes last: until then the folder says whose it is."""
        for path in (self.checkpoints, self.rollouts, self.pages, self.tensorboard):
            if path.exists():
                # Renamed first: half a folder must not be taken for a whole one after a kill.
                doomed = self.path / f".{path.name}.discarded"
                shutil.rmtree(doomed, ignore_errors=True)
                shutil.rmtree(path.rename(doomed))
        for path in (self.metrics, self.evaluations, self.report, self.environment):
            path.unlink(missing_ok=True)
        self.config.unlink(missing_ok=True)


def check_run_folder(config: Config) -> RunFolder:
    """The folder of `config.run_dir`, found usable; writes nothing. Raises `ConfigError` if it is not."""
    run = RunFolder(path=config.run_dir)
    if run.path.exists() and not run.path.is_dir():
        raise ConfigError(f"run_dir={run.path} is a file; choose another run_dir")
    if not run.path.is_dir() or all(entry.name == ".lock" for entry in run.path.iterdir()):
        return run
    leftovers = {e.name for e in run.path.iterdir() if not e.name.startswith(".") and not _ENGINE_LOG.fullmatch(e.name)}
    if not run.config.is_file():
        if leftovers:
            raise ConfigError(
                f"run_dir={run.path} holds {min(leftovers)!r} but no config.yaml: it is no run folder;"
                " choose another run_dir"
            )
        return run
    if config.fresh:
        return run
    differences = list(_differences(yaml.safe_load(run.config.read_text()), to_plain(config)))
    if differences:
        listed = "; ".join(differences[:5]) + (f"; and {len(differences) - 5} more" if len(differences) > 5 else "")
        raise ConfigError(
            f"the run folder {run.path} belongs to another config: {listed}. Resume with the same settings,"
            " choose another run_dir, or start over with fresh=true"
        )
    return run


def check_together(config: Config, processes: Processes, *, done: int) -> None:
    """That all processes are about to do the same. Raises `ConfigError`, the same one in each of them.

    `done`: steps that the checkpoints of the run folder hold.
    """
    if config.tasks.per_step % processes.count:
        raise ConfigError(
            f"tasks.per_step={config.tasks.per_step} can't be shared out evenly among {processes.count} processes;"
            " make it a multiple, or change distributed.num_processes"
        )
    mine = {name: value for name, value in to_plain(config).items() if name != "distributed"}
    first, *others = processes.gather([mine, done], what="the config")
    for process, (theirs, their_done) in enumerate(others, start=1):
        for name, old, new in _unequal(first[0], theirs):
            raise ConfigError(f"{name} is {old} in process 0 and {new} in process {process}; start all with the same")
        if their_done != first[1]:
            raise ConfigError(_not_shared(config, process))


def check_seen(run: RunFolder, config: Config, processes: Processes) -> None:
    """That all see the folder that process 0 has begun. Raises `ConfigError`, the same one in each of them."""
    for process, sees in enumerate(processes.gather(run.config.is_file(), what="the run folder")):
        if not sees:
            raise ConfigError(_not_shared(config, process))


def _not_shared(config: Config, process: int) -> str:
    return (
        f"run_dir={config.run_dir} holds other things for process {process} than for process 0;"
        " it must be one folder that all processes see"
    )


def record_start(run: RunFolder, config: Config) -> None:
    """Writes the resolved config, the commit and the versions of all packages, each atomically."""
    atomic.write_text(run.environment, json.dumps(_environment(), indent=1, sort_keys=True) + "\n")
    plain = {**to_plain(config), "fresh": False}
    atomic.write_text(run.config, yaml.safe_dump(plain, sort_keys=False))


def keep_lines(path: Path, step: int) -> None:
    """Keeps the JSON lines of steps up to `step`; later ones and a torn last line go."""
    if not path.exists():
        return
    kept = [line for line in path.read_text().splitlines() if (at := _step_of(line)) is not None and at <= step]
    atomic.write_text(path, "".join(f"{line}\n" for line in kept))


def _step_of(line: str) -> int | None:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return None


def _remove_later(folder: Path, step: int) -> None:
    for entry in sorted(folder.glob("*")):
        digits = entry.name.removeprefix("step_").partition(".")[0]
        if digits.isdigit() and int(digits) > step:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def _differences(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[str]:
    for name, old, new in _unequal(there, here):
        if name not in _MAY_DIFFER:
            yield f"{name} is {old} there and {new} now"


def _unequal(there: Mapping[str, Any], here: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str, str]]:
    """(full name, value there, value here) of every setting that differs."""
    for key in dict.fromkeys((*here, *there)):
        name = f"{path}.{key}" if path else key
        old, new = there.get(key, "nothing"), here.get(key, "nothing")
        if old == new:
            continue
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _unequal(old, new, name)
        else:
            yield name, json.dumps(old), json.dumps(new)


def _environment() -> dict[str, Any]:
    root = Path(__file__).resolve().parent.parent
    packages = {dist.name: dist.version for dist in importlib.metadata.distributions()}
    return {
        "commit": _git(root, "rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git(root, "status", "--porcelain")),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": sys.argv,
        "packages": packages,
    }


def _git(root: Path, *arguments: str) -> str:
    """What git says, or nothing: an installed copy has no repository."""
    try:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
