"""The plain-text tool-call format: made for small models, read line by line in linear time.

An answer may hold prose and any number of calls, in order. A call starts at a line `@name`, with the
rest of that line as its first argument; a call that has a body ends at a line `@end`:

    @read src/App.tsx            @edit src/App.tsx          @bash
    @webshot                     old text                   ls src
    @finish                      @with                      @end
                                 new text
    @write src/App.tsx           @end
    the whole file
    @end

A body line that itself starts with `@end` or `@with` is written with one more `@` in front.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A well-formed call; whether the tool exists is the world's business."""

    name: str
    arguments: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CallError:
    """A call that could not be read. `text` tells the policy what to write instead."""

    text: str


# tool -> (argument on the call's own line, arguments in the body, in order)
SHAPES: dict[str, tuple[str | None, tuple[str, ...]]] = {
    "list": ("path", ()),
    "read": ("path", ()),
    "write": ("path", ("content",)),
    "edit": ("path", ("old", "new")),
    "bash": (None, ("command",)),
    "webshot": (None, ()),
    "finish": (None, ()),
}
_OPTIONAL = {("list", "path")}


def parse_calls(text: str) -> list[ToolCall | CallError]:
    r"""All calls of an answer, in order; a broken one becomes a `CallError`, never an exception.

    >>> [call.name for call in parse_calls("Looks good.\n@webshot\n@finish")]
    ['webshot', 'finish']
    >>> parse_calls("@write a.txt\nhi")[0].text
    'error: @write has no closing @end'
    """
    lines = text.split("\n")
    found: list[ToolCall | CallError] = []
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.startswith("@") or line.startswith("@@"):
            continue
        name, _, rest = line[1:].strip().partition(" ")
        if name not in SHAPES:
            found.append(ToolCall(name=name, arguments={"path": rest.strip()} if rest.strip() else {}))
            continue
        inline, body_names = SHAPES[name]
        bodies: list[str] | None = []
        if body_names:
            bodies, at = _read_bodies(lines, at, len(body_names))
        found.append(_make_call(name, inline, rest.strip(), body_names, bodies))
    return found


def format_call(call: ToolCall) -> str:
    r"""The inverse of `parse_calls` for one call of a known tool.

    >>> format_call(ToolCall(name="write", arguments={"path": "a.txt", "content": "hi"}))
    '@write a.txt\nhi\n@end'
    """
    inline, body_names = SHAPES[call.name]
    head = f"@{call.name}"
    if inline is not None and call.arguments.get(inline):
        head += f" {call.arguments[inline]}"
    if not body_names:
        return head
    bodies = [_escape(call.arguments[name]) for name in body_names]
    return "\n".join([head, "\n@with\n".join(bodies), "@end"])


def _read_bodies(lines: Sequence[str], at: int, num_bodies: int) -> tuple[list[str] | None, int]:
    """Bodies up to `@end` and the index after it; None when there is no `@end`."""
    bodies: list[list[str]] = [[]]
    while at < len(lines):
        line = lines[at]
        at += 1
        if line.rstrip() == "@end":
            return ["\n".join(body) for body in bodies], at
        if line.rstrip() == "@with" and len(bodies) < num_bodies:
            bodies.append([])
        else:
            bodies[-1].append(line[1:] if line.startswith(("@@end", "@@with", "@@@")) else line)
    return None, at


def _escape(body: str) -> str:
    return "\n".join("@" + line if line.startswith(("@end", "@with", "@@")) else line for line in body.split("\n"))


def _make_call(
    name: str, inline: str | None, rest: str, body_names: tuple[str, ...], bodies: list[str] | None
) -> ToolCall | CallError:
    if bodies is None:
        return CallError(text=f"error: @{name} has no closing @end")
    if len(bodies) < len(body_names):
        return CallError(text=f"error: @{name} needs {' then '.join(body_names)}, parted by a line @with")
    arguments = dict(zip(body_names, bodies, strict=True))
    if inline is not None and rest:
        arguments[inline] = rest
    if inline is not None and not rest and (name, inline) not in _OPTIONAL:
        return CallError(text=f"error: write @{name} with a {inline} on the same line")
    return ToolCall(name=name, arguments=arguments)
