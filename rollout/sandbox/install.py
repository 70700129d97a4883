"""Installs a template's packages once, whole or not at all."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from rollout.sandbox.template import LOCK_FILE, Template

MIN_NODE_MAJOR = 20
INSTALL_TIMEOUT_S = 600.0

# Vite writes into these two. They must exist in the shared tree so that each sandbox can mount a
# small private tmpfs over them; everything else in the tree stays read-only.
SCRATCH_DIRS = (".vite", ".vite-temp")


class InstallError(RuntimeError):
    """The packages could not be installed; the text says what to do about it."""


def install_template(template: Template) -> Path:
    """Makes `template.node_modules` if it is not there yet and returns it.

    Safe to call from several processes at once: each installs into its own temporary folder and
    the first to finish renames its folder into place. Raises InstallError.
    """
    target = template.node_modules
    if target.is_dir():
        return target
    check_node()
    store = target.parent.parent
    store.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{template.name}-", dir=store))
    try:
        for name in ("package.json", LOCK_FILE):
            (work / name).write_bytes(template.files[name])
        _npm_ci(work)
        for name in SCRATCH_DIRS:
            (work / "node_modules" / name).mkdir(exist_ok=True)
        work.chmod(0o755)
        try:
            work.rename(target.parent)
        except OSError:
            if not target.is_dir():  # anything but "another process was faster"
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return target


def check_node() -> None:
    """InstallError unless Node 20 or newer and npm can be run."""
    for name in ("node", "npm"):
        if shutil.which(name) is None:
            raise InstallError(f"{name} is not on PATH; install Node.js {MIN_NODE_MAJOR} or newer, npm included")
    answer = subprocess.run(["node", "--version"], capture_output=True, text=True, check=False).stdout.strip()
    found = re.match(r"v(\d+)\.", answer)
    if found is None or int(found.group(1)) < MIN_NODE_MAJOR:
        raise InstallError(f"node --version says {answer!r}; install Node.js {MIN_NODE_MAJOR} or newer")


def _npm_ci(folder: Path) -> None:
    """`npm ci` without package scripts: nothing that was downloaded runs outside a sandbox."""
    argv = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
    env = {"npm_config_update_notifier": "false", "npm_config_fetch_retries": "1", **os.environ}
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            umask=0o022,  # sandboxes read the tree under other user ids
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(
            f"npm ci did not end within {INSTALL_TIMEOUT_S:.0f} s; is the registry reachable?"
        ) from error
    if done.returncode != 0:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise InstallError(
            "npm ci failed; the package registry must be reachable once "
            "(or the packages be in npm's cache). npm said:\n  " + "\n  ".join(lines[:8])
        )
