"""Laws of rows: nothing lost, nothing trained twice, and every token sees exactly its own sample's past."""

from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from rollout.samples import build_samples
from rollout.types import Sample
from tests.rollout.trees import trees
from wc_jax.batch import pack
from wc_jax.layout import Layout
from wc_jax.row_packing import num_rows_needed, pack_rows
from wc_jax.types import Batch


def sample_of(tokens, mask) -> Sample:
    mask = np.array(mask, bool)
    return Sample(
        tokens=np.array(tokens, np.int32),
        loss_mask=mask,
        sampler_logp=np.where(mask, -0.5 * np.arange(len(tokens)), np.nan).astype(np.float32),
        node_ids=np.zeros(len(tokens), np.int32),
        segment=0,
        num_trained=int(mask.sum()),
    )


@st.composite
def alike(draw: st.DrawFn) -> list[Sample]:
    """Samples that begin alike more often than not, over two token ids, with masks that contradict each other."""
    found: list[Sample] = []
    for _ in range(draw(st.integers(1, 9))):
        kept = found[draw(st.integers(0, len(found) - 1))].tokens if found and draw(st.booleans()) else []
        kept = list(kept[: draw(st.integers(0, len(kept)))])
        tokens = kept + draw(st.lists(st.integers(1, 2), min_size=0 if kept else 1, max_size=12 - len(kept)))
        mask = draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
        if draw(st.booleans()):
            mask = [False] * len(kept) + mask[len(kept) :]
        found.append(sample_of(tokens, mask))
    return found


@st.composite
def groups(draw: st.DrawFn) -> list[Sample]:
    """The samples of some rollouts of one task: message trees from the same prompt."""
    return [s for tree in draw(st.lists(trees(), min_size=1, max_size=3)) for s in build_samples(tree, max_paths=6)]


many_samples = st.one_of(alike(), groups())
aligns = st.sampled_from([1, 1, 2, 4])


