"""Builds a project: in a sandbox that exists (the agent's webshot) or in a fresh one (the verdict).

What comes out is data: project code runs only inside the sandbox, and `dist` is served by us.
"""

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from rollout.sandbox.protocol import Sandbox, SandboxError, SandboxFactory
from verifier.types import Built, InfrastructureError

MAX_PROJECT_BYTES = 48 << 20
MAX_DIST_BYTES = 48 << 20
MAX_DIST_FILES = 2000

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_NOT_SOURCES = ("dist", ".git")  # at the top of a project; node_modules is left out at any depth
# Vite prefers some of these spellings to the template's own: any of them would bend the build.
_BUILD_CONFIG = re.compile(r"^vite\.config\.[cm]?[jt]s$")


class BuildTemplate(Protocol):
    """What a build needs to know of a template (`rollout.sandbox.template.Template` is one)."""

    @property
    def files(self) -> Mapping[str, bytes]: ...

    @property
    def protected(self) -> tuple[str, ...]: ...

    @property
    def build_argv(self) -> tuple[str, ...]: ...

    @property
    def node_modules(self) -> Path: ...


def build_inputs(files: Mapping[str, bytes], template: BuildTemplate) -> dict[str, bytes]:
    """The files that the verdict is built from.

    The project's own sources, without what it built or installed itself, and with the template's
    protected files (package list, build configuration) put back.
    """
    kept: dict[str, bytes] = {}
    for path, data in files.items():
        parts = path.split("/")
        if "node_modules" in parts or (parts[0] in _NOT_SOURCES and len(parts) > 1):
            continue
        if not _BUILD_CONFIG.match(path):
            kept[path] = data
    return kept | {path: template.files[path] for path in template.protected}


def build_in(sandbox: Sandbox, template: BuildTemplate, *, timeout_s: float = 60.0) -> Built:
    """Builds the project that `sandbox` holds, as it is, and takes `dist` out.

    A build that fails, takes too long or writes no usable `dist` is `ok` False; the last line of
    its log then starts with `[build]` and says which. SandboxError when the sandbox fails.
    """
    started = time.monotonic()
    # The old output goes first: a failed build must not be judged by an earlier one.
    argv = ("sh", "-c", 'rm -rf dist && exec "$@"', "build", *template.build_argv)
    result = sandbox.exec(argv, timeout_s=timeout_s)
    text = _ANSI.sub("", result.output).rstrip()
    if result.dropped_bytes:
        text += f"\n({result.dropped_bytes} more bytes of output were dropped)"
    dist: dict[str, bytes] = {}
    if result.timed_out or result.exit_code is None:
        verdict = f"time-out: stopped after {timeout_s:g} s"
    elif result.exit_code != 0:
        verdict = f"exit code {result.exit_code}"
    else:
        dist = {path.removeprefix("dist/"): data for path, data in sandbox.snapshot("dist").items()}
        verdict = _unusable(dist)
    return Built(
        ok=not verdict,
        log=f"{text}\n[build] {verdict}".lstrip() if verdict else text,
        dist={} if verdict else dist,
        seconds=time.monotonic() - started,
    )


def _unusable(dist: Mapping[str, bytes]) -> str:
    """Why this output cannot be judged; empty when it can."""
    if not dist:
        return "no output: the build ended well but wrote nothing into dist/"
    size = sum(len(data) for data in dist.values())
    if size > MAX_DIST_BYTES or len(dist) > MAX_DIST_FILES:
        return (
            f"too large: dist/ holds {size >> 20} MiB in {len(dist)} files; "
            f"at most {MAX_DIST_BYTES >> 20} MiB in {MAX_DIST_FILES} files are judged"
        )
    return ""


def build_project(
    files: Mapping[str, bytes],
    template: BuildTemplate,
    make_sandbox: SandboxFactory,
    *,
    timeout_s: float = 60.0,
) -> Built:
    """Builds a copy of `files` in a fresh sandbox. InfrastructureError when the sandbox fails."""
    inputs = build_inputs(files, template)
    size = sum(len(data) for data in inputs.values())
    if size > MAX_PROJECT_BYTES:
        limit = MAX_PROJECT_BYTES >> 20
        log = f"[build] too large: the project holds {size >> 20} MiB; at most {limit} MiB are built"
        return Built(ok=False, log=log, dist={}, seconds=0.0)
    try:
        sandbox = make_sandbox(inputs, node_modules=template.node_modules)
        try:
            return build_in(sandbox, template, timeout_s=timeout_s)
        finally:
            sandbox.close()
    except SandboxError as error:
        raise InfrastructureError(f"the build sandbox failed: {error}") from error
