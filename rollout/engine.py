"""The engine's side of a rollout: token ids in, token ids out. Nothing here knows text."""

from dataclasses import dataclass
from typing import Protocol

from rollout.types import Completion, Shown


class EngineError(RuntimeError):
    """The engine failed or answered something unusable. An infrastructure failure, never a reward of 0."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request: continue `token_ids` by at most `max_tokens`, stopping after a `stop_token_ids` id."""

    token_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    stop_token_ids: tuple[int, ...]
    rollout_id: str
    turn: int
    """Index of the turn within the rollout, from 0."""
    top_p: float = 1.0
    """Nucleus truncation; 1 is off. Training refuses it unless the config accepts the bias."""
    top_k: int = 0
    """Sample among so many tokens only; 0 is off. As `top_p`."""
    pictures: tuple[Shown, ...] = ()
    """Where in `token_ids` images stand, from left to right."""


class Engine(Protocol):
    """Anything that continues token ids. Called from many threads at once."""

    def generate(self, request: Request) -> Completion:
        """The stop id is part of the answer. Raises `EngineError`."""
