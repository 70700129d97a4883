"""The page generator: splits by content, repairs that repair, demonstrations in the loop's own tokens."""

from itertools import islice
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.calls import ToolCall, parse_calls
from rollout.context import ContextConfig
from rollout.pages.demos import demo_samples, make_script
from rollout.pages.developer import CARELESS, MOODS, Habits, script_of
from rollout.pages.draft import Draft, edit_between, next_repair, perfect
from rollout.pages.simulated import read_component
from rollout.pages.spec import PageSpec, brief, make_spec, task_of
from rollout.pages.tasks import page_specs, page_tasks
from rollout.pages.vocabulary import train_tokenizer
from rollout.render import ChatFormat
from verifier.text import is_present

specs = st.integers(0, 10_000).map(lambda seed: make_spec(Random(seed), split="train"))
HOPELESS = Habits(forget_section=0.7, forget_button=0.7, forget_line=0.5, typo=0.5, break_build=0.8, look=1, repair=1)


def test_the_same_call_gives_the_same_tasks_and_no_title_is_in_both_splits() -> None:
    train, heldout = page_specs("train", 300, 0), page_specs("heldout", 100, 0)
    assert page_tasks("train", 300, 0) == page_tasks("train", 300, 0)
    assert page_tasks("train", 300, 0) != page_tasks("train", 300, 1)
    assert not {s.title for s in train} & {s.title for s in heldout}
    assert len({s.title for s in train}) == 300


@given(specs)
def test_the_brief_holds_every_expected_text_and_the_perfect_page_shows_it(spec: PageSpec) -> None:
    task = task_of(spec, "t")
    error, lines = read_component(perfect(spec).source())
    assert error == ""
    for requirement in task.requirements:
        for keyword in requirement.keywords:
            assert is_present(keyword, brief(spec))
            assert is_present(keyword, "\n".join(lines))


@given(specs, st.integers(0, 1000))
def test_repairs_end_at_the_perfect_page_and_each_edit_applies(spec: PageSpec, seed: int) -> None:
    answers = script_of(spec, HOPELESS, Random(seed))
    source = ""
    for answer in answers:
        for call in parse_calls(answer):
            assert isinstance(call, ToolCall)
            if call.name == "write":
                source = call.arguments["content"]
            elif call.name == "edit":
                assert source.count(call.arguments["old"]) == 1
                source = source.replace(call.arguments["old"], call.arguments["new"])
    shown = set(read_component(source)[1])
    assert shown == set(read_component(perfect(spec).source())[1])


@given(st.lists(st.sampled_from("abcde"), max_size=8), st.lists(st.sampled_from("abcde"), max_size=8))
def test_an_edit_turns_one_text_into_the_other(before: list[str], after: list[str]) -> None:
    old_text = "\n".join(["top", *before, "bottom"])
    new_text = "\n".join(["top", *after, "bottom"])
    if old_text == new_text:
        return
    old, new = edit_between(old_text, new_text)
    assert old_text.count(old) == 1
    assert old_text.replace(old, new) == new_text


@pytest.mark.parametrize("broken", ["list", "heading"])
def test_a_broken_draft_fails_to_build_where_the_tag_is_missed(broken: str) -> None:
    spec = next(s for s in page_specs("train", 50, 0) if len(s.sections[0].lines) > 1)
    draft = Draft(title=spec.title, sections=spec.sections, button=spec.button, broken=broken)  # type: ignore[arg-type]
    assert read_component(draft.source())[0].startswith("src/App.tsx:")
    assert next_repair(draft, spec) == perfect(spec)


def test_a_scripted_rollout_has_the_same_answers_every_time_and_ends() -> None:
    found = {"train-0000": page_specs("train", 1, 0)[0]}
    script = make_script(found, seed=3)
    answers = [script("train/1/train-0000/0", turn) for turn in range(20)]
    assert answers == [script("train/1/train-0000/0", turn) for turn in range(20)]
    assert answers[-1].endswith("@finish")
    assert answers != [script("train/1/train-0000/1", turn) for turn in range(20)]


def test_moods_differ_in_what_they_leave_undone() -> None:
    rng = Random(0)

    def mean_missing(habits: Habits) -> float:
        missing = 0
        for spec in page_specs("train", 100, 0):
            (call, *_) = [c for c in parse_calls(script_of(spec, habits, rng)[-1]) if isinstance(c, ToolCall)]
            writes = [
                c.arguments["content"]
                for answer in script_of(spec, habits, rng)
                for c in parse_calls(answer)
                if isinstance(c, ToolCall) and c.name == "write"
            ]
            missing += sum(section.heading not in writes[0] for section in spec.sections)
            assert call.name in {"edit", "finish", "write"}
        return missing / 100

    careful, usual, careless = (mean_missing(habits) for habits in MOODS)
    assert careful < usual < careless


def test_demonstrations_train_the_developers_tokens_only() -> None:
    tokenizer = train_tokenizer(1600, num_pages=300)
    chat = ChatFormat(tokenizer)
    num_demonstrations = 0
    for sample in islice(demo_samples(chat, ContextConfig(fold_tokens=400), seed=0, num_drilled=100), 120):
        ids = tuple(int(token) for token in sample.tokens)
        trained = tuple(int(token) for token in sample.tokens[sample.loss_mask])
        assert trained[-1] == chat.end_id
        answers = chat.decode(trained)
        assert "build ok" not in answers
        assert "Build a page" not in answers
        if chat.decode(ids).startswith("<|im_start|>system\nYou build"):
            num_demonstrations += 1
            assert "@" in answers
        assert np.isfinite(sample.sampler_logp[sample.loss_mask]).all()
    assert num_demonstrations > 20


def test_a_careless_developer_is_not_always_wrong() -> None:
    rng = Random(1)
    spec = page_specs("train", 1, 5)[0]
    assert any(perfect(spec).source() in script_of(spec, CARELESS, rng)[0] for _ in range(200))
