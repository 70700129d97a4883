"""The engine's own environment: made from its lock, checked, and never mixed with the trainer's.

vLLM needs torch and pins one Python version here, so it lives in a second virtual environment beside the
packages (`.venv-engine`, or the folder in `WEBCODER_ENGINE`). Making it takes about a minute on a warm
package cache; asking again for one that is up to date takes milliseconds.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = Path(__file__).resolve().parent / "vllm_plugin"
LOCK = ROOT / "locks" / "engine.txt"
PYTHON_VERSION = "3.11"
RECIPE = "1"
"""Raise it when the steps below change, so that environments made before count as stale."""

# The CPU wheel is published under another name than the one that vLLM asks its own version by.
STUB = "vllm-0.32.0+cpu.dist-info"
STUB_METADATA = "Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n"


class InstallError(RuntimeError):
    """The engine's environment could not be made. The text says what failed and what to do."""


def engine_folder() -> Path:
    """Where the environment is, or would be."""
    return Path(os.environ.get("WEBCODER_ENGINE") or ROOT / ".venv-engine")


def engine_python() -> Path:
    """The interpreter of an environment that is there and up to date. Raises `InstallError`."""
    folder = engine_folder()
    if not _is_current(folder):
        state = "is out of date" if folder.exists() else "is not there"
        raise InstallError(f"the engine's environment {folder} {state}: run `python -m rollout.vllm_server install`")
    return folder / "bin" / "python"


def install_engine() -> Path:
    """Make or repair the environment; returns its interpreter. Raises `InstallError`."""
    folder = engine_folder()
    if _is_current(folder):
        return folder / "bin" / "python"
    if not LOCK.is_file():
        raise InstallError(f"{LOCK} is missing: run this from a checkout of the project")
    with _alone():
        if not _is_current(folder):
            _make(folder)
    return folder / "bin" / "python"


def _make(folder: Path) -> None:
    uv = _uv()
    python = folder / "bin" / "python"
    if _version_of(python) != PYTHON_VERSION:
        _run([*uv, "venv", "--quiet", "--clear", "--python", _find_python(), str(folder)], "make the environment")
    else:
        (folder / "webcoder.stamp").unlink(missing_ok=True)
    sync = [*uv, "pip", "sync", "--quiet", "--python", str(python), "--require-hashes"]
    _run([*sync, *_sources(), str(LOCK)], "install the packages of locks/engine.txt")
    _add_stub(folder)
    _install_plugin(uv, python)
    check = "import vllm.v1.worker.cpu_worker, vllm.entrypoints.cli.main, webcoder_vllm.backend"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    # Also writes the byte code, without which each start of the server takes 12 s longer.
    _run([str(python), "-W", "ignore", "-c", check], "import vLLM", environment)
    (folder / "webcoder.stamp").write_text(_fingerprint())


def _install_plugin(uv: list[str], python: Path) -> None:
    # Built from a copy: setuptools writes its build folders beside the source.
    copy = python.parent.parent / "webcoder-plugin"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(PLUGIN, copy, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--reinstall-package", "webcoder-vllm"]
    _run([*uv, "pip", "install", "--python", str(python), *options, str(copy)], "install our vLLM plugin")
    shutil.rmtree(copy)


def _add_stub(folder: Path) -> None:
    stub = folder / "lib" / f"python{PYTHON_VERSION}" / "site-packages" / STUB
    stub.mkdir(exist_ok=True)
    (stub / "METADATA").write_text(STUB_METADATA)
    (stub / "INSTALLER").write_text("webcoder\n")
    (stub / "RECORD").write_text(f"{STUB}/METADATA,,\n{STUB}/INSTALLER,,\n{STUB}/RECORD,,\n")


def _sources() -> list[str]:
    """Where the CPU build of torch comes from: the folders pip was told of, else uv's own knowledge."""
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    if not folders:
        return ["--torch-backend", "cpu"]
    return [part for folder in folders for part in ("--find-links", folder)]


def _uv() -> list[str]:
    found = shutil.which("uv")
    if found:
        return [found]
    if subprocess.run([sys.executable, "-m", "uv", "--version"], capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", "uv"]
    raise InstallError("uv is needed to install the engine: run `pip install uv`")


def _find_python() -> str:
    """An interpreter of the right version; the bare version, for uv to fetch, when none is on this machine."""
    candidates = [sys.executable, shutil.which(f"python{PYTHON_VERSION}") or ""]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    candidates += [str(path) for path in sorted(pyenv.glob(f"versions/{PYTHON_VERSION}.*/bin/python{PYTHON_VERSION}"))]
    for candidate in candidates:
        if candidate and _version_of(Path(candidate)) == PYTHON_VERSION:
            return candidate
    return PYTHON_VERSION


def _version_of(python: Path) -> str:
    if not python.exists():
        return ""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    result = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def _is_current(folder: Path) -> bool:
    stamp = folder / "webcoder.stamp"
    return (folder / "bin" / "python").exists() and stamp.is_file() and stamp.read_text() == _fingerprint()


def _fingerprint() -> str:
    digest = hashlib.sha256(RECIPE.encode())
    for path in [LOCK, *sorted(PLUGIN.rglob("*.toml")), *sorted(PLUGIN.glob("webcoder_vllm/*.py"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _run(argv: list[str], what: str, environment: dict[str, str] | None = None) -> None:
    result = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    if result.returncode != 0:
        tail = "\n".join((result.stderr or result.stdout).strip().splitlines()[-15:])
        raise InstallError(f"could not {what}\n  command: {' '.join(argv)}\n{tail}")


@contextmanager
def _alone() -> Iterator[None]:
    """Two commands must not fill one environment at once; the lock file's own inode is what they wait on."""
    with LOCK.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
