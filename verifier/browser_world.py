"""What the verifier does inside a tab over the debugging protocol: evaluate, and guard navigations."""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.async_api import CDPSession


class PageThrew(Exception):
    """A script of ours failed inside the page."""


class World:
    """Evaluates expressions in the page, or beside it where the page's scripts cannot reach."""

    def __init__(self, cdp: "CDPSession") -> None:
        self._cdp = cdp

    async def _evaluate(self, expression: str, **more: object) -> Any:
        answer = await self._cdp.send(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True, **more},
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise PageThrew(str(details.get("exception", {}).get("description", details))[:300])
        return answer["result"].get("value")

    async def page_value(self, expression: str) -> Any:
        """In the world of the page's own scripts; they may have changed anything there."""
        return await self._evaluate(expression)

    async def value(self, expression: str) -> Any:
        """In an isolated world of the main frame."""
        tree = await self._cdp.send("Page.getFrameTree")
        frame = tree["frameTree"]["frame"]["id"]
        made = await self._cdp.send("Page.createIsolatedWorld", {"frameId": frame, "worldName": "webcoder"})
        return await self._evaluate(expression, contextId=made["executionContextId"])


async def guard_navigations(cdp: "CDPSession", origin: str, most: int, on_refusal: Callable[[], None]) -> None:
    """Lets the main frame load our site only, and not endlessly (reload loops)."""
    tree = await cdp.send("Page.getFrameTree")
    main_frame = tree["frameTree"]["frame"]["id"]
    navigations = 0

    async def decide(event: dict[str, Any]) -> None:
        nonlocal navigations
        from playwright.async_api import Error

        refused = False
        if event.get("frameId") == main_frame:
            navigations += 1
            refused = navigations > most or not event["request"]["url"].startswith(f"{origin}/")
        answer = {"requestId": event["requestId"]}
        try:
            if refused:
                on_refusal()
                # "No content" leaves the page as it is; an error could keep it from loading.
                await cdp.send("Fetch.fulfillRequest", {**answer, "responseCode": 204})
            else:
                await cdp.send("Fetch.continueRequest", answer)
        except Error:
            pass  # the frame is gone already

    cdp.on("Fetch.requestPaused", lambda event: asyncio.ensure_future(decide(event)))
    pattern = {"urlPattern": "*", "resourceType": "Document", "requestStage": "Request"}
    await cdp.send("Fetch.enable", {"patterns": [pattern]})
