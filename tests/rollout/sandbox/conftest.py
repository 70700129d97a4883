"""Real sandboxes, small enough that every limit can be reached in a moment."""

from collections.abc import Iterator

import pytest

from rollout.sandbox.install import install_template
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import Limits, Sandbox
from rollout.sandbox.template import Template, load_template

LIMITS = Limits(memory_bytes=384 << 20, num_processes=48, disk_bytes=24 << 20, max_output_bytes=20_000)


@pytest.fixture(scope="session")
def bare() -> Template:
    """The bare template, its packages installed."""
    template = load_template("vite-react-bare")
    install_template(template)
    return template


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[LocalSandboxes]:
    made = LocalSandboxes(LIMITS)
    yield made
    made.close()


@pytest.fixture
def sandbox(sandboxes: LocalSandboxes) -> Iterator[Sandbox]:
    """An empty project without packages."""
    made = sandboxes({})
    yield made
    made.close()
