"""A long-lived Chromium that renders built sites; called from any thread, never a thread's own.

Playwright needs an event loop: it runs in a private thread, started with the browser. A browser
that crashed or does not answer is replaced and the page tried once more.
"""

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Coroutine, Mapping
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from verifier.browser_launch import Chromium, find_chromium, launch, use_system_node
from verifier.browser_page import BrowserLost, PageRender, RenderLimits
from verifier.serve import StaticServer
from verifier.types import InfrastructureError, Page

if TYPE_CHECKING:
    from playwright.async_api import Playwright

T = TypeVar("T")
log = logging.getLogger(__name__)

_PAGES_PER_BROWSER = 300  # then a new one: renderers leak slowly
_WALL_S = 90.0  # for one attempt, waiting for a free place not counted


class _Generation:
    """One browser process with its driver; retired as a whole."""

    def __init__(self, playwright: "Playwright", chromium: Chromium) -> None:
        self.playwright = playwright
        self.chromium = chromium
        self.active = 0
        self.rendered = 0
        self.retired = False

    async def end(self) -> None:
        with suppress(Exception):  # it may be dead or stuck: that is why it ends
            await asyncio.wait_for(self.chromium.browser.close(), 5.0)
        self.chromium.kill()
        with suppress(Exception):
            await asyncio.wait_for(self.playwright.stop(), 5.0)


class Browser:
    """Renders sites in fresh contexts of one shared Chromium, `max_pages` at a time.

    Started by its constructor: InfrastructureError (BrowserNotFound) if there is no Chromium or it
    does not start. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        max_pages: int = 2,
        *,
        executable: Path | None = None,
        limits: RenderLimits | None = None,
    ) -> None:
        if max_pages < 1:
            raise ValueError(f"max_pages must be 1 or more, got {max_pages}")
        self._executable = executable or find_chromium()
        self._limits = limits or RenderLimits()
        self._server = StaticServer()
        self._loop = asyncio.new_event_loop()
        self._places = asyncio.Semaphore(max_pages)
        self._changing = asyncio.Lock()
        self._current: _Generation | None = None
        self._renders: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._loop.run_forever, name="browser", daemon=True)
        self._thread.start()
        self.phases: dict[str, float] = {}
        """Wall seconds by phase of the page rendered last."""
        atexit.register(self.close)
        try:
            self._call(self._generation(), 60.0)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_sandboxed(self) -> bool:
        """Whether Chromium's own process sandbox is on."""
        return self._current is not None and self._current.chromium.is_sandboxed

    def render(self, dist: Mapping[str, bytes], *, path: str = "/", screenshot: bool = True) -> Page:
        """Serves `dist` and renders `path`; safe to call from many threads at once.

        A page that is blank, hangs or crashes comes back with `ok` False. InfrastructureError when
        the browser failed twice. Without `screenshot` the picture is left out (and its time saved).
        """
        self._refuse_if_closed()
        with self._server.site(dist) as host:
            with self._closing:
                self._refuse_if_closed()
                work = self._render(host, path, screenshot)
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
            return self._result(future, None)

    def close(self) -> None:
        """Ends Chromium, its driver and the server. Safe to call twice, and while pages are being rendered:
        whoever waits for one gets an InfrastructureError.
        """
        with self._closing:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        try:
            self._call(self._end_current(), 20.0)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=5)
            if not self._thread.is_alive():
                self._loop.close()
            self._server.close()

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise InfrastructureError("this browser is closed")

    def _call(self, work: Coroutine[Any, Any, T], limit_s: float | None) -> T:
        return self._result(asyncio.run_coroutine_threadsafe(work, self._loop), limit_s)

    def _result(self, future: Future[T], limit_s: float | None) -> T:
        try:
            return future.result(limit_s)
        except CancelledError as error:
            raise InfrastructureError("the browser was closed while it rendered") from error
        except TimeoutError as error:
            future.cancel()
            raise InfrastructureError(f"the browser did not answer within {limit_s} s") from error
        except KeyboardInterrupt:
            future.cancel()
            raise

    async def _generation(self) -> _Generation:
        """The current browser, started if there is none."""
        async with self._changing:
            if self._current is not None:
                return self._current
            from playwright.async_api import async_playwright

            use_system_node()
            playwright = await async_playwright().start()
            try:
                chromium = await launch(playwright, executable=self._executable, port=self._server.port)
            except BaseException:
                await playwright.stop()
                raise
            self._current = _Generation(playwright, chromium)
            return self._current

    async def _retire(self, generation: _Generation) -> None:
        """No new page on this browser; it ends when its last page is done."""
        if generation is self._current:
            self._current = None
        generation.retired = True
        if generation.active == 0:
            await generation.end()

    async def _end_current(self) -> None:
        # A render that went on would wait for a loop that no longer runs, or start a browser that nobody ends.
        for task in self._renders:
            task.cancel()
        if self._renders:
            await asyncio.wait(self._renders, timeout=10.0)
        if self._current is not None:
            generation, self._current = self._current, None
            await generation.end()

    async def _render(self, host: str, path: str, screenshot: bool) -> Page:
        task = asyncio.current_task()
        if task is not None:
            self._renders.add(task)
            task.add_done_callback(self._renders.discard)
        async with self._places:
            verdict: Page | None = None
            for attempt in (1, 2):
                try:
                    verdict, is_trusted = await self._attempt(host, path, screenshot)
                except BrowserLost as error:
                    log.warning("browser replaced after attempt %d: %s", attempt, error)
                    continue
                if is_trusted:
                    return verdict
            if verdict is None:
                raise InfrastructureError("the browser failed twice on the same page")
            return verdict

    async def _attempt(self, host: str, path: str, screenshot: bool) -> tuple[Page, bool]:
        """A page, and whether its verdict is beyond doubt.

        A page that gave no answer is believed only if the browser still serves others well;
        otherwise BrowserLost, and the browser is retired.
        """
        generation = await self._generation()
        generation.active += 1
        render = PageRender(generation.chromium.browser, self._limits, screenshot=screenshot)
        try:
            try:
                page = await asyncio.wait_for(render.run(host, path), _WALL_S)
            except TimeoutError as error:
                raise BrowserLost(f"no end within {_WALL_S} s") from error
            crashed = page.reason.startswith("the page crashed")
            if page.reason.startswith("unresponsive") or crashed:
                await self._probe(generation)
        except BrowserLost:
            generation.active -= 1
            await self._retire(generation)
            raise
        generation.active -= 1
        generation.rendered += 1
        if generation.rendered >= _PAGES_PER_BROWSER or generation.retired:
            await self._retire(generation)
        self.phases = render.phases
        return page, not crashed

    async def _probe(self, generation: _Generation) -> None:
        """BrowserLost unless an empty page opens and answers."""
        browser = generation.chromium.browser
        started = time.monotonic()

        async def answer() -> None:
            context = await browser.new_context()
            try:
                await (await context.new_page()).evaluate("1 + 1")
            finally:
                await context.close()

        try:
            await asyncio.wait_for(answer(), self._limits.probe_s)
        except Exception as error:
            waited = time.monotonic() - started
            # Also when the machine is merely too busy: then a page's silence proves nothing.
            raise BrowserLost(f"no answer to a probe within {waited:.1f} s") from error
