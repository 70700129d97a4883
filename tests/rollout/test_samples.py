"""Ownership: each generated token is trained once, in the first retained path that shows it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.samples import build_samples, segment_token_counts
from rollout.selection import evenly_spaced, select_paths
from rollout.types import Sample, Tree
from tests.rollout.trees import Sketch, trees


def trained(samples: list[Sample]) -> list[tuple[int, int]]:
    """(node, position counted from the node's end) of every trained token, in order."""
    found = []
    for sample in samples:
        for t in np.flatnonzero(sample.loss_mask):
            node = sample.node_ids[t]
            last = np.flatnonzero(sample.node_ids == node)[-1]
            found.append((int(node), int(last - t)))
    return found


def branching() -> Tree:
    """Prompt P; A of 2 tokens; then an observation and B (1 token), or a compaction and C (1 token)."""
    s = Sketch()
    prompt = s.add(None, "user", template=2)
    a = s.add(prompt, "assistant", template=0, generated=2)
    b = s.add(s.add(a, "tool"), "assistant", template=0, generated=1)
    c = s.add(s.add(a, "user"), "assistant", template=0, generated=1)
    return s.tree(b, c)


def test_shared_node_is_trained_once() -> None:
    first, second = build_samples(branching())
    assert first.loss_mask.tolist() == [False, False, True, True, False, True]
    assert second.loss_mask.tolist() == [False, False, False, False, False, True]
    assert second.tokens.tolist() == [0, 1, 100, 101, 400, 500]
    assert first.num_trained + second.num_trained == 4
    assert len(set(trained([first, second]))) == 4
    assert segment_token_counts([first, second], 2) == [3, 1]


def test_shared_node_weighs_as_in_the_flat_list_of_its_tokens() -> None:
    """A linear loss over token ids: its gradient counts how often each trained token is seen."""
    gradient = np.zeros(1000)
    for sample in build_samples(branching()):
        np.add.at(gradient, sample.tokens[sample.loss_mask], 1.0)
    flat = np.zeros(1000)
    flat[[100, 101, 300, 500]] = 1.0
    np.testing.assert_array_equal(gradient, flat)


def test_sampler_logp_stands_at_its_own_token() -> None:
    first, _ = build_samples(branching())
    expected = [math.nan, math.nan, -1.0, -1.1, math.nan, -3.0]
    np.testing.assert_allclose(first.sampler_logp, np.array(expected, np.float32))
    assert first.sampler_logp.dtype == np.float32
    assert first.tokens.dtype == np.int32 and first.node_ids.dtype == np.int32 and first.loss_mask.dtype == bool


def test_mask_comes_from_provenance_not_from_token_ids() -> None:
    """Padding equals end-of-text equals 2: both generated 2s are trained, the observation is not."""
    s = Sketch()
    first = s.add(None, "assistant", template=0, token_ids=(5, 2))
    tool = s.add(first, "tool", token_ids=(7,))
    last = s.add(tool, "assistant", template=0, token_ids=(6, 2))
    (sample,) = build_samples(s.tree(last))
    assert sample.tokens.tolist() == [5, 2, 7, 6, 2]
    assert sample.loss_mask.tolist() == [True, True, False, True, True]
    (short,) = build_samples(s.tree(first))
    assert short.loss_mask.tolist() == [True, True]


def test_samples_of_a_rollout_share_its_id_space_so_statistics_can_be_per_rollout() -> None:
    """Three segments here, one there: what counts for group statistics is the rollout, not its rows."""
    s = Sketch()
    prompt = s.add(None, "user")
    leaves = [s.add(s.add(prompt, "user"), "assistant", generated=2) for _ in range(3)]
    many = build_samples(s.tree(*leaves))
    one = build_samples(s.tree(leaves[0]))
    assert [sample.segment for sample in many] == [0, 1, 2]
    assert (len(many), len(one)) == (3, 1)
    assert segment_token_counts(many, 3) == [2, 2, 2]


def test_summary_is_trained_in_the_segment_it_ends() -> None:
    s = Sketch()
    task = s.add(None, "user")
    work = s.add(task, "assistant", generated=3)
    asked = s.add(work, "user")
    summary = s.add(asked, "assistant", generated=5, text="so far: ...")
    copied = s.add(task, "user", template=6, text="so far: ...")
    after = s.add(copied, "assistant", generated=2)
    before_rewrite, after_rewrite = build_samples(s.tree(summary, after))
    assert set(before_rewrite.node_ids[before_rewrite.loss_mask]) == {work, summary}
    assert set(after_rewrite.node_ids[after_rewrite.loss_mask]) == {after}
    assert segment_token_counts([before_rewrite, after_rewrite], 2) == [8, 2]


def test_folded_copy_of_a_generated_message_is_context() -> None:
    """After a fold the old answer stands in the new branch as a copy that names its origin."""
    s = Sketch()
    prompt = s.add(None, "user")
    looked = s.add(s.add(prompt, "assistant", generated=2), "tool", template=40)
    answer = s.add(looked, "assistant", template=1, generated=3)
    folded = s.add(s.nodes[looked].parent_id, "tool", template=1)
    copy = s.copy(folded, answer)
    leaf1 = s.add(copy, "assistant", generated=2)
    samples = build_samples(s.tree(answer, leaf1))
    assert samples[1].loss_mask[samples[1].node_ids == answer].tolist() == [False] * 4
    assert segment_token_counts(samples, 2) == [5, 2]


def test_copy_is_trained_where_its_original_is_not_shown() -> None:
    """The original's path keeps the last 5 tokens: 2 of the answer's 3. The copy's path trains the third."""
    s = Sketch()
    prompt = s.add(None, "user")
    answer = s.add(s.add(prompt, "tool", template=4), "assistant", template=0, generated=3)
    leaf0 = s.add(s.add(answer, "tool", template=2), "assistant", template=0, generated=1)
    copy = s.copy(s.add(prompt, "tool"), answer)
    first, second = build_samples(s.tree(leaf0, copy), max_tokens=5)
    assert first.loss_mask.tolist() == [True, True, False, False, True]
    assert second.loss_mask.tolist() == [False, False, True, False, False]
    assert second.node_ids[2] == answer


def test_equal_words_at_one_position_are_two_messages() -> None:
    """Keyed by position and content the second would be lost; keyed by id both are trained."""
    s = Sketch()
    prompt = s.add(None, "user", template=2)
    first = s.add(prompt, "assistant", template=0, token_ids=(7, 8), text="again")
    second = s.add(prompt, "assistant", template=0, token_ids=(7, 8), text="again")
    samples = build_samples(s.tree(first, second))
    assert [set(sample.node_ids[sample.loss_mask]) for sample in samples] == [{first}, {second}]


def test_tokens_cut_from_their_owner_go_to_the_next_path_that_shows_them() -> None:
    """A has 4 tokens; path 0 (limit 6) keeps its last 2, path 1 shows all 4 and trains the first 2."""
    s = Sketch()
    a = s.add(s.add(None, "user", template=1), "assistant", template=0, generated=4)
    long = s.add(s.add(a, "tool", template=2), "assistant", template=0, generated=2)
    short = s.add(a, "assistant", template=0, generated=1)
    first, second = build_samples(s.tree(long, short), max_tokens=6)
    assert first.tokens.tolist() == [102, 103, 200, 201, 300, 301]
    assert first.loss_mask.tolist() == [True, True, False, False, True, True]
    assert second.tokens.tolist() == [0, 100, 101, 102, 103, 400]
    assert second.loss_mask.tolist() == [False, True, True, False, False, True]


def test_dropped_segments_tokens_are_trained_by_the_next_retained_path() -> None:
    """Three paths share A; path 1 made X and is dropped; path 2 still shows X and trains it."""
    s = Sketch()
    a = s.add(s.add(None, "user"), "assistant", generated=1)
    leaf0 = s.add(a, "assistant", generated=1)
    x = s.add(s.add(a, "tool"), "assistant", generated=3)
    leaf1 = s.add(x, "assistant", generated=1)
    leaf2 = s.add(s.add(x, "user"), "assistant", generated=1)
    samples = build_samples(s.tree(leaf0, leaf1, leaf2), max_paths=2)
    assert [sample.segment for sample in samples] == [0, 2]
    assert segment_token_counts(samples, 3) == [2, 0, 4]
    assert set(samples[1].node_ids[samples[1].loss_mask]) == {x, leaf2}


def test_path_without_tokens_of_its_own_is_dropped() -> None:
    s = Sketch()
    answer = s.add(s.add(None, "user"), "assistant", generated=2)
    folded = s.add(answer, "tool")
    (only,) = build_samples(s.tree(answer, folded))
    assert only.segment == 0
    assert segment_token_counts([only], 2) == [2, 0]


def test_nothing_generated_gives_no_samples() -> None:
    s = Sketch()
    assert build_samples(s.tree(s.add(None, "user"))) == []
    assert build_samples(Tree(nodes=(), leaves=())) == []


def test_lost_logprobs_are_refused() -> None:
    s = Sketch()
    answer = s.add(None, "assistant", generated=2)
    node = s.nodes[answer]
    broken = Tree(nodes=(type(node)(**{**vars(node), "logp": (-1.0,)}),), leaves=(0,))
    with pytest.raises(ValueError, match="2 generated tokens and 1 log-prob"):
        build_samples(broken)


@pytest.mark.parametrize(
    ("potentials", "kept"),
    [
        ([0, 0.1, 0.2, 0.9, 0.9, 1.0], [0, 2, 4]),
        ([0, 0.5, 0.4, 0.3, 0.2, 1.0], [0, 1, 4]),  # all interior ones lose equally: the earlier
        ([0, 0.1, 0.2, 0.9, 0.9], [0, 2, 4]),  # without the end value, which no interior path needs
        ([0, 0.1, math.nan, 0.9, 0.9, 1.0], [0, 2, 4]),
        (None, [0, 2, 4]),
    ],
)
def test_selection(potentials: list[float] | None, kept: list[int]) -> None:
    assert select_paths(5, potentials, 3) == kept


def test_selection_limits() -> None:
    assert select_paths(7, [0.0] * 8, 1) == [0]
    assert select_paths(7, [0.0] * 8, 2) == [0, 6]
    assert select_paths(7, [0.0] * 8, 4) == [0, 1, 2, 6]
    assert select_paths(3, None, 6) == [0, 1, 2]
    with pytest.raises(ValueError, match="max_paths must be at least 1"):
        select_paths(3, None, 0)
    with pytest.raises(ValueError, match="4 for 3 paths"):
        select_paths(3, [0.0, 1.0], 6)
    with pytest.raises(ValueError, match="max_tokens"):
        build_samples(branching(), max_tokens=0)
    with pytest.raises(ValueError, match="segment 1 in a rollout of 1"):
        segment_token_counts(build_samples(branching()), 1)


@given(st.integers(1, 60), st.integers(1, 60))
def test_even_spacing_keeps_both_ends_and_differs_by_at_most_one(num_paths: int, num_kept: int) -> None:
    kept = evenly_spaced(num_paths, num_kept)
    assert len(kept) == min(num_paths, num_kept)
    assert kept[0] == 0 and (num_kept == 1 or kept[-1] == num_paths - 1)
    gaps = np.diff(kept)
    assert gaps.size == 0 or (gaps.min() >= 1 and gaps.max() - gaps.min() <= 1)


@given(trees(), st.integers(1, 8), st.integers(1, 80), st.data())
def test_laws_of_ownership(tree: Tree, max_paths: int, max_tokens: int, data: st.DataObject) -> None:
    values = st.lists(st.floats(0, 1), min_size=len(tree.leaves) + 1, max_size=len(tree.leaves) + 1)
    potentials = data.draw(st.none() | values)
    samples = build_samples(tree, potentials=potentials, max_paths=max_paths, max_tokens=max_tokens)
    owned = trained(samples)
    assert len(owned) == len(set(owned)), "a token is trained twice"

    shown = set()
    for k in select_paths(len(tree.leaves), potentials, max_paths):
        tokens = [(node, i) for node in tree.path(k) for i in range(len(node.token_ids))][-max_tokens:]
        shown |= {(n.identity, len(n.token_ids) - 1 - i) for n, i in tokens if i >= n.num_template}
    assert set(owned) == shown, "trained tokens are exactly the generated ones that a retained path shows"

    assert sum(segment_token_counts(samples, len(tree.leaves))) == len(owned)
    for sample in samples:
        assert sample.num_trained == sample.loss_mask.sum() > 0
        path = tree.path(sample.segment)
        original = np.concatenate([np.full(len(n.token_ids), n.origin_id is None) for n in path])[-max_tokens:]
        assert (np.isfinite(sample.sampler_logp) == original)[sample.loss_mask].all(), "a copy was not sampled here"
        path_tokens = [token for node in tree.path(sample.segment) for token in node.token_ids]
        assert sample.tokens.tolist() == path_tokens[-max_tokens:]
        assert len(sample.tokens) == len(sample.loss_mask) == len(sample.node_ids) == len(sample.sampler_logp)
