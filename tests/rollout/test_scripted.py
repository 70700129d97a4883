"""The scripted engine: same answers every time, cut where asked, with the control side of a real engine."""

from pathlib import Path

import pytest

from rollout.scripted import ScriptedEngine, token_logp
from tests.engine import ask

END = 2


def make() -> ScriptedEngine:
    return ScriptedEngine(
        lambda rollout_id, turn: f"{rollout_id}{turn}", encode=lambda text: [ord(c) for c in text], end_id=END
    )


def test_answers_are_the_script_closed_by_the_end_id() -> None:
    answer = make().generate(ask((1, 2, 3)))
    assert answer.token_ids == (*(ord(c) for c in "test0"), END)
    assert answer.finish_reason == "stop"
    assert answer.logp == tuple(token_logp(token_id) for token_id in answer.token_ids)
    assert make().generate(ask((9,))) == answer


@pytest.mark.parametrize(("budget", "reason"), [(1, "length"), (5, "length"), (6, "stop"), (7, "stop")])
def test_budget(budget: int, reason: str) -> None:
    answer = make().generate(ask((1,), max_tokens=budget))
    assert (len(answer.token_ids), answer.finish_reason) == (min(budget, 6), reason)


def test_no_budget_is_refused() -> None:
    with pytest.raises(ValueError, match="max_tokens"):
        make().generate(ask((1,), max_tokens=0))


def test_versions_follow_publish_and_set_version() -> None:
    engine = make()
    engine.publish(Path("weights"), 3)
    assert (engine.version(), set(engine.generate(ask((1,))).policy_versions)) == (3, {3})
    engine.set_version(7)
    assert set(engine.generate(ask((1,))).policy_versions) == {7}
    assert engine.published == [(Path("weights"), 3)]


def test_log_probabilities_are_of_a_likely_range_and_tell_tokens_apart() -> None:
    values = [token_logp(token_id) for token_id in range(101)]
    assert all(-2 < value < 0 for value in values)
    assert len(set(values)) == 101
