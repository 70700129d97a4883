"""What this machine can enforce on a sandbox, found out once per run.

As root with the usual rights: a user id of its own, a disk quota (a sized tmpfs), control groups.
What is missing is replaced by resource limits where there are any, and named in `weaknesses`.
"""

import os
import resource
import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollout.sandbox.bubblewrap import find_bubblewrap, find_node_prefix, make_etc, probe
from rollout.sandbox.cgroups import Cgroups, Group
from rollout.sandbox.mounts import bind_read_only, mount_tmpfs, unmount
from rollout.sandbox.protocol import Limits, SandboxError
from rollout.sandbox.rundir import make_run_dir, reap_dead_runs
from rollout.sandbox.seccomp import build_filter

_MAX_OPEN_FILES = 4096

# Joins each control group named before `--`, lowers what can be lowered, becomes the rest.
_LAUNCH = """
while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift
{{ echo 500 > /proc/$$/oom_score_adj; }} 2>/dev/null
{limits}
exec "$@"
"""


@dataclass(kw_only=True)
class Host:
    """The run's folder and the means of isolation."""

    run_dir: Path
    bubblewrap: str
    setpriv: str | None
    """None: not root, commands keep the caller's user id."""
    cgroups: Cgroups | None
    can_mount: bool
    seccomp: bytes | None
    node_prefix: Path | None
    weaknesses: tuple[str, ...]
    _bound: dict[Path, Path] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def launch_argv(self, group: Group | None, uid: int | None, limits: Limits) -> list[str]:
        """The argv in front of bubblewrap's options."""
        allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        num_files = _MAX_OPEN_FILES if allowed == resource.RLIM_INFINITY else min(_MAX_OPEN_FILES, allowed)
        settings = ["ulimit -c 0", f"ulimit -n {num_files}"]
        if not self._counts("memory"):
            # Per process, where a control group would count the whole sandbox.
            settings.append(f"ulimit -d {limits.memory_bytes >> 10}")
        if not self.can_mount:
            settings.append(f"ulimit -f {limits.disk_bytes >> 9}")
        joins = [str(path) for path in group.join_paths] if group is not None else []
        script = _LAUNCH.format(limits="\n".join(settings))
        return ["/bin/sh", "-c", script, "sh", *joins, "--", *drop_argv(self.setpriv, uid), self.bubblewrap]

    def command_argv(self, argv: Sequence[str], limits: Limits) -> list[str]:
        """`argv` as bubblewrap runs it.

        Without a control group the number of processes is limited inside: outside, the limit would
        count everything else that the caller's user runs.
        """
        if self._counts("pids"):
            return list(argv)
        number = limits.num_processes  # `-u` is bash's name for it, `-p` dash's
        return ["/bin/sh", "-c", f'ulimit -u {number} 2>/dev/null || ulimit -p {number}; exec "$@"', "sh", *argv]

    def _counts(self, resource_name: str) -> bool:
        return self.cgroups is not None and resource_name in self.cgroups.resources

    def reachable(self, source: Path) -> Path:
        """`source`, or a read-only mount of it that other user ids can reach.

        A home folder of mode 700 hides everything below it from a sandbox's user.
        SandboxError if `source` is no folder or cannot be made reachable.
        """
        source = source.resolve()
        if not source.is_dir():
            raise SandboxError(f"no folder {source}; install templates with: python -m rollout.sandbox install")
        if self.setpriv is None:
            return source
        with self._lock:
            if source not in self._bound:
                self._bound[source] = self._bind(source)
            return self._bound[source]

    def _bind(self, source: Path) -> Path:
        if self.can_mount:
            target = self.run_dir / f"shared-{len(self._bound)}"
            target.mkdir()
            bind_read_only(source, target)
            return target
        hidden = [folder for folder in (source, *source.parents) if not folder.stat().st_mode & 0o001]
        if hidden:
            raise SandboxError(f"other users cannot enter {hidden[-1]}; run: chmod o+x {hidden[-1]}")
        return source


def drop_argv(setpriv: str | None, uid: int | None) -> list[str]:
    """The argv that becomes user and group `uid` with no rights at all; empty when not root."""
    if setpriv is None:
        return []
    return [
        *(setpriv, "--reuid", str(uid), "--regid", str(uid), "--clear-groups"),
        *("--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"),
    ]


def open_host(limits: Limits) -> Host:
    """Finds the means, removes what dead runs left, makes this run's folder. SandboxError."""
    bubblewrap = find_bubblewrap()
    is_root = os.geteuid() == 0
    setpriv = shutil.which("setpriv") if is_root else None
    if is_root and setpriv is None:
        raise SandboxError("setpriv is not installed; run: apt-get install util-linux")
    cgroups, weaknesses = Cgroups.open() if is_root else (None, ["not root: no control groups"])
    probe([*drop_argv(setpriv, sandbox_uid(0) if is_root else None), bubblewrap])
    seccomp = build_filter()
    if seccomp is None:
        weaknesses.append("no libseccomp: system calls are not filtered")
    try:
        run_dir = make_run_dir()
        make_etc(run_dir / "etc")
    except OSError as error:
        raise SandboxError(f"no folder for sandboxes: {error}") from error
    reap_dead_runs(cgroups)
    can_mount = is_root and _can_mount(run_dir)
    if cgroups is None or "memory" not in cgroups.resources:
        weaknesses.append(f"memory ({limits.memory_bytes >> 20} MiB) is limited per process only")
    if not is_root:
        weaknesses.append("sandboxes share the caller's user id")
    if not can_mount:
        weaknesses.append("the disk is limited per file, not per sandbox")
    host = Host(
        run_dir=run_dir,
        bubblewrap=bubblewrap,
        setpriv=setpriv,
        cgroups=cgroups,
        can_mount=can_mount,
        seccomp=seccomp,
        node_prefix=None,
        weaknesses=tuple(weaknesses),
    )
    prefix = find_node_prefix()
    if prefix is not None:
        host.node_prefix = host.reachable(prefix)
    return host


def sandbox_uid(number: int) -> int:
    """A user id that no account has, distinct for the live sandboxes of all runs on this machine.

    From the process id, which is unique among live runs; where a container maps only 65,536 ids,
    from what there is (two runs may then share one, still apart by their namespaces).
    """
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        highest = max(int(line.split()[0]) + int(line.split()[2]) for line in lines)
    first, span = (1 << 20, 1 << 30) if highest > (1 << 31) else (20_000, 40_000)
    return first + (os.getpid() * 1024 + number % 1024) % span


def _can_mount(run_dir: Path) -> bool:
    target = run_dir / "probe"
    target.mkdir()
    try:
        mount_tmpfs(target, size_bytes=1 << 20, num_inodes=16, owner=0)
        unmount(target)
        return True
    except OSError:
        return False
    finally:
        target.rmdir()


def launcher_fds(contents: Sequence[bytes]) -> list[int]:
    """One readable file descriptor for each of `contents`, at its start; the caller closes them."""
    descriptors: list[int] = []
    for content in contents:
        descriptor = os.memfd_create("webcoder", os.MFD_CLOEXEC)
        descriptors.append(descriptor)
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptors
