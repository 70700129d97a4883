"""The folder of one run on this machine, and the removal of what dead runs left.

Everything that a `LocalSandboxes` makes is findable by its run's name, which is its process id and
that process's start time: after `kill -9`, the next start sees that no such process lives and
takes down its mounts, groups and folders.
"""

import itertools
import os
import shutil
import tempfile
from pathlib import Path

from rollout.sandbox.cgroups import Cgroups
from rollout.sandbox.mounts import mounts_below, unmount

_instances = itertools.count()


def base_dir() -> Path:
    """Where run folders are: must be reachable by other user ids when we are root."""
    if os.geteuid() == 0:
        return Path("/run/webcoder")
    return Path(tempfile.gettempdir()) / f"webcoder-{os.geteuid()}"


def make_run_dir() -> Path:
    """A new folder `<base>/<pid>.<start time>.<instance>`, open to traversal."""
    base = base_dir()
    base.mkdir(mode=0o755, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.geteuid():
        raise PermissionError(f"{base} belongs to somebody else; remove it or set TMPDIR")
    pid = os.getpid()
    run_dir = base / f"{pid}.{_start_time(pid)}.{next(_instances)}"
    run_dir.mkdir(mode=0o755)
    run_dir.chmod(0o755)  # whatever the umask
    return run_dir


def reap_dead_runs(cgroups: Cgroups | None) -> int:
    """Removes the processes, groups, mounts and folders of runs whose process is gone.

    Returns how many there were. Another process may be reaping at the same time: what is already
    gone is fine.
    """
    count = 0
    base = base_dir()
    for run_dir in base.iterdir() if base.is_dir() else ():
        pid, _, rest = run_dir.name.partition(".")
        started = rest.partition(".")[0]
        if not pid.isdigit() or _start_time(int(pid)) == started:
            continue
        remove_run_dir(run_dir, cgroups)
        count += 1
    return count


def remove_run_dir(run_dir: Path, cgroups: Cgroups | None) -> None:
    """Ends what still runs in a run's groups, then takes away its mounts and its folder."""
    groups = cgroups.leftovers(run_dir.name) if cgroups is not None else []
    for group in groups:
        group.kill()
    for point in mounts_below(run_dir):
        try:
            unmount(point)
        except OSError:
            continue
    for group in groups:
        group.remove()
    # Never a recursive delete while something is mounted: it would reach through a bind mount.
    if not mounts_below(run_dir):
        shutil.rmtree(run_dir, ignore_errors=True)


def _start_time(pid: int) -> str:
    """Clock ticks since boot at which `pid` started; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    # The command's name is in parentheses and may itself contain blanks and parentheses.
    return stat.rpartition(")")[2].split()[19]
