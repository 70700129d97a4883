"""A build's log and a page, reduced to what the policy reads."""

import pytest

from rollout.world.webshot_text import compact_build_error, format_webshot, observed_text
from verifier.types import Built, Census, Page

GRAY, RED, END = "\x1b[38;5;246m", "\x1b[31m", "\x1b[0m"


def located(head: str, place: str) -> str:
    code, message = head.split(" ", 1)
    return f"{RED}{code} {END}{message}\n   {GRAY}╭─{END}{GRAY}[{END} {place} {GRAY}]{END}\n"


PREFIX = "vite v8.3.8 building\n✗ Build failed in 49ms\nerror during build:\nBuild failed with 2 errors:\n\n"
TRACE = "    at build (file:///workspace/node_modules/vite/dist/node/cli.js:789:3) {\n  errors: [Getter/Setter]\n}\n"


@pytest.mark.parametrize(
    ("log", "text"),
    [
        (
            PREFIX
            + located("[builtin:vite-transform] Expected corresponding JSX closing tag for 'p'.", "src/App.tsx:6:7")
            + located("[builtin:vite-transform] Unexpected token", "src/App.tsx:8:1")
            + TRACE,
            "src/App.tsx:6: Expected corresponding JSX closing tag for 'p'.",
        ),
        (
            PREFIX
            + located("[builtin:vite-transform] Unexpected token", "src/Z.tsx:8:1")
            + located("[builtin:vite-transform] Unterminated string", "src/A.tsx:2:1"),
            "src/A.tsx:2: Unterminated string",
        ),
        (
            PREFIX + located("[UNRESOLVED_IMPORT] Could not resolve './Foo' in src/App.tsx", "src/App.tsx:1:21"),
            "src/App.tsx:1: Could not resolve './Foo' in src/App.tsx",
        ),
        (
            PREFIX
            + f'{RED}Error: [vite]: Rolldown failed to resolve import "antd" from "/workspace/src/App.tsx".{END}\n',
            'src/App.tsx: failed to resolve import "antd"',
        ),
        (
            PREFIX
            + "[plugin vite:build-html] /workspace/index.html\n"
            + "Error: Failed to resolve /src/x.tsx from /workspace/index.html\n"
            + TRACE,
            "Failed to resolve /src/x.tsx from index.html",
        ),
        (
            PREFIX + f"{RED}[UNRESOLVED_ENTRY] {END}Cannot resolve entry module index.html.\n\n" + TRACE,
            "Cannot resolve entry module index.html.",
        ),
        (PREFIX + "something new\n\n" + TRACE, "something new"),
        ("vite v8.3.8 building\n[build] time-out: stopped after 60 s", "time-out: stopped after 60 s"),
        ("[build] exit code 137", "exit code 137"),
        ("", "the build ended without a message"),
    ],
)
def test_the_first_error_in_one_line(log: str, text: str) -> None:
    assert compact_build_error(log) == text


def test_an_error_is_cut() -> None:
    text = compact_build_error("x" * 1000)
    assert len(text) == 200
    assert text.endswith("x...")


def page(*, ok: bool = True, text: str = "", reason: str = "", broken: int = 0, errors: int = 0) -> Page:
    return Page(
        ok=ok,
        reason=reason,
        census=Census(text=text, broken_images=("/x.png",) * broken),
        screenshot=b"",
        console_errors=("boom",) * errors,
        failed_requests=(),
        seconds=0.1,
    )


BUILT = Built(ok=True, log="", dist={"index.html": b""}, seconds=0.1)
FAILED = Built(ok=False, log="[build] exit code 1", dist={}, seconds=0.1)


def test_a_page() -> None:
    seen = page(text="  Tea   House \n\n\n Menu\n", broken=2, errors=1)
    told = "build ok\ntext 14 chars, 2 broken images, 1 console errors\nTea House\nMenu"
    assert format_webshot(BUILT, seen) == told
    assert observed_text(BUILT, seen) == "Tea House\nMenu"


def test_no_page() -> None:
    assert format_webshot(FAILED, None) == "build failed\nexit code 1"
    assert observed_text(FAILED, None) is None
    blank = page(ok=False, text="leftover", reason="blank: no visible\ntext")
    assert format_webshot(BUILT, blank) == "build ok\npage is blank: no visible text"
    assert observed_text(BUILT, blank) == ""
