"""One page in one fresh context: load, settle, sweep, census, picture. Every step is bounded.

A page that hangs, crashes or shows nothing is a verdict (`Page.ok` False); only a browser that
does not answer is an error of ours (`BrowserLost`).
"""

import asyncio
import base64
import json
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from verifier.browser_world import PageThrew, World, guard_navigations
from verifier.census import census_expression, parse_census, script
from verifier.text import normalize
from verifier.types import Census, Page

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, CDPSession, Dialog, Request, Response
    from playwright.async_api import Page as Tab

T = TypeVar("T")

NOTHING = Census(text="")


class BrowserLost(RuntimeError):
    """The browser itself does not answer; the page has not been judged."""


@dataclass(frozen=True, kw_only=True)
class RenderLimits:
    """Upper bounds for one page; an ordinary page needs none of them."""

    load_s: float = 8.0
    """Until the document has loaded; a page that is still loading then is judged as it is."""
    settle_s: float = 6.0
    """For passing virtual time, each of two times."""
    requests_s: float = 2.0
    """Wait for requests still open after loading (a poll that never ends must not hold us)."""
    answer_s: float = 5.0
    """For one answer of the page (sweep, census); none: the page is unresponsive."""
    probe_s: float = 3.0
    """For an empty page to open and answer (it takes 0.2 s) before a silent page is blamed; a
    machine too busy for that cannot judge, which is an error of ours."""
    screenshot_s: float = 10.0
    virtual_ms: int = 5000
    """How much of the page's own time passes before it is judged."""
    width: int = 1440
    height: int = 900
    max_height: int = 20_000
    """CSS px of the page shown in the picture."""
    max_navigations: int = 4


@dataclass
class _Log:
    """What the browser reported while the page was open."""

    console: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    page_errors: list[str] = field(default_factory=list)
    open_requests: set["Request"] = field(default_factory=set)
    phases: dict[str, float] = field(default_factory=dict)
    crashed: bool = False
    status: int | None = None


def _keep(where: list[str], text: str) -> None:
    if len(where) < 50:
        where.append(" ".join(text.split())[:400])


def _listen(tab: "Tab", seen: _Log, origin: str) -> None:
    """Attached before navigation, so that nothing of the page's start is missed."""

    def failed(request: "Request") -> None:
        seen.open_requests.discard(request)
        _keep(seen.failed, f"{request.url.removeprefix(origin)} ({request.failure or 'failed'})")

    def answered(response: "Response") -> None:
        request = response.request
        if request.is_navigation_request() and request.frame == tab.main_frame:
            seen.status = response.status
        if response.status >= 400:
            _keep(seen.failed, f"{response.url.removeprefix(origin)} ({response.status})")

    def crashed(_: "Tab") -> None:
        seen.crashed = True

    async def dismiss(dialog: "Dialog") -> None:
        await dialog.dismiss()

    def threw(error: object) -> None:
        _keep(seen.page_errors, str(error))
        _keep(seen.console, str(error))

    tab.on("console", lambda m: _keep(seen.console, m.text) if m.type == "error" else None)
    tab.on("pageerror", threw)
    tab.on("request", lambda r: seen.open_requests.add(r))
    tab.on("requestfinished", lambda r: seen.open_requests.discard(r))
    tab.on("requestfailed", failed)
    tab.on("response", answered)
    tab.on("crash", crashed)
    tab.on("dialog", dismiss)


