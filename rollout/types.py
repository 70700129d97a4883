"""The nouns of a rollout, each defined once. Frozen: a finished thing never changes.

A worked example. The policy is asked for one page and answers in two turns:

    node 0  system     "You build pages."            template tokens only
    node 1  user       "Build a page for ..."        template tokens only
    node 2  assistant  "@write src/App.tsx ..."      a header of 3 template tokens, then 120 sampled ones
    node 3  tool       "wrote src/App.tsx"           template tokens only
    node 4  assistant  "@finish"                     3 template tokens, then 4 sampled ones

The path 0-1-2-3-4 concatenated is, id for id, what the engine was sent plus what it answered.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np

from verifier.types import Report, Task

Role = Literal["system", "user", "tool", "assistant"]
FinishReason = Literal["stop", "length", "abort"]


class Stop(StrEnum):
    """Why a rollout ended. All but `INFRA_FAILED` are outcomes of the task and are verified."""

    FINISHED = "finished"
    TURN_LIMIT = "turn_limit"
    CONTEXT_FULL = "context_full"
    TIME_LIMIT = "time_limit"
    INFRA_FAILED = "infra_failed"

    @property
    def is_valid(self) -> bool:
        """False: excluded from training and statistics (method.md section 7)."""
        return self is not Stop.INFRA_FAILED


@dataclass(frozen=True, kw_only=True)
class Picture:
    """An image as the policy is shown it: its sides are whole patches, so that nobody resizes it again.

    `rollout.pictures.fit` makes one of any image.
    """

    png: bytes = field(repr=False)
    grid: tuple[int, int]
    """Rows and columns of patches, multiples of `merge_size`."""
    merge_size: int
    """A square of so many patches a side becomes one image token."""

    @property
    def num_patches(self) -> int:
        """Patches of the whole image."""
        return self.grid[0] * self.grid[1]

    @property
    def num_tokens(self) -> int:
        """Image tokens that stand for it.

        >>> Picture(png=b"", grid=(4, 6), merge_size=2).num_tokens
        6
        """
        return self.num_patches // self.merge_size**2

    @property
    def digest(self) -> str:
        """Names the content: two pictures with one digest are one picture."""
        return hashlib.blake2b(self.png, digest_size=16, key=f"{self.grid}/{self.merge_size}".encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A picture within token ids: `ids[start:stop]` are its image tokens."""

    picture: Picture
    start: int

    @property
    def stop(self) -> int:
        """The index after its last image token."""
        return self.start + self.picture.num_tokens

    def moved(self, by: int) -> "Shown":
        """The same picture, `by` ids further on."""
        return Shown(picture=self.picture, start=self.start + by)


@dataclass(frozen=True, kw_only=True)
class Message:
    """Text with an author, before it becomes token ids."""

    role: Role
    content: str
    pictures: tuple[Picture, ...] = ()
    """Shown one after the other, before the text."""


@dataclass(frozen=True, kw_only=True)
class Completion:
    """What an engine answered: ids, and for each id its log-probability and the weights' version.

    `logp` is under the distribution that was sampled from (temperature included), in nats.
    """

    token_ids: tuple[int, ...]
    logp: tuple[float, ...]
    policy_versions: tuple[int, ...]
    finish_reason: FinishReason
    num_cached_tokens: int = 0

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.logp), len(self.policy_versions)}
        if len(lengths) != 1:
            raise ValueError(f"token_ids, logp and policy_versions must have one length, got {sorted(lengths)}")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One message as the exact ids it added to its parent's sequence.

    `token_ids[num_template:]` were sampled by the policy; all before are template, tool or user text.
    """

    node_id: int
    parent_id: int | None
    role: Role
    text: str
    token_ids: tuple[int, ...]
    num_template: int
    logp: tuple[float, ...] = ()
    policy_versions: tuple[int, ...] = ()
    finish_reason: FinishReason | None = None
    origin_id: int | None = None
    """On the copy of an answer that stands below a rewritten context: the node that was generated.
    The copy shows the same sampled tokens in another context; ownership goes by the origin."""
    pictures: tuple[Shown, ...] = ()
    """Where in `token_ids` images stand, from left to right; template tokens, all of them."""

    @property
    def num_generated(self) -> int:
        return len(self.token_ids) - self.num_template

    @property
    def identity(self) -> int:
        """Which generated message this is, whichever branch shows it."""
        return self.node_id if self.origin_id is None else self.origin_id


@dataclass(frozen=True, kw_only=True)
class Turn:
    """The accounts of one request: prompt, answer and cached prompt tokens, and seconds by phase."""

    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    generate_s: float
    tools_s: float


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One training row: a path (perhaps cut at the front) and which of its tokens it trains.

    Position t of every array speaks of token t: `loss_mask[t]` is True where the policy generated
    token t and this sample owns it.
    """

    tokens: np.ndarray
    """int32 [T]"""
    loss_mask: np.ndarray
    """bool [T]"""
    sampler_logp: np.ndarray
    """float32 [T]; NaN where nothing was sampled."""
    node_ids: np.ndarray
    """int32 [T]; the node each token came from."""
    segment: int
    """Index k of the segment (and path) that this sample is, counted before selection."""
    num_trained: int
    """loss_mask.sum()"""
    pictures: tuple[Shown, ...] = ()
    """Where in `tokens` images stand, from left to right; each is whole, none of its tokens is trained."""


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One finished attempt at a task."""

    rollout_id: str
    """`<phase>/<step>/<task_id>/<index>`; unique within a run and the same after a resume."""
    task: Task
    tree: "Tree"
    stop: Stop
    potentials: tuple[float, ...]
    """K + 1 values: Φ at the boundary that opens each segment, then at the end. NaN = missing."""
    turns: tuple[Turn, ...]
    report: Report | None
    """None exactly when `stop` is INFRA_FAILED."""
    error: str = ""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The final project."""
    num_tool_errors: int = 0

    @property
    def reward(self) -> float:
        """Reward in [0, 1]; NaN when there is none."""
        return float("nan") if self.report is None else self.report.reward


@dataclass(frozen=True, kw_only=True)
class Tree:
    """All messages of one rollout. `leaves[k]` ends path k; paths are ordered in time."""

    nodes: tuple[Node, ...]
    leaves: tuple[int, ...]

    def path(self, k: int) -> tuple[Node, ...]:
        """Root to leaf of path `k`."""
        found: list[Node] = []
        node_id: int | None = self.leaves[k]
        while node_id is not None:
            node = self.nodes[node_id]
            found.append(node)
            node_id = node.parent_id
        return tuple(reversed(found))
