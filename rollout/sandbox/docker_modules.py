"""A template's packages on a Docker engine: one volume, filled once, seen read-only by every sandbox.

A volume and not a bind mount, since the engine may be another machine.
"""

import hashlib
import io
import os
import tarfile
import tempfile
import uuid
from pathlib import Path
from typing import Any

import docker

from rollout.sandbox.docker_container import asked, remove_container
from rollout.sandbox.protocol import SandboxError
from rollout.sandbox.remote_owner import LABEL, new_run_name, owner_labels

_MARKER = ".webcoder-complete"
_TARGET = "/modules"
_HELPER_LIFETIME_S = 3600.0


def modules_volume(api: Any, image_id: str, node_modules: Path) -> str:
    """The name of the volume that holds a copy of `node_modules`. SandboxError.

    Its name is made of the contents, so several trainers share it. The copy's last file is a marker;
    without it the copy was cut short and is made again.
    """
    if not node_modules.is_dir():
        raise SandboxError(f"no folder {node_modules}; install templates with: python -m rollout.sandbox install")
    name = f"webcoder-modules-{_fingerprint(node_modules)}"
    asked("make a volume", lambda: api.create_volume(name, labels={LABEL: "1"}))
    helper = f"webcoder-copy-{uuid.uuid4().hex[:12]}"
    mount = docker.types.Mount(_TARGET, name, type="volume")
    asked(
        "make a container",
        lambda: api.create_container(
            image_id,
            ["true"],
            name=helper,
            entrypoint=[],
            labels=owner_labels(new_run_name(), _HELPER_LIFETIME_S),
            host_config=api.create_host_config(network_mode="none", mounts=[mount]),
        ),
    )
    try:
        # Never started: the engine itself unpacks into a volume.
        if not _is_complete(api, helper):
            with tempfile.TemporaryFile() as archive:
                _pack(node_modules, archive)
                archive.seek(0)
                asked("copy packages", lambda: api.put_archive(helper, _TARGET, archive))
            asked("copy packages", lambda: api.put_archive(helper, _TARGET, _marker()))
    finally:
        remove_container(api, helper)
    return name


def _fingerprint(folder: Path) -> str:
    """Of all names and sizes below `folder`."""
    digest = hashlib.sha256()
    for where, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(where, name)
            digest.update(f"{os.path.relpath(path, folder)}\0{os.lstat(path).st_size}\n".encode(errors="replace"))
    return digest.hexdigest()[:16]


def _is_complete(api: Any, helper: str) -> bool:
    try:
        chunks, _ = api.get_archive(helper, f"{_TARGET}/{_MARKER}")
        for _ in chunks:  # read to its end, so that the connection is free again
            pass
    except docker.errors.NotFound:
        return False
    return True


def _pack(folder: Path, target: Any) -> None:
    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode |= 0o444 | (0o111 if member.isdir() else 0)  # sandboxes read it as another user
        return member

    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.add(folder, arcname=".", filter=plain)


def _marker() -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(_MARKER))
    return target.getvalue()
