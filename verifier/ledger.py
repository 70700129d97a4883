"""How much of the checklist the agent has itself seen on its page: the artifact potential.

Fed only with page texts that the agent fetched; a file write is no observation.
"""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from verifier.text import share_present
from verifier.types import Requirement


class Ledger:
    """Running values of the keyword requirements; the latest observation counts, lower ones too.

    Requirements without keywords are left out and the other weights renormalized: counts are only
    known from the final census.

    >>> ledger = Ledger([Requirement(requirement_id="menu", keywords=("Rye", "Spelt"))])
    >>> ledger.observe("Rye bread"); ledger.potential
    0.5
    """

    def __init__(self, requirements: Sequence[Requirement]) -> None:
        self._requirements = tuple(r for r in requirements if r.keywords)
        bad = [r.requirement_id for r in self._requirements if not 0 < r.weight < math.inf]
        if bad:
            raise ValueError(f"weights must be finite and above 0; not so in: {', '.join(bad)}")
        self._values = {r.requirement_id: 0.0 for r in self._requirements}
        if len(self._values) != len(self._requirements):
            raise ValueError("requirement_id must be unique within a task")

    @property
    def values(self) -> Mapping[str, float]:
        """requirement_id -> share of its keywords in the last page seen; 0 before any."""
        return MappingProxyType(self._values)

    @property
    def potential(self) -> float:
        """Weighted mean of the values, in [0, 1]; 0 before any observation.

        NaN (missing: the rollout falls back to equal credit) when no requirement has keywords.
        """
        if not self._requirements:
            return math.nan
        total = math.fsum(r.weight for r in self._requirements)
        earned = math.fsum(r.weight * self._values[r.requirement_id] for r in self._requirements)
        return min(1.0, earned / total)

    def observe(self, text: str) -> None:
        """Takes the visible text of a page the agent just fetched; an empty page counts as 0."""
        for requirement in self._requirements:
            self._values[requirement.requirement_id] = share_present(requirement.keywords, text)
