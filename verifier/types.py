"""The verifier's nouns, each defined once: what is asked, what was seen, what it is worth."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CountKind = Literal["buttons", "headings", "images", "inputs", "links", "list_items", "sections"]


class InfrastructureError(RuntimeError):
    """The verifier could not judge (browser, sandbox, disk). Never a reward of 0: retry or drop."""


class TaskError(ValueError):
    """A task file that cannot be scored; the text says which field and what to write instead."""


@dataclass(frozen=True, kw_only=True)
class Requirement:
    """One line of a checklist: text that must be visible, things that must be there in number."""

    requirement_id: str
    keywords: tuple[str, ...] = ()
    """Each is looked for in the page's visible text with `verifier.text.is_present`."""
    counts: Mapping[CountKind, int] = field(default_factory=dict)
    """At least so many; graded: 2 of 3 give 2/3."""
    weight: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Task:
    """A problem: what the agent is told (`brief`) and what it is judged by (hidden from it)."""

    task_id: str
    brief: str
    requirements: tuple[Requirement, ...]
    template: str = "vite-react-bare"
    kind: Literal["generation"] = "generation"


@dataclass(frozen=True, kw_only=True)
class Built:
    """The outcome of a build. `dist` is data: relative path -> bytes; empty when `ok` is False."""

    ok: bool
    log: str
    dist: Mapping[str, bytes]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Census:
    """What a person could see and count on the rendered page."""

    text: str
    title: str = ""
    counts: Mapping[CountKind, int] = field(default_factory=dict)
    broken_images: tuple[str, ...] = ()
    overflow_x: bool = False
    height: int = 0
    """CSS px of the whole page."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One rendered page. `ok` False means that it did not mount; `reason` says why, in words."""

    ok: bool
    reason: str
    census: Census
    screenshot: bytes
    """PNG of the full page at 1440 CSS px; empty when nothing could be shot."""
    console_errors: tuple[str, ...]
    failed_requests: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Gate:
    """One of build, entry, render: passed or not, and why not."""

    name: Literal["build", "entry", "render"]
    ok: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """The judgement of one project for one task (method.md section 5)."""

    task_id: str
    reward: float
    """In [0, 1]: gate product times the legs, minus the time penalty, floored at 0."""
    gates: tuple[Gate, ...]
    f_det: float
    """Deterministic leg in [0, 1]; what the honest content is worth before the gates."""
    f_vlm: float | None
    """Judge leg in [0, 1]; None when no judge is configured (its weight goes to `f_det`)."""
    requirement_values: Mapping[str, float]
    penalty: float
    screenshot: bytes
    seconds: Mapping[str, float]
    """Wall seconds by phase: build, render, measure."""
