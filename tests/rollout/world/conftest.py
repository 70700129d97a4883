"""A real world: real sandboxes, the bare template, one shared Chromium."""

from collections.abc import Callable, Iterator

import pytest

from rollout.calls import ToolCall
from rollout.sandbox.install import install_template
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import Limits
from rollout.sandbox.template import Template, load_template
from rollout.world.sandbox_world import SandboxWorld
from verifier.browser import Browser


@pytest.fixture(scope="module")
def template() -> Template:
    loaded = load_template("vite-react-bare")
    install_template(loaded)
    return loaded


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[LocalSandboxes]:
    made = LocalSandboxes(Limits(disk_bytes=16 << 20))
    yield made
    made.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser(max_pages=1) as started:
        yield started


@pytest.fixture
def world(sandboxes: LocalSandboxes, template: Template, browser: Browser) -> Iterator[SandboxWorld]:
    sandbox = sandboxes(template.files, node_modules=template.node_modules)
    made = SandboxWorld(sandbox, template, browser, bash_timeout_s=2.0)
    yield made
    made.close()


@pytest.fixture
def page_of(world: SandboxWorld) -> Callable[[str], str]:
    """Writes `src/App.tsx` and returns what a webshot says."""

    def look(source: str) -> str:
        world.execute(ToolCall(name="write", arguments={"path": "src/App.tsx", "content": source}))
        return world.execute(ToolCall(name="webshot")).text

    return look
