"""The census of a rendered page: the script that takes it, and its answer as a `Census`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args

from verifier.types import Census, CountKind

MAX_TEXT = 50_000
"""Characters of visible text kept."""
MAX_NODES = 30_000
"""Elements and text nodes looked at; a page beyond that is judged by its first ones."""

SCRIPTS = Path(__file__).parent / "js"


def script(name: str) -> str:
    """The source of one of our page scripts: prelude, sweep or census."""
    return (SCRIPTS / f"{name}.js").read_text(encoding="utf-8")


def census_expression() -> str:
    """A JavaScript expression to evaluate in an isolated world; its value goes to `parse_census`."""
    return f"{script('census')}({MAX_TEXT}, {MAX_NODES})"


def parse_census(raw: Mapping[str, Any], *, origin: str = "") -> Census:
    """The answer of the page script as a `Census`; image addresses are made relative to `origin`."""
    counts = {kind: int(raw["counts"].get(kind, 0)) for kind in get_args(CountKind)}
    return Census(
        text=str(raw["text"]),
        title=str(raw["title"]),
        counts=cast("dict[CountKind, int]", counts),
        broken_images=tuple(str(url).removeprefix(origin) for url in raw["broken"]),
        overflow_x=bool(raw["overflow"]),
        height=int(raw["height"]),
    )
