"""The tools on a real project: exact texts, because a simulator and a small model rely on them."""

from collections.abc import Callable

import pytest

from rollout.calls import ToolCall
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import SandboxError
from rollout.sandbox.template import Template
from rollout.world.protocol import ToolResult
from rollout.world.sandbox_world import SandboxWorld
from verifier.browser import Browser

pytestmark = [pytest.mark.sandbox, pytest.mark.browser]


def call(world: SandboxWorld, name: str, **arguments: str) -> ToolResult:
    return world.execute(ToolCall(name=name, arguments=arguments))


def failure(text: str) -> ToolResult:
    return ToolResult(text=text, is_error=True)


def test_files(world: SandboxWorld) -> None:
    assert call(world, "write", path="src/a.txt", content="one\ntwo\ntwo\n") == ToolResult(text="wrote src/a.txt")
    assert call(world, "read", path="src/a.txt") == ToolResult(text="one\ntwo\ntwo\n")
    assert call(world, "edit", path="src/a.txt", old="one", new="1") == ToolResult(text="edited src/a.txt")
    assert call(world, "edit", path="src/a.txt", old="one", new="1") == failure(
        "error: old text not found in src/a.txt"
    )
    assert call(world, "edit", path="src/a.txt", old="two", new="2") == failure(
        "error: old text found 2 times in src/a.txt"
    )
    assert call(world, "edit", path="src/a.txt", old="", new="2") == failure("error: old text not found in src/a.txt")
    assert call(world, "read", path="src/a.txt").text == "1\ntwo\ntwo\n"
    assert call(world, "read", path="src/b.txt") == failure("error: no file src/b.txt")
    assert call(world, "edit", path="src", old="a", new="b") == failure("error: no file src")
    assert call(world, "list", path="src").text == "src/App.tsx\nsrc/a.txt\nsrc/main.tsx"
    assert call(world, "list", path="nowhere") == failure("error: no files in nowhere")


def test_paths_that_cannot_be(world: SandboxWorld) -> None:
    assert call(world, "read", path="/etc/passwd").text.startswith("error: path '/etc/passwd' is absolute; ")
    assert call(world, "write", path="../x", content="").text.startswith("error: path '../x' contains '..'; ")
    assert call(world, "write", path="node_modules/x", content="").is_error
    assert call(world, "write", path="src", content="") == failure(
        "error: cannot write src: a link, file or folder is in the way"
    )
    assert call(world, "write", path="big.txt", content="x" * (20 << 20)) == failure(
        "error: cannot write big.txt: the disk is full"
    )
    call(world, "bash", command=r"printf '\xff' > bytes")
    assert call(world, "read", path="bytes") == failure("error: bytes is not text")


def test_bash(world: SandboxWorld) -> None:
    assert call(world, "bash", command="ls src") == ToolResult(text="App.tsx\nmain.tsx")
    assert call(world, "bash", command="pwd; echo; echo b; cat").text == "/workspace\n\nb"
    assert call(world, "bash", command="true") == ToolResult(text="")
    assert call(world, "bash", command="echo no >&2; exit 3") == failure("no\nexit code 3")
    assert call(world, "bash", command="false") == failure("exit code 1")
    assert call(world, "bash", command="echo a; sleep 9") == failure("a\nerror: timed out after 2 s")
    assert call(world, "bash", command="a\0b").is_error
    flood = call(world, "bash", command="head -c 300000 /dev/zero | tr '\\0' x").text
    assert flood.endswith(f"x\n{300_000 - (256 << 10)} more bytes not shown")


def test_calls_that_do_not_exist(world: SandboxWorld) -> None:
    assert call(world, "look") == failure("error: no tool look; tools: list, read, write, edit, bash, webshot, finish")
    assert call(world, "read") == failure("error: read needs path")
    assert call(world, "finish") == ToolResult(text="done", finished=True)


def test_webshot_of_the_template_and_its_traces(world: SandboxWorld, template: Template) -> None:
    before = call(world, "list").text
    text = "Replace this with the page."
    assert call(world, "webshot") == ToolResult(
        text=f"build ok\ntext {len(text)} chars, 0 broken images, 0 console errors\n{text}", observed=text
    )
    assert call(world, "list").text == before
    assert "dist/index.html" in call(world, "list", path="dist").text
    assert world.snapshot() == template.files


def test_webshot_of_a_page(world: SandboxWorld, page_of: Callable[[str], str]) -> None:
    told = page_of(
        "export default function App() {\n  return (\n    <main>\n      <h1>Tea  House</h1>\n      <ul>\n"
        "        <li>Green</li>\n        <li>Black</li>\n      </ul>\n      <p hidden>Secret</p>\n"
        "      <button>Buy</button>\n    </main>\n  )\n}\n"
    )
    assert told == "build ok\ntext 25 chars, 0 broken images, 0 console errors\nTea House\nGreen\nBlack\nBuy"


COMPONENT = "export default function App() {{\n  return (\n    <main>\n{}\n    </main>\n  )\n}}\n"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            COMPONENT.format("      <ul>\n        <li>a</li>"),
            "build failed\nsrc/App.tsx:6: Expected corresponding JSX closing tag for 'ul'.",
        ),
        (
            COMPONENT.format("      <h2>a<h2>"),
            "build failed\nsrc/App.tsx:5: Expected corresponding JSX closing tag for 'h2'.",
        ),
        (COMPONENT.format('      <p id="a>b</p>'), "build failed\nsrc/App.tsx:4: Unterminated string"),
        (
            'import { Card } from "antd"\n' + COMPONENT.format("<Card />"),
            'build failed\nsrc/App.tsx: failed to resolve import "antd"',
        ),
        (
            'import { Card } from "./Card"\n' + COMPONENT.format("<Card />"),
            "build failed\nsrc/App.tsx:1: Could not resolve './Card' in src/App.tsx",
        ),
        ("", 'build failed\nsrc/main.tsx:2: "default" is not exported by "src/App.tsx".'),
        (COMPONENT.format("<Card />"), "build ok\npage is blank: no visible text; first error: Card is not defined"),
    ],
)
def test_webshot_of_a_broken_page(page_of: Callable[[str], str], source: str, told: str) -> None:
    assert page_of(source) == told


def test_a_failed_build_is_not_judged_by_an_earlier_one(world: SandboxWorld, page_of: Callable[[str], str]) -> None:
    assert page_of(COMPONENT.format("<p>first</p>")).endswith("\nfirst")
    assert page_of(COMPONENT.format("<p>")).startswith("build failed\n")
    assert call(world, "webshot").observed is None
    blank = page_of(COMPONENT.format(""))
    assert blank.startswith("build ok\npage is blank: ")
    assert call(world, "webshot").observed == ""


def test_a_dead_sandbox_is_no_result(sandboxes: LocalSandboxes, template: Template, browser: Browser) -> None:
    world = SandboxWorld(sandboxes(template.files, node_modules=template.node_modules), template, browser)
    world.close()
    world.close()
    for name, arguments in (("list", {}), ("bash", {"command": "true"}), ("webshot", {})):
        with pytest.raises(SandboxError):
            call(world, name, **arguments)
