import pytest
from hypothesis import given
from hypothesis import strategies as st

from verifier.reward import failure_line, score_evidence, with_time_penalty
from verifier.types import Built, Census, Page, Requirement, Task

TASK = Task(
    task_id="t",
    brief="b",
    requirements=(
        Requirement(requirement_id="menu", keywords=("Rye", "Spelt"), weight=3.0),
        Requirement(requirement_id="act", keywords=("Order",), counts={"buttons": 3}, weight=1.0),
    ),
)
BUILT = Built(ok=True, log="", dist={"index.html": b"<div id=root></div>"}, seconds=0.5)


def page(text: str, *, buttons: int = 0, ok: bool = True, reason: str = "") -> Page:
    return Page(
        ok=ok,
        reason=reason,
        census=Census(text=text, counts={"buttons": buttons}),
        screenshot=b"png",
        console_errors=(),
        failed_requests=(),
        seconds=0.25,
    )


def test_value_by_hand() -> None:
    report = score_evidence(TASK, BUILT, page("Rye\nOrder", buttons=2))
    assert report.requirement_values == {"menu": 0.5, "act": pytest.approx((1 + 2 / 3) / 2)}
    assert report.f_det == report.reward == pytest.approx((3 * 0.5 + 5 / 6) / 4)
    assert report.f_vlm is None and report.seconds == {"build": 0.5, "render": 0.25}


def test_more_than_asked_is_not_worth_more() -> None:
    assert score_evidence(TASK, BUILT, page("Rye Spelt Order", buttons=99)).reward == 1.0


def test_the_judge_leg_weighs_four_tenths() -> None:
    report = score_evidence(TASK, BUILT, page("Rye Spelt Order", buttons=3), f_vlm=0.25)
    assert report.reward == pytest.approx(0.6 + 0.4 * 0.25)


@pytest.mark.parametrize("f_vlm", [-0.1, 1.1, float("nan")])
def test_a_judge_outside_its_range_is_an_error(f_vlm: float) -> None:
    with pytest.raises(ValueError, match="f_vlm"):
        score_evidence(TASK, BUILT, page("Rye"), f_vlm=f_vlm)


def test_penalty_is_subtracted_after_the_gate_and_floored() -> None:
    full = page("Rye Spelt Order", buttons=3)
    assert score_evidence(TASK, BUILT, full, time_exhausted=True).reward == pytest.approx(0.9)
    closed = score_evidence(TASK, BUILT, page("", ok=False), time_exhausted=True)
    assert closed.reward == 0.0 and closed.penalty == 0.1
    once = score_evidence(TASK, BUILT, full, time_exhausted=True)
    assert with_time_penalty(once) == once


def test_each_gate_closes_the_reward_and_says_why() -> None:
    content = page("Rye Spelt Order", buttons=3)
    broken = Built(ok=False, log="x\nError: no main.tsx\n", dist={}, seconds=1.0)
    report = score_evidence(TASK, broken, None)
    assert report.reward == 0 and report.gates[0].reason == "Error: no main.tsx"
    assert [g.ok for g in report.gates] == [False, False, False]

    empty = Built(ok=True, log="", dist={"a.js": b""}, seconds=1.0)
    report = score_evidence(TASK, empty, None)
    assert report.reward == 0 and [g.ok for g in report.gates] == [True, False, False]
    assert "index.html" in report.gates[1].reason

    blank = page("Rye Spelt Order", buttons=3, ok=False, reason="no visible text")
    report = score_evidence(TASK, BUILT, blank)
    assert report.reward == 0 and report.f_det == 1.0 and report.gates[2].reason == "no visible text"
    assert score_evidence(TASK, BUILT, content).reward == 1.0


def test_a_missing_page_behind_open_gates_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="rendered page"):
        score_evidence(TASK, BUILT, None)


def test_a_script_that_was_not_built_closes_the_entry_gate() -> None:
    dist = {"index.html": b'<script type="module" src="/assets/a.js"></script>'}
    gates = score_evidence(TASK, Built(ok=True, log="", dist=dist, seconds=0), None).gates
    assert not gates[1].ok and "/assets/a.js" in gates[1].reason
    dist["assets/a.js"] = b""
    assert score_evidence(TASK, Built(ok=True, log="", dist=dist, seconds=0), page("Rye")).gates[1].ok


def test_failure_line_prefers_the_line_that_names_the_error() -> None:
    log = "vite v8\n[plugin] Unexpected token (error)\nfoo\n[build] exit code 1"
    assert failure_line(log) == "exit code 1: [plugin] Unexpected token (error)"
    assert failure_line("") == "the build gave no output"


@given(st.sets(st.sampled_from(["Rye", "Spelt", "Order"])), st.integers(0, 5), st.booleans())
def test_adding_what_is_asked_never_lowers_the_reward(words: set[str], buttons: int, late: bool) -> None:
    low = score_evidence(TASK, BUILT, page(" ".join(words), buttons=buttons), time_exhausted=late)
    more = page(" ".join(words | {"Spelt"}), buttons=buttons + 1)
    high = score_evidence(TASK, BUILT, more, time_exhausted=late)
    assert 0.0 <= low.reward <= high.reward <= 1.0
