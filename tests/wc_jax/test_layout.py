"""Which tokens are shared and where they lie, on rows small enough to draw."""

import numpy as np
import pytest

from tests.laws.test_packing_laws import sample_of
from wc_jax.batch import plan
from wc_jax.layout import Layout, lay_out
from wc_jax.prefix_tree import build_prefix_tree
from wc_jax.row_packing import pack_rows


def letters(*samples: str, row_tokens: int, align: int = 1, share: bool = True) -> Layout:
    """A trained token is an upper-case letter; ids do not know the difference."""
    tokens = [np.array([ord(c.lower()) for c in text], np.int32) for text in samples]
    trained = [np.array([c.isupper() for c in text]) for text in samples]
    return lay_out(tokens, trained, row_tokens=row_tokens, share=share, align=align)


def drawn(layout: Layout, *samples: str) -> list[str]:
    """The rows as text; padding is a dot."""
    rows = [["."] * layout.row_tokens for _ in range(layout.num_rows)]
    for i, text in enumerate(samples):
        place = layout.place(i)
        for column, letter in zip(place.columns, text, strict=True):
            here = rows[place.row][column]
            assert here.lower() in (".", letter.lower())
            rows[place.row][column] = letter if here == "." or letter.isupper() else here
    return ["".join(row) for row in rows]


@pytest.mark.parametrize(
    ("samples", "row"),
    [
        # Nothing in common: the larger tree comes first. Within a tree, who trains first.
        (["abC", "pqrS"], "pqrSabC..."),
        # A fork, and a fork below it.
        (["abCD", "abxY", "abxzW"], "abCDxYzW.."),
        # A fork inside what was one stretch before.
        (["abcdeF", "abxY"], "abxYcdeF.."),
        # One that goes on where another ends, and one that ends within it.
        (["abC", "abcdE", "ab"], "abCdE....."),
        # A copy that trains nothing.
        (["abC", "abc"], "abC......."),
        # Both train c: the second shares ab, and repeats b because it would begin with a trained token.
        (["abC", "abC"], "abCbC....."),
        # The second trains from its second token on: nothing is left to share but the first.
        (["aBC", "aBC"], "aBCaBC...."),
        # E would begin the branch and is trained: the branch point c is repeated.
        (["abcE", "abcY"], "abcEcY...."),
        # It trains z only, so it may begin with y.
        (["abcD", "abcyZ"], "abcDyZ...."),
        # The branch at f is there when the third comes, which trains f: it branches before, at d.
        (["aBcdeX", "abCdfg", "abcdFh"], "aBCdeXfgdFh"),
        # C is trained by the second within the first's trunk; the third trains it too and branches before, at b.
        (["aBcd", "abCd", "abCd"], "aBCdbCd"),
        # Two rewrites of one trunk, at two depths.
        (["abCDe", "abcdfG", "abchI"], "abCDefGhI."),
    ],
)
def test_rows_as_drawn(samples, row):
    layout = letters(*samples, row_tokens=11)
    assert drawn(layout, *samples) == [row.ljust(11, ".")]


def test_the_trunk_of_a_rollout_is_shared_with_its_own_and_not_with_a_likeness():
    # Two rollouts begin their answers alike; the rewrite of the second belongs to the second's trunk.
    samples = ["pABCD", "pABEFG", "pabefH"]
    layout = letters(*samples, row_tokens=16)
    assert drawn(layout, *samples) == ["pABEFGfHpABCD..."]


def test_a_tree_that_does_not_fit_is_cut_and_its_prefix_repeated():
    samples = ["ppppaaA", "ppppbbB", "ppppccC", "ppppddD"]
    layout = letters(*samples, row_tokens=10)
    assert drawn(layout, *samples) == ["ppppaaAbbB", "ppppccCddD"]
    assert (layout.num_tokens, layout.num_computed, layout.share_wasted) == (28, 20, 0.0)
    assert layout.share_saved == 8 / 28


def test_a_cut_goes_through_the_deepest_fork_that_it_must():
    samples = ["ppqqqaA", "ppqqqbB", "ppqqqcC", "ppxX"]
    layout = letters(*samples, row_tokens=9)
    rows = drawn(layout, *samples)
    assert sorted(len(row.rstrip(".")) for row in rows) == [9, 9] and "".join(rows).count("qqq") == 2


