"""What a sandboxed command sees: the arguments of bubblewrap, and a probe that it works here.

A new user, mount, process, network, host-name and IPC namespace. `/` holds only the system's
`/usr`, read-only, a minimal `/etc`, and the project's own writable folders. The network is a
loopback device of its own. Nothing of the caller's environment, home or processes is visible.
"""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollout.sandbox.protocol import SandboxError

WORKSPACE = "/workspace"
HOME = "/home/agent"
NODE_PREFIX = "/opt/node"
INNER_ID = 1000

_MIB = 1 << 20
_ETC_FILES = {
    "passwd": f"root:x:0:0::/root:/bin/false\nagent:x:{INNER_ID}:{INNER_ID}::{HOME}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{INNER_ID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True, kw_only=True)
class View:
    """The host's folders that one sandbox sees, and where."""

    project: Path
    tmp: Path
    home: Path
    etc: Path
    node_modules: Path | None
    node_prefix: Path | None


def make_etc(folder: Path) -> None:
    """Fills `folder` with the few files of `/etc` that programs ask for, none of them the host's own
    but the linker's cache and the table of alternatives (`awk` is a link through it).
    """
    folder.mkdir(mode=0o755)
    for name, text in _ETC_FILES.items():
        (folder / name).write_text(text)
    if Path("/etc/ld.so.cache").exists():
        shutil.copyfile("/etc/ld.so.cache", folder / "ld.so.cache")
    (folder / "alternatives").mkdir()
    for path in folder.iterdir():
        path.chmod(0o755 if path.is_dir() else 0o644)
    folder.chmod(0o755)


def find_node_prefix() -> Path | None:
    """The folder that holds Node's `bin/`, when Node is not part of `/usr`; None when it is, or
    when there is no Node.
    """
    found = shutil.which("node")
    if found is None:
        return None
    prefix = Path(found).resolve().parent.parent
    return None if prefix.is_relative_to("/usr") else prefix


def sandbox_arguments(view: View, *, cwd: str, env: Mapping[str, str], has_seccomp: bool, seccomp_fd: int) -> bytes:
    """All options, NUL-separated, as bubblewrap reads them from a file descriptor.

    Not on its command line: process 1 of the sandbox is bubblewrap itself, and
    `/proc/1/cmdline` would show the host's paths inside.
    """
    options = [*_NAMESPACES, *_system_mounts(view), *_project_mounts(view)]
    if has_seccomp:
        options += ["--seccomp", str(seccomp_fd)]
    for name, value in {**_environment(view), **env}.items():
        options += ["--setenv", name, value]
    options += ["--chdir", f"{WORKSPACE}/{cwd}" if cwd else WORKSPACE]
    return b"".join(os.fsencode(option) + b"\0" for option in options)


_NAMESPACES = (
    "--unshare-all",
    "--unshare-user",
    "--disable-userns",
    "--die-with-parent",
    "--new-session",
    "--clearenv",
    *("--uid", str(INNER_ID), "--gid", str(INNER_ID)),
    *("--hostname", "sandbox"),
    *("--cap-drop", "ALL"),
)


def _system_mounts(view: View) -> list[str]:
    options = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib64", "lib32"):
        host = Path("/", name)
        if host.is_symlink():
            options += ["--symlink", os.readlink(host), f"/{name}"]
        elif host.is_dir():
            options += ["--ro-bind", f"/{name}", f"/{name}"]
    options += ["--ro-bind", str(view.etc), "/etc"]
    options += ["--ro-bind-try", "/etc/alternatives", "/etc/alternatives"]
    if view.node_prefix is not None:
        options += ["--ro-bind", str(view.node_prefix), NODE_PREFIX]
    # Every tmpfs needs its own size: the default is half of the machine's memory.
    options += ["--proc", "/proc", "--dev", "/dev", "--size", str(16 * _MIB), "--tmpfs", "/dev/shm"]
    return options


def _project_mounts(view: View) -> list[str]:
    options = ["--bind", str(view.tmp), "/tmp", "--bind", str(view.home), HOME]
    options += ["--bind", str(view.project), WORKSPACE]
    if view.node_modules is not None:
        modules = f"{WORKSPACE}/node_modules"
        options += ["--ro-bind", str(view.node_modules), modules]
        options += ["--size", str(128 * _MIB), "--tmpfs", f"{modules}/.vite"]
        options += ["--size", str(16 * _MIB), "--tmpfs", f"{modules}/.vite-temp"]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/"]


def _environment(view: View) -> dict[str, str]:
    path = "/usr/local/bin:/usr/bin:/bin"
    return {
        "PATH": path if view.node_prefix is None else f"{NODE_PREFIX}/bin:{path}",
        "HOME": HOME,
        "USER": "agent",
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "NO_COLOR": "1",
        "CI": "1",
        # Without these, `npm install` waits over a minute for a network that is not there.
        "npm_config_offline": "true",
        "npm_config_update_notifier": "false",
    }


def find_bubblewrap() -> str:
    """The path of `bwrap`. SandboxError that says how to install it."""
    found = shutil.which("bwrap")
    if found is None:
        raise SandboxError("bubblewrap is not installed; run: apt-get install bubblewrap")
    return found


def probe(prefix: Sequence[str]) -> None:
    """Runs `true` under all namespaces. SandboxError that says what the kernel refuses.

    `prefix`: the argv that leads to bubblewrap (dropping root's identity first).
    """
    argv = [*prefix, "--unshare-all", "--unshare-user", "--disable-userns", "--ro-bind", "/", "/"]
    argv += ["--proc", "/proc", "--dev", "/dev", "true"]
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}, check=False
    )
    if done.returncode != 0:
        raise SandboxError(
            f"bubblewrap cannot make a sandbox here: {done.stderr.strip() or done.returncode}. "
            "It needs bubblewrap 0.8 or newer and unprivileged user namespaces "
            "(sysctl kernel.unprivileged_userns_clone=1 and user.max_user_namespaces > 0; in a "
            "container, start it with --privileged)"
        )
