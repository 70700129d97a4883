"""The projects of tests/sites as files, and each built at most once."""

import threading
from collections.abc import Mapping
from pathlib import Path

from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.template import Template
from verifier.build import build_project
from verifier.types import Built

SITES = Path(__file__).parent.parent / "sites"


def site_files(name: str, template: Template) -> dict[str, bytes]:
    """The files of tests/sites/NAME on top of the template."""
    folder = SITES / name
    own = {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert own, f"no such site: {name}"
    return {**template.files, **own}


class Sites:
    """The sites of tests/sites, each built at most once."""

    def __init__(self, template: Template, sandboxes: LocalSandboxes) -> None:
        self._template = template
        self._sandboxes = sandboxes
        self._built: dict[str, Built] = {}
        self._lock = threading.Lock()

    def files(self, name: str) -> dict[str, bytes]:
        return site_files(name, self._template)

    def built(self, name: str) -> Built:
        with self._lock:
            if name not in self._built:
                files = self.files(name)
                self._built[name] = build_project(files, self._template, self._sandboxes)
            return self._built[name]

    def dist(self, name: str) -> Mapping[str, bytes]:
        built = self.built(name)
        assert built.ok, built.log
        return built.dist
