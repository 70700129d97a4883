"""Truncation and folding: what the policy sees shrinks, what it generated is kept and owned once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.context import ContextConfig, fold, fold_if_needed, truncate
from rollout.samples import build_samples
from rollout.tree import TreeBuilder
from rollout.types import Completion, Message, Node
from tests.rollout.chat import tiny_chat

CHAT = tiny_chat()
TIGHT = ContextConfig(fold_tokens=10)


def say(tree: TreeBuilder, role: str, text: str) -> Node:
    return tree.add_message(role, text, CHAT.message_ids(Message(role=role, content=text)))  # type: ignore[arg-type]


def answer(tree: TreeBuilder, text: str) -> Node:
    ids = (*CHAT.text_ids(text), CHAT.end_id)
    completion = Completion(
        token_ids=ids, logp=(-1.0,) * len(ids), policy_versions=(0,) * len(ids), finish_reason="stop"
    )
    return tree.add_answer(text, CHAT.answer_header, completion)


def reply(tree: TreeBuilder, text: str) -> Node:
    closing = CHAT.closing_ids(ended=True)
    return tree.add_message("tool", text, closing + CHAT.message_ids(Message(role="tool", content=text)))


def long_talk() -> TreeBuilder:
    tree = TreeBuilder()
    say(tree, "system", "s")
    say(tree, "user", "u")
    answer(tree, "@webshot")
    reply(tree, "build ok\nold page with much to tell")
    answer(tree, "@read a")
    reply(tree, "one\ntwo")
    return tree


@given(st.text(max_size=300), st.integers(64, 200))
def test_truncation_keeps_head_and_tail_and_counts_the_rest(text: str, limit: int) -> None:
    short = truncate(text, limit)
    assert len(short) <= limit
    if len(text) > limit:
        left_out = int(short.split("[")[-1].split(" ")[0]) if text.count("[") == 0 else None
        head = short.split("\n[")[0]
        assert text.startswith(head[: (limit - 32) // 2])
        if left_out is not None and "\n" not in text:
            assert left_out == len(text) - 2 * ((limit - 32) // 2)


def test_folding_shortens_the_prompt_and_opens_a_second_path() -> None:
    tree = long_talk()
    before = tree.prompt()
    assert fold_if_needed(tree, CHAT, TIGHT)
    assert len(tree.prompt()) < len(before)
    assert fold("build ok\nold page with much to tell") in CHAT.decode(tree.prompt())
    assert "two" in CHAT.decode(tree.prompt()), "the newest result stays as it was"
    built = tree.build()
    assert len(built.leaves) == 2
    first = tuple(t for node in built.path(0) for t in node.token_ids)
    assert before[: len(first)] == first
    assert built.path(0)[-1].role == "assistant", "results that nobody answered belong to no path"


def test_a_branch_below_the_limit_or_already_folded_is_left_alone() -> None:
    tree = long_talk()
    assert not fold_if_needed(tree, CHAT, ContextConfig(fold_tokens=10_000))
    assert fold_if_needed(tree, CHAT, TIGHT)
    assert not fold_if_needed(tree, CHAT, TIGHT)


def test_an_answer_copied_below_a_fold_is_trained_once_in_the_context_that_made_it() -> None:
    tree = long_talk()
    fold_if_needed(tree, CHAT, TIGHT)
    last = answer(tree, "@finish")
    first, second = build_samples(tree.build())
    assert second.num_trained == last.num_generated
    assert first.num_trained == sum(n.num_generated for n in tree.build().path(0))
    copied = np.isin(second.node_ids, first.node_ids[first.loss_mask])
    assert copied.any()
    assert not (second.loss_mask & copied).any()


def test_a_copy_has_no_sampler_log_probability_because_it_was_not_sampled_there() -> None:
    tree = long_talk()
    fold_if_needed(tree, CHAT, TIGHT)
    answer(tree, "@finish")
    built = tree.build()
    sample = build_samples(built)[1]
    sampled_here = [i >= n.num_template and n.origin_id is None for n in built.path(1) for i in range(len(n.token_ids))]
    assert any(n.origin_id is not None for n in built.path(1))
    assert np.isfinite(sample.sampler_logp).tolist() == sampled_here


@pytest.mark.parametrize("field", ["fold_tokens", "keep_results", "max_result_chars"])
def test_a_limit_that_makes_no_sense_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        ContextConfig(**{field: 0})
