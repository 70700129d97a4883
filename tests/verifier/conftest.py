"""One browser and one sandbox factory for the whole session, both real."""

from collections.abc import Iterator

import pytest

from rollout.sandbox.install import install_template
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.template import Template, load_template
from tests.verifier.site_builds import SITES, Sites
from verifier.browser import Browser
from verifier.browser_page import RenderLimits
from verifier.tasks import load_task
from verifier.types import Task


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with Browser(max_pages=2) as browser:
        yield browser


@pytest.fixture(scope="session")
def template() -> Template:
    template = load_template("vite-react-bare")
    install_template(template)
    return template


@pytest.fixture(scope="session")
def sandboxes() -> Iterator[LocalSandboxes]:
    sandboxes = LocalSandboxes()
    yield sandboxes
    sandboxes.close()


@pytest.fixture(scope="session")
def sites(template: Template, sandboxes: LocalSandboxes) -> Sites:
    return Sites(template, sandboxes)


@pytest.fixture(scope="session")
def bakery() -> Task:
    return load_task(SITES / "bakery.json")


@pytest.fixture(scope="session")
def impatient() -> Iterator[Browser]:
    """For pages that hang: the same steps with lower bounds."""
    limits = RenderLimits(load_s=2.0, settle_s=1.0, answer_s=1.5, requests_s=0.5, probe_s=15.0)
    with Browser(max_pages=2, limits=limits) as browser:
        yield browser
