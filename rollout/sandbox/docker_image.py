"""`python -m rollout.sandbox image`: the sandbox image, made from this machine's own packages.

For engines that reach no registry. Where one is reached, `docker build rollout/sandbox/images` makes
the image from Debian's. A Kubernetes cluster loads it from `docker save`, or pulls it after a `push`.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from rollout.sandbox.docker_rootfs import PACKAGES, make_rootfs
from rollout.sandbox.protocol import SandboxError

MODULES_ROOT = "/opt/webcoder"
"""Where an image holds templates' packages: `<this>/<name>-<hash>/node_modules`."""


def make_image(tag: str, *, node_modules: Sequence[Path] = (), packages: Iterable[str] = PACKAGES) -> str:
    """Imports the image into the engine of DOCKER_HOST as `tag`; what it holds, in words.

    `node_modules`: packages of templates to put in, which Kubernetes needs and Docker does not.
    Raises SandboxError.
    """
    if os.geteuid() != 0:
        raise SandboxError("the image holds files of root: run this as root (sudo)")
    if shutil.which("docker") is None:
        raise SandboxError("docker is not on PATH; install its command line (apt-get install docker.io)")
    with tempfile.TemporaryDirectory(prefix="webcoder-image-") as work:
        root = Path(work, "root")
        count = make_rootfs(root, packages)
        for source in node_modules:
            target = root / MODULES_ROOT.lstrip("/") / source.parent.name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.parent.chmod(0o755)
            target.mkdir(mode=0o755)
            subprocess.run(["cp", "-a", "--no-preserve=ownership", str(source), str(target)], check=True)
        _import(root, tag)
    inside = ", ".join(source.parent.name for source in node_modules) or "none"
    return f"{tag}: {count} Debian packages of this machine; templates inside: {inside}"


def _import(root: Path, tag: str) -> None:
    read = ["tar", "-C", str(root), "--numeric-owner", "-cf", "-", "."]
    write = ["docker", "import", "-c", "USER 1000:1000", "-c", "WORKDIR /workspace", "-", tag]
    with (
        subprocess.Popen(read, stdout=subprocess.PIPE) as source,
        subprocess.Popen(write, stdin=source.stdout, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as target,
    ):
        assert source.stdout is not None
        source.stdout.close()
        said = target.communicate()[1].decode(errors="replace").strip()
    if source.returncode or target.returncode:
        raise SandboxError(f"docker import failed (is an engine running at DOCKER_HOST?): {said}")


def build_command(tag: str, node_modules: Sequence[Path]) -> int:
    """The command itself. Exit code 0, or 3 when it could not be done."""
    try:
        print(make_image(tag, node_modules=node_modules))
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0
