"""The plain-text tool-call format: order, errors as results, round trips, linear time."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.calls import SHAPES, CallError, ToolCall, format_call, parse_calls

texts = st.text(st.characters(exclude_characters="\r"), max_size=60)
lines = st.lists(st.sampled_from(["@end", "@with", "@@end", "@write x", "plain", "", "  @end"]) | texts, max_size=5)
bodies = lines.map("\n".join)


def test_two_calls_in_one_message_come_in_order() -> None:
    calls = parse_calls("First I look.\n@read src/App.tsx\nthen\n@webshot")
    assert calls == [ToolCall(name="read", arguments={"path": "src/App.tsx"}), ToolCall(name="webshot")]


def test_a_call_cut_off_mid_body_is_an_error_that_names_the_closing_line() -> None:
    (call,) = parse_calls("@write src/App.tsx\nexport default fun")
    assert isinstance(call, CallError)
    assert "@end" in call.text


def test_an_edit_without_its_second_text_says_how_to_part_them() -> None:
    (call,) = parse_calls("@edit src/App.tsx\nold\n@end")
    assert isinstance(call, CallError)
    assert "@with" in call.text


def test_a_missing_path_is_an_error_and_an_optional_one_is_not() -> None:
    (read,) = parse_calls("@read")
    assert isinstance(read, CallError)
    assert parse_calls("@list") == [ToolCall(name="list")]


def test_an_unknown_tool_reaches_the_world_which_knows_the_tools() -> None:
    assert parse_calls("@deploy now") == [ToolCall(name="deploy", arguments={"path": "now"})]


def test_prose_without_calls_has_none() -> None:
    assert parse_calls("mail me at a@b.c or @@home") == []


@given(bodies, bodies)
def test_any_body_survives_the_format(first: str, second: str) -> None:
    for call in (
        ToolCall(name="write", arguments={"path": "a.txt", "content": first}),
        ToolCall(name="edit", arguments={"path": "a.txt", "old": first, "new": second}),
        ToolCall(name="bash", arguments={"command": second}),
    ):
        assert parse_calls(format_call(call)) == [call]


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_every_tool_has_a_written_form(name: str) -> None:
    inline, body = SHAPES[name]
    call = ToolCall(name=name, arguments=dict.fromkeys(([inline] if inline else []) + list(body), "x"))
    assert parse_calls(format_call(call)) == [call]


@pytest.mark.parametrize("piece", ["@", "@edit a\n", "@@with\n", "<think>", "@write a\nx\n"])
def test_reading_is_linear_in_the_answer(piece: str) -> None:
    # Not a benchmark: a quadratic reader needs minutes for a megabyte, this one a fraction of a second.
    started = time.perf_counter()
    parse_calls(piece * (1_000_000 // len(piece)))
    assert time.perf_counter() - started < 10