def packed(samples, *, share, align, slack) -> tuple[Batch, Layout]:
    row_tokens = -(-(max(len(s.tokens) for s in samples) + slack) // align) * align
    advantages = [float(i + 1) for i in range(len(samples))]
    return pack(samples, row_tokens=row_tokens, share=share, align=align, advantages=advantages)


cases = st.fixed_dictionaries(
    {"samples": many_samples, "share": st.booleans(), "align": aligns, "slack": st.integers(0, 20)}
)


@given(cases)
def test_each_sample_is_read_back_from_its_last_column(case):
    batch, layout = packed(**case)
    for i, sample in enumerate(case["samples"]):
        place = layout.place(i)
        column, walked = int(place.columns[-1]), []
        while column >= 0:
            walked.insert(0, column)
            column = int(batch.predecessor[place.row, column])
        assert walked == place.columns.tolist()
        np.testing.assert_array_equal(batch.tokens[place.row, walked], sample.tokens)
        np.testing.assert_array_equal(batch.positions[place.row, walked], np.arange(len(sample.tokens)))


@given(cases)
def test_a_token_sees_itself_and_what_came_before_it_in_its_sample(case):
    batch, layout = packed(**case)
    held = held_columns(layout)
    columns = np.arange(layout.row_tokens)
    for row in range(layout.num_rows):
        until, predecessor = batch.visible_until[row], batch.predecessor[row]
        seen = (columns[None, :] <= columns[:, None]) & (columns[:, None] < until[None, :])
        for query in columns:
            if (row, query) not in held:
                assert predecessor[query] == -1 and until[query] == query + 1
                assert batch.tokens[row, query] == 0 and batch.positions[row, query] == 0
                # Padding between the branches of an aligned tree may look back; all other padding is alone.
                assert case["align"] > 1 or seen[query].sum() == 1
                continue
            past = {int(query)}
            column = predecessor[query]
            while column >= 0:
                past.add(int(column))
                column = predecessor[column]
            assert set(np.flatnonzero(seen[query]).tolist()) == past


@given(cases)
def test_each_trained_token_is_trained_once_by_its_owner(case):
    batch, layout = packed(**case)
    owned = 0
    for i, sample in enumerate(case["samples"]):
        # Nothing predicts the first token of a path that was cut inside an answer.
        trained = sample.loss_mask & (np.arange(len(sample.tokens)) > 0)
        place = layout.place(i)
        mine = place.columns[trained]
        assert batch.loss_mask[place.row, mine].all()
        assert (batch.advantage[place.row, mine] == i + 1).all()
        np.testing.assert_array_equal(batch.sampler_logp[place.row, mine], sample.sampler_logp[trained])
        owned += len(mine)
    assert batch.loss_mask.sum() == owned == batch.token_weight.sum()
    for values in (batch.advantage, batch.sampler_logp, batch.token_weight):
        assert not values[~batch.loss_mask].any()


@given(cases)
def test_a_trained_token_stands_right_after_the_state_that_predicts_it(case):
    batch, _ = packed(**case)
    rows, columns = np.nonzero(batch.loss_mask)
    assert (batch.predecessor[rows, columns] == columns - 1).all() and (columns > 0).all()


@given(cases)
def test_a_chunk_of_a_recurrence_continues_one_chunk(case):
    batch, layout = packed(**case)
    align, held = case["align"], held_columns(layout)
    for row in range(layout.num_rows):
        for start in range(0, layout.row_tokens, align):
            filled = [(row, start + k) in held for k in range(align)]
            assert filled == sorted(filled, reverse=True)  # padding only at the end of a chunk
            for column in range(start + 1, start + sum(filled)):
                assert batch.predecessor[row, column] == column - 1
            if filled[0]:
                assert (batch.predecessor[row, start] + 1) % align == 0
                assert batch.positions[row, start] % align == 0


@given(cases)
def test_the_accounts_are_those_of_the_rows(case):
    _, layout = packed(**case)
    held = held_columns(layout)
    total = sum(len(s.tokens) for s in case["samples"])
    assert layout.num_tokens == total and layout.num_computed == len(held) <= total
    assert layout.share_saved == (total - len(held)) / total
    assert all(layout.runs[path[-1]].start < n for path, n in zip(layout.paths, layout.lengths, strict=True))
    size = layout.num_rows * layout.row_tokens
    assert layout.share_wasted == (size - len(held)) / size
    assert case["share"] or layout.num_computed == total


@given(cases, st.randoms(use_true_random=False))
def test_shared_rows_do_not_depend_on_the_order_of_samples(case, random):
    samples = case["samples"]
    order = list(range(len(samples)))
    random.shuffle(order)
    options = {"share": True, "align": case["align"], "slack": case["slack"]}
    batch, _ = packed(samples, **options)
    other, _ = packed([samples[i] for i in order], **options)
    for name in ("tokens", "positions", "visible_until", "predecessor", "loss_mask"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(other, name))


@given(st.lists(st.integers(1, 16), max_size=12))
def test_packing_without_sharing_leaves_no_two_rows_that_fit_into_one(sizes):
    packing = pack_rows(sizes, 16)
    used = [sum(n for n, r in zip(sizes, packing.rows, strict=True) if r == row) for row in range(len(packing.used))]
    assert tuple(used) == packing.used and max(used, default=0) <= 16
    assert all(a + b > 16 for i, a in enumerate(used) for b in used[:i])
    assert num_rows_needed(sizes, 16) == len(used)
    assert num_rows_needed(sizes, 16) <= -(-sum(sizes) * 2 // 16) or len(used) <= 1


@given(groups())
def test_a_sample_given_twice_costs_nothing_where_only_one_trains(samples):
    context = [replace(s, loss_mask=np.zeros_like(s.loss_mask)) for s in samples]
    _, once = packed(samples, share=True, align=1, slack=200)
    _, twice = packed(samples + context, share=True, align=1, slack=200)
    assert twice.num_computed == once.num_computed


def held_columns(layout: Layout) -> set[tuple[int, int]]:
    """Every (row, column) that some sample holds."""
    return {(p.row, int(c)) for p in map(layout.place, range(len(layout.lengths))) for c in p.columns}
