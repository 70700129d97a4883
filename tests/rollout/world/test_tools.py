"""The tool table agrees with the call format, and says what is missing."""

import pytest

from rollout.calls import SHAPES, ToolCall
from rollout.world.tools import TOOLS, call_error, describe_tools


def test_the_table_is_the_call_formats_table() -> None:
    table = {tool.name: set(tool.arguments) for tool in TOOLS}
    assert table == {name: {*([line] if line else []), *bodies} for name, (line, bodies) in SHAPES.items()}


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (ToolCall(name="list"), ""),
        (ToolCall(name="read"), "error: read needs path"),
        (ToolCall(name="edit", arguments={"path": "a"}), "error: edit needs old and new"),
        (ToolCall(name="look"), "error: no tool look; tools: list, read, write, edit, bash, webshot, finish"),
    ],
)
def test_call_errors(call: ToolCall, error: str) -> None:
    assert call_error(call) == error


def test_every_tool_is_described() -> None:
    assert len(describe_tools().splitlines()) == len(TOOLS) == 7
