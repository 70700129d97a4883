"""A step's numbers -> metrics.jsonl, TensorBoard, Weights & Biases, and one console line."""

import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from configs import ConfigError, to_plain
from wc_jax.config import Config
from wc_jax.run_folder import RunFolder

Metrics = Mapping[str, Any]
"""`step`, numbers, and one level of groups of numbers such as `seconds`."""


class Tracker(Protocol):
    """Somewhere that a step's numbers go."""

    def log(self, metrics: Metrics) -> None: ...

    def close(self) -> None: ...


class JsonLines:
    """One JSON object a line, on disk before `log` returns. NaN and infinity become null."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8")

    def log(self, metrics: Metrics) -> None:
        self._file.write(json.dumps(_finite(metrics), allow_nan=False) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class TensorBoard:
    """Event files; those of steps after `done` are hidden, so that a resumed run has one curve."""

    def __init__(self, folder: Path, *, done: int) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), purge_step=done + 1)

    def log(self, metrics: Metrics) -> None:
        for name, value in flatten(metrics).items():
            self._writer.add_scalar(name, value, metrics["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A Weights & Biases run that goes on under the same id after a resume."""

    def __init__(self, project: str, run: RunFolder, config: Config) -> None:
        import wandb

        name = run.path.resolve().name
        self._run = wandb.init(
            project=project, id=name, name=name, resume="allow", dir=str(run.path), config=to_plain(config)
        )

    def log(self, metrics: Metrics) -> None:
        self._run.log(flatten(metrics), step=metrics["step"])

    def close(self) -> None:
        self._run.finish()


class Console:
    """One line a step, for people and log files."""

    def __init__(self, say: Callable[[str], None], num_steps: int) -> None:
        self._say = say
        self._num_steps = num_steps

    def log(self, metrics: Metrics) -> None:
        self._say(console_line(metrics, self._num_steps))

    def close(self) -> None:
        """Nothing to close."""


class Trackers:
    """All of them as one."""

    def __init__(self, members: Sequence[Tracker]) -> None:
        self._members = members

    def log(self, metrics: Metrics) -> None:
        for member in self._members:
            member.log(metrics)

    def close(self) -> None:
        for member in self._members:
            member.close()


def check_tracking(config: Config) -> None:
    """Raises `ConfigError` when the config asks for a tracker whose package is not installed."""
    project = config.track.wandb_project
    if project and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            f"track.wandb_project={project} needs the package wandb: pip install 'webcoder-jax[wandb]',"
            " or write track.wandb_project=''"
        )


def open_trackers(config: Config, run: RunFolder, *, done: int, say: Callable[[str], None]) -> Trackers:
    """What the config asks for. metrics.jsonl must already end at step `done`."""
    members: list[Tracker] = []
    if config.track.wandb_project:
        members.append(Wandb(config.track.wandb_project, run, config))
    members.append(JsonLines(run.metrics))
    if config.track.tensorboard:
        members.append(TensorBoard(run.tensorboard, done=done))
    return Trackers([*members, Console(say, config.num_steps)])


def flatten(metrics: Metrics) -> dict[str, float]:
    """Finite numbers only, groups as `group/name`, the step left out.

    >>> flatten({"step": 3, "reward_mean": 0.5, "note": "x", "seconds": {"update": 2.0}})
    {'reward_mean': 0.5, 'seconds/update': 2.0}
    """
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            flat.update({f"{name}/{key}": item for key, item in flatten(value).items()})
        elif name != "step" and isinstance(value, int | float) and math.isfinite(value):
            flat[name] = float(value)
    return flat


def console_line(metrics: Metrics, num_steps: int) -> str:
    """What the console shows of a step.

    >>> console_line({"step": 3, "reward_mean": 0.5, "seconds": {"update": 2.0, "sync": 1.0}}, 20)
    'step 3/20  reward 0.500  3 s (update 2, sync 1)'
    """
    shown = [f"step {metrics['step']}/{num_steps}"]
    for name, label, digits in _ON_CONSOLE:
        value = metrics.get(name)
        if isinstance(value, int | float) and math.isfinite(value):
            shown.append(f"{label} {value:.{digits}f}")
    seconds = metrics.get("seconds", {})
    if seconds:
        phases = ", ".join(f"{name} {value:.0f}" for name, value in seconds.items())
        shown.append(f"{sum(seconds.values()):.0f} s ({phases})")
    return "  ".join(shown)


_ON_CONSOLE = (
    ("reward_mean", "reward", 3),
    ("heldout_reward_mean", "held-out", 3),
    ("gates_passed", "gates", 2),
    ("entropy", "entropy", 3),
    ("sampler_gap_mean", "gap", 5),
    ("grad_norm", "grad", 3),
)


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
