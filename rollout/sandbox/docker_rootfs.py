"""A container's root folder from this Debian machine's own packages: no registry, no network.

The named packages, all that they depend on, and the few generated files that programs need. The same
machine always gives the same files, so a trainer and its sandboxes agree on Node and its kin.
"""

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from rollout.sandbox.bubblewrap import HOME, INNER_ID, find_node_prefix, make_etc
from rollout.sandbox.protocol import SandboxError

PACKAGES = (
    "base-files bash coreutils dash debianutils diffutils file findutils gawk git grep gzip hostname less libc-bin "
    "mawk patch procps python3 ripgrep sed tar unzip util-linux zip nodejs"
).split()
"""Those of them that are installed here go in."""
NEEDED = ("bash", "coreutils", "grep", "python3", "sed", "tar")

_STATUS = Path("/var/lib/dpkg/status")
_LISTS = Path("/var/lib/dpkg/info")
_SKIPPED = re.compile(
    r"/(boot|etc|dev|proc|sys|run|home|root|tmp|var)(/|$)|/usr/share/(doc|man|info|lintian|bug|locale|help|gtk-doc|icons|bash-completion)/"
)
_MERGED = re.compile(r"^/(bin|sbin|lib|lib32|lib64|libx32)(/|$)")
_FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "var/tmp", "workspace")


def make_rootfs(folder: Path, packages: Iterable[str] = PACKAGES) -> int:
    """Fills the new `folder`; how many packages that took. SandboxError when this is not Debian, or one
    of `NEEDED` is not installed. About 3 s, and 350 MB with all of `PACKAGES`.
    """
    if not _STATUS.exists():
        raise SandboxError("this machine has no dpkg; build the image with `docker build rollout/sandbox/images`")
    wanted = closure(packages, _STATUS.read_text(encoding="utf-8"))
    lacking = [name for name in NEEDED if name not in wanted]
    if lacking:
        raise SandboxError(f"packages are missing on this machine; run: apt-get install {' '.join(lacking)}")
    folder.mkdir(parents=True)
    _copy(sorted(_files(wanted)), folder)
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    make_etc(folder / "new-etc")
    (folder / "etc").rmdir()
    (folder / "new-etc").rename(folder / "etc")
    _copy(["/etc/alternatives"], folder, recursive=True)
    home = folder / HOME.lstrip("/")
    home.mkdir(parents=True, exist_ok=True)
    for owned in (home, folder / "workspace"):
        os.chown(owned, INNER_ID, INNER_ID)
    prefix = find_node_prefix()
    if prefix is not None:  # Node that is no Debian package
        _copy([str(prefix / "bin/node")], folder)
        (folder / "usr/bin/node").symlink_to(prefix / "bin/node")
    return len(wanted)


def closure(packages: Iterable[str], status: str) -> set[str]:
    """The installed ones of `packages` and of what they depend on, by dpkg's own table.

    >>> table = "Package: a\\nStatus: install ok installed\\nDepends: b (>= 1) | c, d\\n\\n"
    >>> table += "Package: c\\nStatus: install ok installed\\nProvides: d\\n"
    >>> sorted(closure(["a", "absent"], table))
    ['a', 'c']
    """
    installed: dict[str, dict[str, str]] = {}
    providers: dict[str, list[str]] = {}
    for paragraph in status.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Status", "").endswith(" installed"):
            installed[fields["Package"]] = fields
            for provided in _names(fields.get("Provides", "")):
                providers.setdefault(provided[0], []).append(fields["Package"])
    found: set[str] = set()
    todo = list(packages)
    while todo:
        name = todo.pop()
        if name not in installed:
            candidates = providers.get(name, [])
            name = next((candidate for candidate in candidates if candidate in found), (candidates or [""])[0])
        if not name or name in found:
            continue
        found.add(name)
        for kind in ("Depends", "Pre-Depends"):
            for alternatives in _names(installed[name].get(kind, "")):
                known = [each for each in alternatives if each in installed or each in providers]
                todo += known[:1]
    return found


def _names(field: str) -> list[list[str]]:
    """Of a dependency field: for each comma the alternatives, without versions and architectures."""
    return [
        [re.split(r"[\s(:]", alternative.strip())[0] for alternative in part.split("|")]
        for part in field.split(",")
        if part.strip()
    ]


def _files(packages: Iterable[str]) -> set[str]:
    """Absolute paths; `/bin/x` as `/usr/bin/x` where the machine has merged the two."""
    found: set[str] = set()
    for package in packages:
        for path in (_LISTS / f"{package}.list", *_LISTS.glob(f"{package}:*.list")):
            if path.exists():
                found.update(path.read_text(encoding="utf-8").splitlines())
    merged = [name for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32") if os.path.islink(name)]
    if merged:
        found = {f"/usr{path}" if _MERGED.match(path) else path for path in found}
    found = {path for path in found if path not in ("/.", "") and not _SKIPPED.match(path) and os.path.lexists(path)}
    return found | set(merged) | _links_made_later(found)


def _links_made_later(found: set[str]) -> set[str]:
    """Links that no package holds: of alternatives (`awk`) and of the linker (`libx.so.1`)."""
    made: set[str] = set()
    folders = {os.path.dirname(path) for path in found if ".so" in path} | {"/usr/bin", "/usr/sbin"}
    for folder in folders:
        for entry in os.scandir(folder) if os.path.isdir(folder) else ():
            if entry.is_symlink() and os.path.realpath(entry.path) in found:
                made.add(entry.path)
    return made


def _copy(paths: list[str], folder: Path, *, recursive: bool = False) -> None:
    """Through a pipe of two tars, which keeps links, owners and rights."""
    read = ["tar", "-C", "/", "-cf", "-", "--null", "-T", "-"]
    if not recursive:
        read.insert(3, "--no-recursion")
    write = ["tar", "-C", str(folder), "-xf", "-"]
    names = b"".join(os.fsencode(path.lstrip("/")) + b"\0" for path in paths)
    with (
        subprocess.Popen(read, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as source,
        subprocess.Popen(write, stdin=source.stdout) as target,
    ):
        assert source.stdin is not None and source.stdout is not None
        source.stdout.close()
        source.stdin.write(names)
        source.stdin.close()
    if source.returncode or target.returncode:
        raise SandboxError(f"the system's files could not be copied to {folder} (tar: {source.returncode})")
