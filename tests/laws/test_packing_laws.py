"""Laws of packing: nothing lost, nothing overlaps, nothing moved."""

from itertools import pairwise

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from tests.wc_jax.policies import sample
from wc_jax.batch import pack, plan_rows


@given(st.lists(st.integers(1, 16), max_size=12))
def test_slots_are_disjoint_in_bounds_and_numbered_from_one(lengths):
    slots, num_rows = plan_rows(lengths, 16)
    assert [slot.stop - slot.start for slot in slots] == lengths
    for row in range(num_rows):
        here = sorted((s for s in slots if s.row == row), key=lambda s: s.start)
        assert here[0].start == 0 and here[-1].stop <= 16
        assert all(a.stop == b.start for a, b in pairwise(here))
        assert [s.segment_id for s in here] == list(range(1, len(here) + 1))
    # First fit: at most one row is no more than half full.
    used = [sum(s.stop - s.start for s in slots if s.row == row) for row in range(num_rows)]
    assert sum(n <= 8 for n in used) <= 1


@given(st.lists(st.integers(2, 16), min_size=1, max_size=8))
def test_every_sample_lies_in_its_slot_as_it_was(lengths):
    samples = [sample(n, 1, seed=i) for i, n in enumerate(lengths)]
    batch, slots = pack(samples, row_tokens=16, advantages=[float(i + 1) for i in range(len(samples))])
    for i, (one, slot) in enumerate(zip(samples, slots, strict=True)):
        here = (slot.row, slice(slot.start, slot.stop))
        np.testing.assert_array_equal(batch.tokens[here], one.tokens)
        np.testing.assert_array_equal(batch.positions[here], np.arange(len(one.tokens)))
        np.testing.assert_array_equal(batch.loss_mask[here], one.loss_mask)
        np.testing.assert_array_equal(batch.advantage[here], (i + 1) * one.loss_mask)
    assert batch.loss_mask.sum() == sum(s.num_trained for s in samples) == batch.token_weight.sum()
    assert (batch.visible_until > np.arange(1, 17)).sum() == sum(n - 1 for n in lengths)
    assert np.isfinite(batch.sampler_logp).all()
