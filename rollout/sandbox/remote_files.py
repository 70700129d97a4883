"""File work inside a container: standard library and `projectfiles` only, whose texts are sent there.

The container walks its own paths with the same refusal of links as the local backend does; the host
gets bytes and never opens a path of the sandbox itself.
"""

import io
import json
import os
import sys
import tarfile
from collections.abc import Mapping
from typing import Any, BinaryIO

from rollout.sandbox.projectfiles import ProjectFiles

MAX_LIST_BYTES = 8 << 20
"""Of names, all together; what comes after is left out."""


def answer(request: Mapping[str, Any], files: ProjectFiles, stdin: BinaryIO, stdout: BinaryIO) -> None:
    """Does `request["op"]`: read, write (a tar on `stdin`), list, or snapshot (a tar on `stdout`). OSError."""
    operation = request["op"]
    if operation == "read":
        stdout.write(files.read(request["path"], max_bytes=request["max_bytes"]))
    elif operation == "list":
        stdout.write(json.dumps(_bounded(files.list(request["path"]))).encode())
    elif operation == "snapshot":
        write_tar(stdout, files.snapshot(request["path"]))
    elif operation == "write":
        data = stdin.read(request["stdin_bytes"])
        with tarfile.open(fileobj=io.BytesIO(data), mode="r|") as archive:
            for member in archive:
                content = archive.extractfile(member)
                assert content is not None, "the host packs regular files only"
                files.write(member.name, content.read())
    else:
        raise ValueError(f"no operation {operation!r}")


def write_tar(target: BinaryIO, files: Mapping[str, bytes]) -> None:
    """A tar archive of regular files."""
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for path, data in files.items():
            member = tarfile.TarInfo(path)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def _bounded(names: list[str]) -> list[str]:
    left, kept = MAX_LIST_BYTES, []
    for name in names:
        left -= len(name.encode()) + 8
        if left < 0:
            break
        kept.append(name)
    return kept


def main() -> None:
    """Reads a request (a length, that many bytes of JSON, perhaps a tar) and answers it."""
    os.write(2, b"begun\n")
    stdin = sys.stdin.buffer
    request = json.loads(stdin.read(int(stdin.readline())))
    try:
        answer(request, ProjectFiles(request["root"]), stdin, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        status: dict[str, Any] = {"errno": 0}
    except OSError as error:
        status = {"errno": error.errno, "message": error.strerror}
    os.write(2, json.dumps(status).encode() + b"\n")
