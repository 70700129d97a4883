"""Mounting and unmounting by system call: a tenth of the time of the `mount` command."""

import ctypes
import os
from pathlib import Path

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND = 1, 2, 4, 32, 4096
MNT_DETACH, UMOUNT_NOFOLLOW = 2, 8

_libc = ctypes.CDLL(None, use_errno=True)


def mount_tmpfs(target: Path, *, size_bytes: int, num_inodes: int, owner: int) -> None:
    """A file system of bounded size at `target`, owned by user and group id `owner`. OSError."""
    options = f"size={size_bytes},nr_inodes={num_inodes},mode=700,uid={owner},gid={owner}"
    _mount("webcoder", target, "tmpfs", MS_NOSUID | MS_NODEV, options)


def bind_read_only(source: Path, target: Path) -> None:
    """`source`, seen read-only at `target` too. OSError."""
    _mount(str(source), target, "", MS_BIND, "")
    try:
        _mount("", target, "", MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NODEV, "")
    except OSError:
        unmount(target)
        raise


def unmount(target: Path) -> None:
    """Detaches what is mounted at `target` now, even if it is in use. OSError."""
    if _libc.umount2(os.fsencode(target), MNT_DETACH | UMOUNT_NOFOLLOW) != 0:
        _raise_errno(target)


def mounts_below(folder: Path) -> list[Path]:
    """Mount points at or below `folder`, innermost first."""
    prefix = str(folder)
    found: list[Path] = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            # Field 5 is the mount point; blanks in it are written in octal.
            point = line.split()[4].replace("\\040", " ")
            if point == prefix or point.startswith(prefix + "/"):
                found.append(Path(point))
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    status = _libc.mount(
        os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    if status != 0:
        _raise_errno(target)


def _raise_errno(target: Path) -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code), str(target))
