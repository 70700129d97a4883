"""The real world: tools on a project in a sandbox, and looks at its page in a browser."""

import errno
from collections.abc import Callable, Mapping
from typing import Protocol

from rollout.calls import ToolCall
from rollout.sandbox.protocol import Sandbox
from rollout.sandbox.template import Template
from rollout.world.protocol import ToolResult
from rollout.world.tools import call_error
from rollout.world.webshot_text import format_webshot, observed_text
from verifier.build import build_in
from verifier.types import Page

DEFAULT_BASH_TIMEOUT_S = 30.0
DEFAULT_BUILD_TIMEOUT_S = 60.0
_BUILD_OUTPUT = "dist/"


class Renderer(Protocol):
    """`verifier.browser.Browser`, as far as a webshot needs it."""

    def render(self, dist: Mapping[str, bytes], *, screenshot: bool = True) -> Page: ...


class SandboxWorld:
    """A `World` on one sandbox, which it owns and closes; the browser is shared and is not closed.

    What the policy does wrong is a result that says so. `SandboxError` and the verifier's
    `InfrastructureError` pass through: they are nobody's fault and end the rollout unjudged.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        template: Template,
        browser: Renderer,
        *,
        bash_timeout_s: float = DEFAULT_BASH_TIMEOUT_S,
        build_timeout_s: float = DEFAULT_BUILD_TIMEOUT_S,
        screenshots: bool = False,
    ) -> None:
        """`screenshots`: a webshot's result carries a picture of the whole page too, for a policy that can see it."""
        self._sandbox = sandbox
        self._template = template
        self._browser = browser
        self._bash_timeout_s = bash_timeout_s
        self._build_timeout_s = build_timeout_s
        self._screenshots = screenshots
        self._tools: dict[str, Callable[[Mapping[str, str]], ToolResult]] = {
            "list": self._list,
            "read": self._read,
            "write": self._write,
            "edit": self._edit,
            "bash": self._bash,
            "webshot": self._webshot,
            "finish": lambda _: ToolResult(text="done", finished=True),
        }

    def execute(self, call: ToolCall) -> ToolResult:
        """Runs one call to its end. Bad names, arguments and paths come back as error results."""
        problem = call_error(call)
        if problem:
            return _error(problem)
        try:
            return self._tools[call.name](call.arguments)
        except ValueError as error:  # a path outside the project, a NUL in a command
            return _error(f"error: {error}")

    def snapshot(self) -> dict[str, bytes]:
        """The project's own files: neither its packages nor what a build wrote."""
        return {path: data for path, data in self._sandbox.snapshot().items() if not path.startswith(_BUILD_OUTPUT)}

    def close(self) -> None:
        """Closes the sandbox."""
        self._sandbox.close()

    def _list(self, arguments: Mapping[str, str]) -> ToolResult:
        path = arguments.get("path") or "."
        names = self._sandbox.list(path)
        if path.strip("./") == "":
            # Build output has hashed names that say nothing; asked for by name, it is shown.
            names = [name for name in names if not name.startswith(_BUILD_OUTPUT)]
        return ToolResult(text="\n".join(names)) if names else _error(f"error: no files in {path}")

    def _read(self, arguments: Mapping[str, str]) -> ToolResult:
        path = arguments["path"]
        text = self._text_of(path)
        return text if isinstance(text, ToolResult) else ToolResult(text=text)

    def _write(self, arguments: Mapping[str, str]) -> ToolResult:
        return self._put(arguments["path"], arguments["content"], done="wrote")

    def _edit(self, arguments: Mapping[str, str]) -> ToolResult:
        path, old = arguments["path"], arguments["old"]
        text = self._text_of(path)
        if isinstance(text, ToolResult):
            return text
        num_found = text.count(old) if old else 0
        if num_found == 0:
            return _error(f"error: old text not found in {path}")
        if num_found > 1:
            return _error(f"error: old text found {num_found} times in {path}")
        return self._put(path, text.replace(old, arguments["new"]), done="edited")

    def _bash(self, arguments: Mapping[str, str]) -> ToolResult:
        ended = self._sandbox.exec(["bash", "-c", arguments["command"]], timeout_s=self._bash_timeout_s)
        lines = [ended.output.rstrip("\n")] if ended.output.strip("\n") else []
        if ended.dropped_bytes:
            lines.append(f"{ended.dropped_bytes} more bytes not shown")
        if ended.timed_out:
            lines.append(f"error: timed out after {self._bash_timeout_s:g} s")
        elif ended.exit_code != 0:
            lines.append(f"exit code {ended.exit_code}")
        return ToolResult(text="\n".join(lines), is_error=ended.exit_code != 0)

    def _webshot(self, _: Mapping[str, str]) -> ToolResult:
        built = build_in(self._sandbox, self._template, timeout_s=self._build_timeout_s)
        page = self._browser.render(built.dist, screenshot=self._screenshots) if built.ok else None
        images = (page.screenshot,) if page is not None and page.screenshot else ()
        # Not an error of the tool when the page is broken: it did what it is for.
        return ToolResult(text=format_webshot(built, page), observed=observed_text(built, page), images=images)

    def _text_of(self, path: str) -> str | ToolResult:
        """A file as text, or the error result that says why there is none."""
        try:
            return self._sandbox.read(path).decode()
        except FileNotFoundError:
            return _error(f"error: no file {path}")
        except UnicodeDecodeError:
            return _error(f"error: {path} is not text")
        except OSError as error:
            return _error(f"error: cannot read {path}: {_reason(error)}")

    def _put(self, path: str, text: str, *, done: str) -> ToolResult:
        try:
            self._sandbox.write(path, text.encode(errors="replace"))
        except OSError as error:
            return _error(f"error: cannot write {path}: {_reason(error)}")
        return ToolResult(text=f"{done} {path}")


def _error(text: str) -> ToolResult:
    return ToolResult(text=text, is_error=True)


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EEXIST):
        return "a link, file or folder is in the way"
    return (error.strerror or "failed").lower()
