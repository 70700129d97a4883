"""An engine that replays a script: deterministic tokens and log-probabilities, no model behind them."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from rollout.engine import Request
from rollout.types import Completion

Script = Callable[[str, int], str]
"""(rollout_id, turn) -> what the policy says in that turn."""


def token_logp(token_id: int) -> float:
    """A made-up log-probability in (-2, 0): the same for the same token, different for its neighbors."""
    return -0.125 - (token_id * 37 % 101) / 64


class ScriptedEngine:
    """Answers `script(rollout_id, turn)` whatever the prompt says. Safe to call from many threads.

    >>> engine = ScriptedEngine(lambda rollout_id, turn: "ok", encode=lambda text: [ord(c) for c in text], end_id=2)
    >>> engine.version()
    0

    It has the control side of a real engine too: `publish` records what it was given, in `published`.
    """

    def __init__(
        self,
        script: Script,
        *,
        encode: Callable[[str], Sequence[int]],
        end_id: int,
        logp: Callable[[int], float] = token_logp,
    ) -> None:
        self._script, self._encode, self._end_id, self._logp = script, encode, end_id, logp
        self._version = 0
        self._lock = threading.Lock()
        self.published: list[tuple[Path, int]] = []

    def generate(self, request: Request) -> Completion:
        """The script's answer and the end id, cut at `request.max_tokens` (then the reason is `length`)."""
        if request.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {request.max_tokens}")
        ids = (*self._encode(self._script(request.rollout_id, request.turn)), self._end_id)
        kept = ids[: request.max_tokens]
        return Completion(
            token_ids=kept,
            logp=tuple(self._logp(token_id) for token_id in kept),
            policy_versions=(self._version,) * len(kept),
            finish_reason="stop" if len(kept) == len(ids) else "length",
        )

    def set_version(self, version: int) -> None:
        """From now on answers carry this policy version."""
        self._version = version

    def publish(self, path: Path, version: int) -> None:
        """Take `version` as the weights in use. The file is noted, not read."""
        with self._lock:
            self.published.append((path, version))
            self._version = version

    def version(self) -> int:
        """The version published or set last."""
        return self._version
