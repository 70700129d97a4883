"""Sandboxes and a browser put to work: they make the agent's worlds, and they score what was made there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rollout.sandbox.protocol import SandboxFactory
from rollout.sandbox.template import Template, load_template
from rollout.world.protocol import World
from rollout.world.sandbox_world import SandboxWorld
from verifier.browser import Browser
from verifier.score import ScoreCache, score_project
from verifier.types import Report, Task, TaskError


def installed_template(name: str) -> Template:
    """A template whose packages are there. TaskError for an unknown one, or one that is not installed."""
    try:
        template = load_template(name)
    except ValueError as error:
        raise TaskError(f"template: {error}") from None
    if not template.node_modules.is_dir():
        raise TaskError(f"the packages of {name} are not installed; run `python -m rollout.sandbox install {name}`")
    return template


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """What worlds and verdicts share. Whoever made the sandboxes and the browser closes them."""

    make_sandbox: SandboxFactory
    browser: Browser
    templates: Mapping[str, Template]
    build_timeout_s: float = 60.0
    screenshots: bool = False
    """Worlds show pictures of pages, for a policy that can see them."""
    cache: ScoreCache = field(default_factory=ScoreCache)

    def make_world(self, task: Task) -> World:
        """An untouched project in a sandbox of its own. Raises `SandboxError`."""
        template = self.templates[task.template]
        sandbox = self.make_sandbox(template.files, node_modules=template.node_modules)
        return SandboxWorld(
            sandbox,
            template,
            self.browser,
            build_timeout_s=self.build_timeout_s,
            screenshots=self.screenshots,
        )

    def score(self, task: Task, files: Mapping[str, bytes], time_exhausted: bool) -> Report:
        """The verifier's judgement of a final project. Raises `InfrastructureError`."""
        return score_project(
            task,
            files,
            template=self.templates[task.template],
            make_sandbox=self.make_sandbox,
            browser=self.browser,
            time_exhausted=time_exhausted,
            cache=self.cache,
            build_timeout_s=self.build_timeout_s,
        )
