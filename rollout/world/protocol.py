"""What a world is to the agent loop: it executes tool calls and holds the project."""

from dataclasses import dataclass
from typing import Protocol

from rollout.calls import ToolCall


@dataclass(frozen=True, kw_only=True)
class ToolResult:
    """What the policy is told after a call."""

    text: str
    is_error: bool = False
    observed: str | None = None
    """Text of a page of the agent's own application, when the call fetched one; feeds the ledger."""
    finished: bool = False
    images: tuple[bytes, ...] = ()
    """Files (PNG or another format that Pillow reads) that belong before the text; at any size."""


class World(Protocol):
    """One project under development. Errors of the policy are results; only infrastructure raises."""

    def execute(self, call: ToolCall) -> ToolResult: ...

    def snapshot(self) -> dict[str, bytes]:
        """The project as it is, as data."""

    def close(self) -> None:
        """Frees the sandbox. Safe to call twice."""
