"""Memory, process and CPU limits of one sandbox as a control group, version 1 or 2.

Both versions are a file system under /sys/fs/cgroup. Version 1 has one tree per resource, so a
sandbox is one folder in each; in version 2 it is one folder. Without rights to make folders there
(not root, or a read-only mount in a container) `Cgroups.open` says so and limits must come from
elsewhere.
"""

import os
import signal
import time
from pathlib import Path

from rollout.sandbox.protocol import Limits, SandboxError

CGROUP_ROOT = Path("/sys/fs/cgroup")
_PERIOD_US = 100_000
_EMPTY_TIMEOUT_S = 5.0


class Cgroups:
    """Makes groups named `<run>-<number>` below one parent folder of ours."""

    def __init__(self, parents: dict[str, Path], *, is_v2: bool) -> None:
        self._parents = parents
        self._is_v2 = is_v2

    @staticmethod
    def open() -> "tuple[Cgroups | None, list[str]]":
        """Prepares the parents. Returns them (None if nothing works) and the limits that are missing."""
        is_v2 = (CGROUP_ROOT / "cgroup.controllers").exists()
        wanted = ("memory", "pids", "cpu")
        parents: dict[str, Path] = {}
        for name in wanted:
            parent = (CGROUP_ROOT if is_v2 else CGROUP_ROOT / name) / "webcoder"
            try:
                if is_v2:
                    (CGROUP_ROOT / "cgroup.subtree_control").write_text(f"+{name}")
                elif not parent.parent.is_dir():
                    continue
                parent.mkdir(exist_ok=True)
                if is_v2:
                    (parent / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:
                continue
            parents[name] = parent
        missing = [f"no {name} control group" for name in wanted if name not in parents]
        return (Cgroups(parents, is_v2=is_v2) if parents else None), missing

    @property
    def resources(self) -> frozenset[str]:
        """Which of memory, pids and cpu are limited."""
        return frozenset(self._parents)

    def make(self, name: str, limits: Limits) -> "Group":
        """A new, empty group. SandboxError when the kernel refuses."""
        folders = sorted({parent / name for parent in self._parents.values()})
        group = Group(folders)
        try:
            for folder in folders:
                folder.mkdir()
            for resource, parent in self._parents.items():
                for setting, value in self._settings(resource, limits).items():
                    (parent / name / setting).write_text(value)
                if resource == "memory":
                    _forbid_swap(parent / name, limits)
        except OSError as error:
            group.remove()
            raise SandboxError(f"control group {name} could not be made: {error}") from error
        return group

    def leftovers(self, run_name: str) -> "list[Group]":
        """Groups that a run of that name left behind."""
        folders = [f for parent in set(self._parents.values()) for f in parent.glob(f"{run_name}-*")]
        return [Group([folder]) for folder in folders if folder.is_dir()]

    def _settings(self, resource: str, limits: Limits) -> dict[str, str]:
        quota = str(max(1000, int(limits.cpus * _PERIOD_US)))
        if resource == "pids":
            return {"pids.max": str(limits.num_processes)}
        if resource == "cpu":
            if self._is_v2:
                return {"cpu.max": f"{quota} {_PERIOD_US}"}
            return {"cpu.cfs_period_us": str(_PERIOD_US), "cpu.cfs_quota_us": quota}
        if self._is_v2:
            return {"memory.max": str(limits.memory_bytes), "memory.oom.group": "1"}
        return {"memory.limit_in_bytes": str(limits.memory_bytes)}


def _forbid_swap(folder: Path, limits: Limits) -> None:
    """Counts swap into the limit, on kernels that account for it."""
    for setting, value in (
        ("memory.swap.max", "0"),
        ("memory.memsw.limit_in_bytes", str(limits.memory_bytes)),
    ):
        if (folder / setting).exists():
            (folder / setting).write_text(value)


class Group:
    """One sandbox's control group: a folder per resource (version 1) or one (version 2)."""

    def __init__(self, folders: list[Path]) -> None:
        self._folders = folders

    @property
    def join_paths(self) -> list[Path]:
        """The files into which a process writes its id to join."""
        return [folder / "cgroup.procs" for folder in self._folders]

    def pids(self) -> list[int]:
        """Processes inside now."""
        try:
            return [int(pid) for pid in (self._folders[0] / "cgroup.procs").read_text().split()]
        except OSError:  # removed, before or while we read
            return []

    def kill(self) -> None:
        """Ends every process inside and waits until none is left. SandboxError after 5 s."""
        deadline = time.monotonic() + _EMPTY_TIMEOUT_S
        while pids := self.pids():
            if time.monotonic() > deadline:
                raise SandboxError(f"{len(pids)} processes of {self._folders[0].name} do not end")
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.002)

    def remove(self) -> None:
        """Takes the folders away. SandboxError if the kernel still holds one after 5 s."""
        deadline = time.monotonic() + _EMPTY_TIMEOUT_S
        for folder in self._folders:
            while True:
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError as error:  # busy while the last process is being reaped
                    if time.monotonic() > deadline:
                        raise SandboxError(f"control group {folder} cannot be removed: {error}") from error
                    time.sleep(0.002)
