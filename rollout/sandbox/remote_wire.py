"""What the host and our programs inside a container say to each other.

A container needs nothing of ours but `/usr/bin/python3`: every exec starts a one-line bootstrap, which
reads the program itself from its standard input, then the program's request. So a container's image
is never older than the code that uses it, and no request is cut by a limit on command lines.

    length, newline, JSON list of [module, source]; length, newline, JSON request; raw bytes

A program first writes the line `begun` to standard error, and at its end one line of JSON: its status.
A stream that ends without a status is a program that was killed.
"""

import functools
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollout.sandbox.projectfiles import MAX_SNAPSHOT_BYTES, split_path
from rollout.sandbox.protocol import SandboxError
from rollout.sandbox.remote_files import write_tar

PYTHON = ("/usr/bin/python3", "-I", "-S", "-c")
_BOOTSTRAP = """
import json, sys
source = sys.stdin.buffer
for name, text in json.loads(source.read(int(source.readline()))):
    module = sys.modules[name] = type(sys)(name)
    exec(compile(text, name, "exec"), module.__dict__)
module.main()
"""
EXEC_ARGV = (*PYTHON, _BOOTSTRAP)
"""Starts any program that follows on standard input."""

MAX_STATUS_BYTES = 64 << 10
MAX_TAR_BYTES = MAX_SNAPSHOT_BYTES + (32 << 20)
"""Of a snapshot: its contents, and what a tar adds for names and padding."""

_BEGUN = b"begun\n"
_KEEPER = "WEBCODER_KEEPER"


def keeper_argv(lifetime_s: float) -> list[str]:
    """Process 1 of a container that ends itself after `lifetime_s`; needs `keeper_env`."""
    return [*PYTHON, f"import os; exec(os.environ[{_KEEPER!r}])", str(lifetime_s)]


def keeper_env() -> dict[str, str]:
    """The container's environment: our keeper's text. Not on its command line, where `ps` would show it."""
    return {_KEEPER: _source("remote_keeper")}


def command_request(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    timeout_s: float,
    max_output_bytes: int,
    persistent: bool,
    stdin: bytes,
) -> bytes:
    """The input of an exec that runs a command; see `remote_runner.run`."""
    request = {
        "argv": list(argv),
        "cwd": cwd,
        "env": dict(env),
        "timeout_s": timeout_s,
        "max_output_bytes": max_output_bytes,
        "persistent": persistent,
        "stdin_bytes": len(stdin),
    }
    return _program("remote_runner") + _counted(request) + stdin


def file_request(operation: str, root: str, *, tar: bytes = b"", **arguments: str | int) -> bytes:
    """The input of an exec that does file work below `root`; see `remote_files.answer`."""
    request = {"op": operation, "root": root, "stdin_bytes": len(tar), **arguments}
    return _program("projectfiles", "remote_files") + _counted(request) + tar


def has_begun(stderr: bytes) -> bool:
    """True once the program runs: from then on its own time limits count."""
    return stderr.startswith(_BEGUN)


def parse_status(stderr: bytes) -> dict[str, Any] | None:
    """The program's last word, or None if it was killed before that.

    >>> parse_status(b'begun\\n{"exit_code": 0}\\n')
    {'exit_code': 0}
    >>> parse_status(b'begun\\n{"exit_co') is None
    True
    """
    if not has_begun(stderr) or not stderr.endswith(b"\n"):
        return None
    try:
        status = json.loads(stderr.removeprefix(_BEGUN))
    except ValueError:
        return None
    return status if isinstance(status, dict) else None


def pack(files: Mapping[str, bytes]) -> bytes:
    """Files as a tar. ValueError for a path that is not inside the project."""
    target = io.BytesIO()
    write_tar(target, {"/".join(split_path(path)): data for path, data in files.items()})
    return target.getvalue()


def unpack(tar: bytes) -> dict[str, bytes]:
    """Regular files of a tar that a container sent: read into memory, nothing else is looked at.

    The container is hostile: a name outside the project, a sparse file (which could claim any
    size) or an archive that is none is a `SandboxError`.
    """
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r|") as archive:
            for member in archive:
                if member.issparse() or not member.isreg() or member.size > len(tar):
                    raise SandboxError(f"a sandbox sent something else than a file: {member.name!r}")
                content = archive.extractfile(member)
                assert content is not None, "regular files have content"
                found["/".join(split_path(member.name))] = content.read()
    except (tarfile.TarError, ValueError, OSError) as error:
        raise SandboxError(f"a sandbox sent no usable archive: {error}") from error
    return found


@functools.cache
def _source(module: str) -> str:
    return (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")


@functools.cache
def _program(*modules: str) -> bytes:
    # The packages are named too, empty, so that one program can import the other by its usual name.
    named = [["rollout", ""], ["rollout.sandbox", ""]]
    return _counted([*named, *([f"rollout.sandbox.{module}", _source(module)] for module in modules)])


def _counted(value: object) -> bytes:
    text = json.dumps(value).encode()
    return b"%d\n%b" % (len(text), text)