class PageRender:
    """The steps for one page; `run` is the whole of it."""

    def __init__(self, browser: "Browser", limits: RenderLimits, *, screenshot: bool) -> None:
        self._browser = browser
        self._limits = limits
        self._wants_screenshot = screenshot
        self._seen = _Log()
        self._arrived = asyncio.Event()

    async def run(self, host: str, path: str) -> Page:
        """Renders http://HOST/PATH. BrowserLost if the browser is gone; never for a bad page."""
        started = time.monotonic()
        context = await self._must(self._new_context(), 15.0)
        try:
            tab = await self._must(context.new_page(), 15.0)
            page = await self._judge(tab, f"http://{host}", path)
        finally:
            # A wedged renderer can block this; the caller then finds the browser unhealthy.
            await self._try(context.close(), 4.0)
        self._seen.phases["total"] = time.monotonic() - started
        return page

    @property
    def phases(self) -> dict[str, float]:
        """Wall seconds by phase, for profiling."""
        return self._seen.phases

    async def _new_context(self) -> "BrowserContext":
        context = await self._browser.new_context(
            viewport={"width": self._limits.width, "height": self._limits.height},
            device_scale_factor=1,
            reduced_motion="reduce",
            color_scheme="light",
            locale="en-US",
            timezone_id="UTC",
            service_workers="block",
            accept_downloads=False,
        )
        await context.add_init_script(script("prelude"))
        return context

    async def _must(self, work: Awaitable[T], limit_s: float) -> T:
        """For steps that depend on the browser alone."""
        from playwright.async_api import Error

        try:
            return await asyncio.wait_for(work, limit_s)
        except (TimeoutError, Error) as error:
            raise BrowserLost(f"the browser does not answer: {error}") from error

    async def _try(self, work: Awaitable[T], limit_s: float) -> T | None:
        """For steps that a page can spoil: None when it does not answer in time or refuses."""
        from playwright.async_api import Error

        try:
            return await asyncio.wait_for(work, limit_s)
        except (TimeoutError, Error, PageThrew):
            return None

    async def _phase(self, name: str, work: Awaitable[T], limit_s: float) -> T | None:
        started = time.monotonic()
        try:
            return await self._try(work, limit_s)
        finally:
            self._seen.phases[name] = time.monotonic() - started

    async def _judge(self, tab: "Tab", origin: str, path: str) -> Page:
        started = time.monotonic()
        limits, seen = self._limits, self._seen
        _listen(tab, seen, origin)
        tab.context.on("page", lambda popup: asyncio.ensure_future(self._try(popup.close(), 4.0)))
        cdp = await self._must(tab.context.new_cdp_session(tab), 10.0)
        guard = guard_navigations(cdp, origin, limits.max_navigations, self._arrived.set)
        await self._must(guard, 10.0)
        world = World(cdp)
        url = f"{origin}/{path.lstrip('/')}"
        loaded = await self._phase("load", self._load(tab, cdp, url), limits.load_s)
        raw = None
        # Not loaded in time may be one slow file; no answer either means that a script never ends.
        if (loaded or await self._answers(world)) and await self._settle(world):
            raw = await self._phase("census", world.value(census_expression()), limits.answer_s)
        census = NOTHING if raw is None else parse_census(raw, origin=origin)
        screenshot = b""
        if self._wants_screenshot and raw is not None and not seen.crashed:
            shot = self._shoot(cdp, census.height)
            screenshot = await self._phase("screenshot", shot, limits.screenshot_s) or b""
        reason = self._reason(tab.url, origin, raw, census)
        return Page(
            ok=not reason,
            reason=reason,
            census=census,
            screenshot=screenshot,
            console_errors=tuple(seen.console),
            failed_requests=tuple(seen.failed),
            seconds=time.monotonic() - started,
        )

    async def _answers(self, world: "World") -> bool:
        return bool(await self._phase("answer", world.value("true"), self._limits.answer_s))

    async def _settle(self, world: "World") -> bool:
        """Lets the page's own time pass, before and after it was scrolled through.

        False when the page no longer answers at all.
        """
        limits = self._limits
        first = {"virtualMs": limits.virtual_ms // 5, "realMs": limits.settle_s * 1000}
        then = {"virtualMs": limits.virtual_ms * 4 // 5, "realMs": limits.settle_s * 1000}
        limit_s = limits.settle_s + 1  # it watches the time itself, unless a script holds the page
        settled = world.page_value(f"__wc_settle({json.dumps(first)})")
        if not await self._phase("settle", settled, limit_s) and not await self._answers(world):
            return False
        await self._phase("requests", self._requests_done(), limits.requests_s + 1)
        sweep = f"{script('sweep')}({limits.max_height})"
        if not await self._phase("sweep", world.value(sweep), limits.answer_s):
            return await self._answers(world)
        again = world.page_value(f"__wc_settle({json.dumps(then)})")
        return bool(await self._phase("settle_again", again, limit_s)) or await self._answers(world)

    async def _load(self, tab: "Tab", cdp: "CDPSession", url: str) -> bool:
        # A page that tries to leave while it loads gets no load event: then the refusal counts.
        cdp.once("Page.loadEventFired", lambda _: self._arrived.set())
        await cdp.send("Page.enable")
        await tab.goto(url, wait_until="commit", timeout=self._limits.load_s * 1000)
        await self._arrived.wait()
        return True

    async def _requests_done(self) -> None:
        """Until nothing is being fetched; given up on after `requests_s`."""
        stop = time.monotonic() + self._limits.requests_s
        while self._seen.open_requests and time.monotonic() < stop:
            await asyncio.sleep(0.02)

    async def _shoot(self, cdp: "CDPSession", height: int) -> bytes:
        limits = self._limits
        # Capturing beyond the viewport resizes the page for a moment. No script of the page may
        # see that: responsive charts would start their animation again and be shot empty.
        await cdp.send("Emulation.setScriptExecutionDisabled", {"value": True})
        clip = {"x": 0, "y": 0, "width": limits.width, "scale": 1}
        clip["height"] = min(max(height, limits.height), limits.max_height)
        answer = await cdp.send(
            "Page.captureScreenshot",
            {"format": "png", "clip": clip, "captureBeyondViewport": True, "optimizeForSpeed": False},
        )
        return base64.b64decode(answer["data"])

    def _reason(self, url: str, origin: str, raw: Any, census: Census) -> str:
        """Why the page did not mount; empty when it did."""
        seen = self._seen
        error = f"; first error: {seen.page_errors[0]}" if seen.page_errors else ""
        if seen.crashed:
            return "the page crashed its browser process (memory?)"
        if seen.status is not None and seen.status >= 400:
            return f"the page answered with HTTP status {seen.status}"
        if raw is None:
            return f"unresponsive: the page did not answer in time{error}"
        if seen.status is None or not url.startswith(f"{origin}/"):
            return f"the page went elsewhere: {url[:200]}"
        if raw["overlay"]:
            return f"an error overlay covers the page{error}"
        if not normalize(census.text):
            return f"blank: no visible text{error}"
        return ""
