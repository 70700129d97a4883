"""Project scaffolds that ship with the package: files as data, and where their packages live.

A template's own files are in `templates/<name>/`. Its `node_modules` is installed once by
`python -m rollout.sandbox install` and shared, read-only, by every sandbox (see `install.py`).
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

TEMPLATES_DIR = Path(__file__).parent / "templates"
LOCK_FILE = "package-lock.json"

# What decides how a project is built. The verifier puts these back, so that a page is judged by
# the build that everyone gets and not by one that the agent bent.
PROTECTED = (
    "package.json",
    LOCK_FILE,
    "postcss.config.js",
    "tsconfig.json",
    "tsconfig.app.json",
    "tsconfig.node.json",
    "vite.config.ts",
)

# The script itself and not `npm run build`: npm alone would cost as much CPU as the build.
BUILD_ARGV = ("node", "node_modules/vite/bin/vite.js", "build")


@dataclass(frozen=True, kw_only=True)
class Template:
    """A scaffold: a new project starts as `files`, builds with `build_argv` into `dist/`."""

    name: str
    files: dict[str, bytes]
    protected: tuple[str, ...]
    """Paths the verifier restores to this template's version before it builds."""
    build_argv: tuple[str, ...]
    node_modules: Path
    """May not exist yet: `rollout.sandbox.install.install_template` makes it."""


def toolchain_dir() -> Path:
    """Where installed things go: `$WEBCODER_HOME`, or `.toolchain` beside the packages."""
    home = os.environ.get("WEBCODER_HOME", "")
    return Path(home).absolute() if home else Path(__file__).resolve().parents[2] / ".toolchain"


def template_names() -> tuple[str, ...]:
    """All shipped templates, sorted."""
    return tuple(sorted(path.parent.name for path in TEMPLATES_DIR.glob(f"*/{LOCK_FILE}")))


def load_template(name: str) -> Template:
    """The template called `name`. ValueError that lists the known ones if there is none.

    >>> sorted(load_template("vite-react-bare").files)[:2]
    ['index.html', 'package-lock.json']
    """
    if name not in template_names():
        raise ValueError(f"no template {name!r}; known templates: {', '.join(template_names())}")
    root = TEMPLATES_DIR / name
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "node_modules" not in path.relative_to(root).parts
    }
    # The folder's name carries the lock file's hash: a changed lock can never meet old packages.
    lock_hash = hashlib.sha256(files[LOCK_FILE]).hexdigest()[:12]
    return Template(
        name=name,
        files=files,
        protected=tuple(path for path in PROTECTED if path in files),
        build_argv=BUILD_ARGV,
        node_modules=toolchain_dir() / "templates" / f"{name}-{lock_hash}" / "node_modules",
    )
