import math

import pytest

from verifier.ledger import Ledger
from verifier.types import Requirement

MENU = Requirement(requirement_id="menu", keywords=("Rye", "Spelt"), weight=3.0)
HOURS = Requirement(requirement_id="hours", keywords=("Open daily",), weight=1.0)
BUTTONS = Requirement(requirement_id="buttons", counts={"buttons": 2}, weight=50.0)


def test_zero_before_any_observation_and_weights_without_counts_sum_to_one() -> None:
    ledger = Ledger([MENU, HOURS, BUTTONS])
    assert ledger.potential == 0.0
    ledger.observe("Rye\nOpen daily")
    assert ledger.potential == pytest.approx((3 * 0.5 + 1) / 4)
    assert dict(ledger.values) == {"menu": 0.5, "hours": 1.0}


def test_a_later_lower_observation_replaces_a_higher_one() -> None:
    ledger = Ledger([MENU, HOURS])
    ledger.observe("Rye Spelt Open daily")
    assert ledger.potential == 1.0
    ledger.observe("")
    assert ledger.potential == 0.0


def test_counts_beside_keywords_are_left_out() -> None:
    both = Requirement(requirement_id="both", keywords=("Rye",), counts={"buttons": 9})
    ledger = Ledger([both])
    ledger.observe("Rye")
    assert ledger.potential == 1.0


def test_missing_when_no_requirement_has_keywords() -> None:
    ledger = Ledger([BUTTONS])
    ledger.observe("anything")
    assert math.isnan(ledger.potential)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_bad_weights_are_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="menu"):
        Ledger([Requirement(requirement_id="menu", keywords=("Rye",), weight=weight)])


def test_duplicate_ids_are_refused() -> None:
    with pytest.raises(ValueError, match="unique"):
        Ledger([MENU, MENU])
