"""Rows of a warm start, and the chunks that recurrent layers want in them."""

from itertools import islice

import numpy as np

from tests.wc_jax.policies import sample
from wc_jax.sft import packed_batches


def endless():
    rng = np.random.default_rng(0)
    while True:
        yield sample(int(rng.integers(3, 40)), 2, seed=int(rng.integers(1000)))


def test_batches_have_one_shape_and_lose_no_sample():
    batches = list(islice(packed_batches(endless(), 3, 64), 20))
    assert {batch.tokens.shape for batch in batches} == {(3, 64)}
    starts = sum(int(((b.predecessor < 0) & (b.visible_until > np.arange(1, 65))).sum()) for b in batches)
    assert starts >= 3 * 20


def test_samples_start_where_chunks_do():
    for batch in islice(packed_batches(endless(), 3, 64, 8), 20):
        _, columns = np.nonzero((batch.predecessor < 0) & (batch.visible_until > np.arange(1, 65)))
        assert len(columns) >= 3 and (columns % 8 == 0).all()


def test_a_sample_longer_than_a_row_is_left_out():
    few = [sample(80, 2), sample(30, 2, seed=1), sample(60, 2, seed=2)]
    batch = next(packed_batches(iter([*few, *few]), 1, 64))
    np.testing.assert_array_equal(batch.tokens[0, :30], few[1].tokens)
