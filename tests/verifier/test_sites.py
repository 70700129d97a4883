"""The verifier on small real projects: broken < partial < good, and each gate for its reason."""

import re

import pytest

from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.template import Template
from tests.verifier.site_builds import Sites
from verifier.browser import Browser
from verifier.build import BuildTemplate
from verifier.reward import score_evidence
from verifier.score import ScoreCache, score_project
from verifier.types import Report, Task

pytestmark = [pytest.mark.browser, pytest.mark.sandbox]


def judge(name: str, sites: Sites, browser: Browser, task: Task) -> Report:
    built = sites.built(name)
    return score_evidence(task, built, browser.render(built.dist) if built.ok else None)


def test_broken_is_worth_less_than_partial_and_partial_less_than_good(
    sites: Sites, browser: Browser, bakery: Task
) -> None:
    reward = {n: judge(n, sites, browser, bakery).reward for n in ("broken-build", "half", "good")}
    assert reward["broken-build"] == 0.0
    assert 0.2 < reward["half"] < 0.7
    assert reward["good"] == 1.0


@pytest.mark.parametrize(
    ("site", "gate", "says"),
    [
        ("broken-build", "build", "exit code 1"),
        ("missing-import", "build", "missing.css"),
        ("blank", "render", "no visible text"),
        ("throws", "render", "Cannot read properties of null"),
        ("wrong-root", "render", "Target container|React error|not a DOM element"),
    ],
)
def test_gates_close_for_the_right_reason(
    site: str, gate: str, says: str, sites: Sites, browser: Browser, bakery: Task
) -> None:
    report = judge(site, sites, browser, bakery)
    closed = [g for g in report.gates if not g.ok]
    assert report.reward == 0.0 and closed[0].name == gate
    assert re.search(says, closed[0].reason), closed[0].reason


def test_text_that_nobody_can_see_earns_nothing(sites: Sites, browser: Browser, bakery: Task) -> None:
    page = browser.render(sites.dist("stuffed"))
    assert page.census.text == "Welcome\nMore"
    assert page.census.counts["buttons"] == page.census.counts["list_items"] == 0
    assert score_evidence(bakery, sites.built("stuffed"), page).reward == 0.0


def test_a_broken_image_is_reported_and_not_counted(sites: Sites, browser: Browser) -> None:
    page = browser.render(sites.dist("broken-image"))
    assert page.ok and page.census.counts["images"] == 1
    assert page.census.broken_images == ("/bread.png",)
    assert page.failed_requests == ("/bread.png (404)",)


def test_dialogs_and_popups_hold_nothing_up(sites: Sites, browser: Browser) -> None:
    page = browser.render(sites.dist("alerts"))
    assert page.ok and page.census.text == "Rye & Co" and page.seconds < 5


def test_a_network_that_is_never_idle_holds_nothing_up(sites: Sites, browser: Browser) -> None:
    page = browser.render(sites.dist("endless-polling"))
    assert page.ok and page.census.text.startswith("Rye & Co, tick ") and page.seconds < 10


def test_scoring_from_files_and_identical_work_is_done_once(
    sites: Sites,
    browser: Browser,
    bakery: Task,
    template: Template,
    sandboxes: LocalSandboxes,
) -> None:
    cache = ScoreCache()
    as_protocol: BuildTemplate = template

    def score(late: bool) -> Report:
        return score_project(
            bakery,
            sites.files("good") | {"dist/index.html": b"stale", "vite.config.js": b"throw 1"},
            template=as_protocol,
            make_sandbox=sandboxes,
            browser=browser,
            time_exhausted=late,
            cache=cache,
        )

    first, late = score(False), score(True)
    assert (cache.misses, cache.hits) == (1, 1)
    assert first.reward == 1.0 and late.reward == pytest.approx(0.9)
    assert first.screenshot.startswith(b"\x89PNG") and first.seconds["build"] > 0


def test_a_page_that_never_lets_go_is_a_verdict_within_bounds(sites: Sites, impatient: Browser, bakery: Task) -> None:
    page = impatient.render(sites.dist("endless-loop"))
    assert not page.ok and page.reason.startswith("unresponsive") and page.screenshot == b""
    assert score_evidence(bakery, sites.built("endless-loop"), page).reward == 0.0
