"""A world in memory that answers as the real one does, for pages of the generator's own making.

It lets thousands of demonstrations be made without a build or a browser. It reads only the TSX that
`rollout.pages.draft` writes; a test holds its answers against the sandbox, the build and Chromium.
"""

import re
from collections.abc import Mapping

from rollout.calls import ToolCall
from rollout.world.protocol import ToolResult

_TAG = re.compile(r"<(/?)(\w+)>")


def read_component(source: str) -> tuple[str, list[str]]:
    """(the build error's text or "", the lines of visible text).

    >>> read_component("<main>\\n<h1>Tea</h1>\\n</main>")
    ('', ['Tea'])
    >>> read_component("<main>\\n<ul>\\n</main>")[0]
    "src/App.tsx:3: Expected corresponding JSX closing tag for 'ul'."
    """
    stack: list[str] = []
    text: list[str] = []
    for number, line in enumerate(source.split("\n"), start=1):
        for closing, name in _TAG.findall(line):
            if not closing:
                stack.append(name)
            elif stack and stack[-1] == name:
                stack.pop()
            else:
                return f"src/App.tsx:{number}: Expected corresponding JSX closing tag for '{stack[-1]}'.", []
        if "<" in line and (shown := _TAG.sub("", line).strip()):
            text.append(shown)
    return "", text


class SimulatedWorld:
    """Files in memory; `webshot` predicts what build and render would say."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = {path: data.decode() for path, data in files.items()}

    def execute(self, call: ToolCall) -> ToolResult:
        """Only the calls that demonstrations make."""
        path = call.arguments.get("path", "")
        if call.name == "finish":
            return ToolResult(text="done", finished=True)
        if call.name == "webshot":
            return self._webshot()
        if call.name == "write":
            self._files[path] = call.arguments["content"]
            return ToolResult(text=f"wrote {path}")
        if call.name == "edit":
            self._files[path] = self._files[path].replace(call.arguments["old"], call.arguments["new"], 1)
            return ToolResult(text=f"edited {path}")
        if call.name == "read":
            return ToolResult(text=self._files[path])
        below = sorted(name for name in self._files if name.startswith("src/"))
        return ToolResult(
            text="\n".join(below if call.name == "list" else [name.removeprefix("src/") for name in below])
        )

    def snapshot(self) -> dict[str, bytes]:
        """The files as data."""
        return {path: text.encode() for path, text in self._files.items()}

    def close(self) -> None:
        """Nothing is held."""

    def _webshot(self) -> ToolResult:
        error, lines = read_component(self._files["src/App.tsx"])
        if error:
            return ToolResult(text=f"build failed\n{error}")
        page = "\n".join(lines)
        head = f"build ok\ntext {len(page)} chars, 0 broken images, 0 console errors"
        return ToolResult(text=f"{head}\n{page}", observed=page)