def test_branches_begin_and_prefixes_end_at_multiples_of_the_alignment():
    samples = ["abcdefG", "abcdexY", "zZ"]
    layout = letters(*samples, row_tokens=16, align=4)
    assert drawn(layout, *samples) == ["abcdefG.exY.zZ.."]
    assert layout.place(1).columns.tolist() == [0, 1, 2, 3, 8, 9, 10]
    assert [run.visible_until for run in layout.runs] == [11, 7, 11, 14]


def test_an_aligned_branch_moves_up_until_its_first_token_is_context():
    # The second agrees up to z. It may not begin at 8, where it trains I; it does at 4.
    samples = ["aBcdefghijkl", "abcdefghIjkz"]
    layout = letters(*samples, row_tokens=24, align=4)
    assert drawn(layout, *samples) == ["aBcdefghijklefghIjkz...."]
    # Nor here at 4: it shares nothing.
    samples = ["aBcdefghijkl", "abcdEfghIjkz"]
    layout = letters(*samples, row_tokens=24, align=4)
    assert layout.num_computed == layout.num_tokens


def test_an_alignment_must_divide_the_row():
    with pytest.raises(ValueError, match="multiple of align, got 10 and 4"):
        letters("ab", row_tokens=10, align=4)


def test_without_sharing_each_sample_is_a_tree():
    layout = letters("abC", "abC", "abc", row_tokens=10, share=False)
    assert layout.num_computed == layout.num_tokens == 9
    assert all(run.parent == -1 for run in layout.runs)


def test_no_samples_take_no_rows():
    layout = letters(row_tokens=8)
    assert (layout.num_rows, layout.share_saved, layout.share_wasted) == (0, 0.0, 0.0)


def test_a_tree_as_deep_as_it_has_samples():
    base = np.arange(800, dtype=np.int32)
    samples = [np.append(base[: n + 2], 5000) for n in range(0, 800, 2)]
    trained = [np.arange(len(s)) == len(s) - 1 for s in samples]
    tree = build_prefix_tree(samples, trained)
    assert max(len(path(tree, tail)) for tail in tree.tails) > 300
    layout = lay_out(samples, trained, row_tokens=2000)
    assert layout.num_computed < 0.02 * layout.num_tokens


def path(tree, node: int) -> list[int]:
    found = []
    while node > 0:
        found.append(node)
        node = tree.nodes[node].parent
    return found


def test_a_row_is_chosen_where_an_item_adds_least():
    # Both rows could take the last item; the first already holds what stands above it.
    packing = pack_rows([5, 6, 1], 12, above=[[0], [1], [0]], above_sizes=[3, 2])
    assert packing.rows == (0, 1, 0) and packing.used == (9, 8)


def test_trees_are_cut_where_that_saves_rows():
    # Three trees of six: whole, no two fit into a row of ten; cut at the fork, two rows hold all.
    samples = [f"{tree}{tree}{leaf}{leaf.upper()}" for tree in "abc" for leaf in "xy"]
    layout = letters(*samples, row_tokens=10)
    assert layout.num_rows == 2 and layout.share_wasted == 0.0


def test_waste_and_savings_of_many_rollouts():
    samples, trained = [], []
    rng = np.random.default_rng(0)
    for _ in range(24):
        path = rng.integers(0, 9999, 500)
        kept = 40
        for _ in range(6):
            path = np.append(path[:kept], rng.integers(0, 9999, rng.integers(50, 650 - kept)))
            samples.append(path)
            trained.append(np.arange(len(path)) > kept + 5)
            kept = int(len(path) * rng.uniform(0.5, 0.85))
    shared, plain = (lay_out(samples, trained, row_tokens=1300, share=share) for share in (True, False))
    assert shared.share_saved > 0.4 and shared.share_wasted < 0.1
    assert shared.num_rows < 0.6 * plain.num_rows


def test_plan_names_the_sample_that_is_too_long():
    with pytest.raises(ValueError, match="sample t/0#1 has 5 tokens but a row holds 4"):
        plan(
            [sample_of([1], [0]), sample_of([1] * 5, [0] * 5)], row_tokens=4, share=True, sample_ids=["t/0#0", "t/0#1"]
        )
