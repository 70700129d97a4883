"""The table of tools: what the policy may call, with which arguments, and what each does."""

from dataclasses import dataclass, field

from rollout.calls import ToolCall


@dataclass(frozen=True, kw_only=True)
class Tool:
    """One tool. `arguments` maps a name to its meaning; those in `optional` may be left out."""

    name: str
    description: str
    arguments: dict[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()


TOOLS = (
    Tool(
        name="list",
        description="list the project's files",
        arguments={"path": "folder to list; the whole project if left out"},
        optional=("path",),
    ),
    Tool(name="read", description="show a file", arguments={"path": "file to show"}),
    Tool(
        name="write",
        description="create or replace a file",
        arguments={"path": "file to write", "content": "all of its text"},
    ),
    Tool(
        name="edit",
        description="replace one piece of a file",
        arguments={"path": "file to edit", "old": "text that occurs exactly once", "new": "text to put there"},
    ),
    Tool(name="bash", description="run a shell command in the project", arguments={"command": "what to run"}),
    Tool(name="webshot", description="build the project and look at the page"),
    Tool(name="finish", description="say that the work is done"),
)
TOOL_NAMES = tuple(tool.name for tool in TOOLS)
_BY_NAME = {tool.name: tool for tool in TOOLS}


def describe_tools() -> str:
    """One line a tool, for a system prompt.

    >>> describe_tools().splitlines()[1]
    'read(path): show a file'
    """
    return "\n".join(f"{tool.name}({', '.join(tool.arguments)}): {tool.description}" for tool in TOOLS)


def call_error(call: ToolCall) -> str:
    """Why a call cannot be made, in words for the policy; empty when it can.

    >>> call_error(ToolCall(name="read"))
    'error: read needs path'
    """
    tool = _BY_NAME.get(call.name)
    if tool is None:
        return f"error: no tool {call.name}; tools: {', '.join(TOOL_NAMES)}"
    missing = [name for name in tool.arguments if name not in call.arguments and name not in tool.optional]
    return f"error: {call.name} needs {' and '.join(missing)}" if missing else ""
