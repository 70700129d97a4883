"""Reading and writing a hostile project's files from outside, where a link could lead anywhere.

Every path is walked one component at a time by directory file descriptors that refuse links
(`O_NOFOLLOW` at each step), so that `out.txt -> /etc/shadow` or `src -> /` cannot take the host
out of the project, not even when a link appears between a check and its use.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_SNAPSHOT_FILE_BYTES = 16 << 20
MAX_SNAPSHOT_BYTES = 64 << 20
MAX_DEPTH = 64

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that opening a fifo returns at once instead of waiting for a writer.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def split_path(path: str) -> tuple[str, ...]:
    """The components of a relative path; `()` for the project itself.

    ValueError for what cannot name a project file: absolute, `..`, NUL, `node_modules`.

    >>> split_path("./src//App.tsx")
    ('src', 'App.tsx')
    """
    if "\0" in path:
        raise ValueError("path contains a NUL byte; use a plain relative path such as src/App.tsx")
    if path.startswith("/"):
        raise ValueError(f"path {path!r} is absolute; use one relative to the project, such as src/App.tsx")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ValueError(f"path {path!r} contains '..'; use a path inside the project")
    if parts and parts[0] == "node_modules":
        raise ValueError(f"path {path!r} is in node_modules, which is shared and read-only")
    if len(parts) > MAX_DEPTH:
        raise ValueError(f"path has {len(parts)} components; at most {MAX_DEPTH} are allowed")
    return parts


class ProjectFiles:
    """The files below one folder, owned by `owner` (user and group id) when that is given."""

    def __init__(self, root: Path, *, owner: int | None = None) -> None:
        self._root = root
        self._owner = owner

    def read(self, path: str, *, max_bytes: int) -> bytes:
        """One regular file. FileNotFoundError for anything else (absent, link, folder, device);
        OSError (EFBIG) when it is larger than `max_bytes`.
        """
        parts = split_path(path)
        if not parts:
            raise FileNotFoundError(errno.ENOENT, "not a file", path)
        try:
            with self._folder(parts[:-1]) as folder:
                return _read_at(folder, parts[-1], path, max_bytes)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.ENAMETOOLONG):
                raise FileNotFoundError(errno.ENOENT, "no such regular file", path) from None
            raise

    def write(self, path: str, data: bytes) -> None:
        """Replaces one file atomically, making its folders. OSError when a folder or link is in
        the way, or the disk is full.
        """
        parts = split_path(path)
        if not parts:
            raise IsADirectoryError(errno.EISDIR, "is the project folder", path)
        with self._folder(parts[:-1], create=True) as folder:
            # One name is enough: a sandbox has one writer, and a leftover of a dead one is removed.
            temporary = f".{os.getpid()}.part"
            try:
                self._create_at(folder, temporary, data)
                os.rename(temporary, parts[-1], src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                _unlink_at(folder, temporary)
                raise

    def list(self, path: str = ".") -> list[str]:
        """Regular files below `path`, sorted. Links, devices and `node_modules` are left out; so is
        everything when `path` is not a folder.
        """
        parts = split_path(path)
        try:
            with self._folder(parts) as folder:
                return sorted(_walk(folder, "/".join(parts)))
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG):
                return []
            raise

    def snapshot(self, path: str = ".") -> dict[str, bytes]:
        """`list` with contents. Files above 16 MiB, and all after the first 64 MiB, are left out:
        a project that large is not a page, and must not exhaust the host.
        """
        found: dict[str, bytes] = {}
        budget = MAX_SNAPSHOT_BYTES
        for name in self.list(path):
            try:
                data = self.read(name, max_bytes=min(budget, MAX_SNAPSHOT_FILE_BYTES))
            except OSError:
                continue
            found[name] = data
            budget -= len(data)
        return found

    @contextmanager
    def _folder(self, parts: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """An open descriptor of a folder of the project, reached without following any link."""
        current = os.open(self._root, _DIR_FLAGS)
        try:
            for part in parts:
                if create:
                    self._make_folder(current, part)
                following = os.open(part, _DIR_FLAGS, dir_fd=current)
                os.close(current)
                current = following
            yield current
        finally:
            os.close(current)

    def _make_folder(self, parent: int, name: str) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            return
        if self._owner is not None:
            os.chown(name, self._owner, self._owner, dir_fd=parent, follow_symlinks=False)

    def _create_at(self, folder: int, name: str, data: bytes) -> None:
        _unlink_at(folder, name)
        descriptor = os.open(name, _WRITE_FLAGS, 0o644, dir_fd=folder)
        try:
            if self._owner is not None:
                os.fchown(descriptor, self._owner, self._owner)
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)


def _read_at(folder: int, name: str, path: str, max_bytes: int) -> bytes:
    descriptor = os.open(name, _READ_FLAGS, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", path)
        chunks: list[bytes] = []
        left = max_bytes + 1
        while left > 0 and (chunk := os.read(descriptor, min(left, 1 << 20))):
            chunks.append(chunk)
            left -= len(chunk)
        if left <= 0:
            raise OSError(errno.EFBIG, f"larger than {max_bytes} bytes", path)
        return b"".join(chunks)
    finally:
        os.close(descriptor)


def _walk(folder: int, prefix: str, depth: int = 0) -> Iterator[str]:
    with os.scandir(folder) as entries:
        for entry in entries:
            path = f"{prefix}/{entry.name}" if prefix else entry.name
            if entry.is_file(follow_symlinks=False):
                yield os.fsencode(path).decode(errors="replace")
            elif entry.is_dir(follow_symlinks=False) and path != "node_modules" and depth < MAX_DEPTH:
                try:
                    inner = os.open(entry.name, _DIR_FLAGS, dir_fd=folder)
                except OSError:  # removed or swapped for a link since it was listed
                    continue
                try:
                    yield from _walk(inner, path, depth + 1)
                finally:
                    os.close(inner)


def _unlink_at(folder: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        pass
