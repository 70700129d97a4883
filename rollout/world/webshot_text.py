"""What the policy is told after a look at its page: short, and the same for the same page.

A build's log is dozens of colored lines with the machine's paths in them. A small model reads one
line, and the generator of demonstrations must predict it to the letter.
"""

import re

from verifier.types import Built, Page

MAX_ERROR_CHARS = 200

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_HOST_PATH = re.compile(r"(?:file://)?/workspace/")
# `[builtin:vite-transform] Unterminated string`, `[MISSING_EXPORT] "default" is not exported by ...`
_HEAD = re.compile(r"^\[(?:builtin:[\w-]+|[A-Z][A-Z_]+|plugin [^\]]*)\] (.*)$")
# `╭─[ src/App.tsx:6:7 ]`, which points at the line that the head speaks of.
_PLACE = re.compile(r"╭─+\[ ?(.+?):(\d+):\d+ ?\]")
_IMPORT = re.compile(r'failed to resolve import "([^"]+)" from "([^"]+)"')
_TYPED = re.compile(r"^\w*Error: (.*)$")


def page_lines(text: str) -> list[str]:
    """Visible text as lines: stripped, inner blanks made one, empty ones left out.

    >>> page_lines("Tea  House\\n\\n Menu ")
    ['Tea House', 'Menu']
    """
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def compact_build_error(log: str) -> str:
    """The first error of a failed build in one line, `path:line: message` where the log has them.

    Errors of several files come in any order: the file first by name wins, then the log's order.
    """
    lines = [_HOST_PATH.sub("", _ANSI.sub("", line)).rstrip() for line in log.splitlines()]
    found = _located_errors(lines) or _other_errors(lines)
    if found:
        return _cut(min(found, key=lambda error: error[0])[1])
    return _cut(_any_message(lines))


def format_webshot(built: Built, page: Page | None) -> str:
    """The result of a webshot. `page` is None exactly when the build failed."""
    if not built.ok or page is None:
        return f"build failed\n{compact_build_error(built.log)}"
    if not page.ok:
        reason = " ".join(page.reason.split()).removeprefix("blank: ")
        return f"build ok\npage is blank: {_cut(reason)}"
    text = "\n".join(page_lines(page.census.text))
    counts = f"{len(page.census.broken_images)} broken images, {len(page.console_errors)} console errors"
    return f"build ok\ntext {len(text)} chars, {counts}\n{text}"


def observed_text(built: Built, page: Page | None) -> str | None:
    """The page's text for the ledger: None without a page, empty for one that did not mount."""
    if not built.ok or page is None:
        return None
    return "\n".join(page_lines(page.census.text)) if page.ok else ""


def _located_errors(lines: list[str]) -> list[tuple[str, str]]:
    """(path, text) of every error that has a head and a place below it."""
    found: list[tuple[str, str]] = []
    message = ""
    for line in lines:
        if head := _HEAD.match(line):
            message = head.group(1)
        elif message and (place := _PLACE.search(line)):
            path, number = place.groups()
            found.append((path, f"{path}:{number}: {message}"))
            message = ""
    return found


def _other_errors(lines: list[str]) -> list[tuple[str, str]]:
    """(path, text) of the first error without a place: imports, plugins, entry points."""
    message = ""
    for line in lines:
        if unresolved := _IMPORT.search(line):
            name, path = unresolved.groups()
            return [(path, f'{path}: failed to resolve import "{name}"')]
        if typed := _TYPED.match(line):
            return [("", typed.group(1))]
        if not message and (head := _HEAD.match(line)):
            message = head.group(1)
    return [("", message)] if message else []


def _any_message(lines: list[str]) -> str:
    """What follows Vite's own announcement of an error; else the last line (`[build] time-out ...`)."""
    told = [line.strip() for line in lines if line.strip()]
    if "error during build:" in told[:-1]:
        after = told[told.index("error during build:") + 1 :]
        return next((line for line in after if not line.startswith("Build failed with")), after[-1])
    return told[-1].removeprefix("[build] ") if told else "the build ended without a message"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_ERROR_CHARS else text[: MAX_ERROR_CHARS - 3] + "..."
