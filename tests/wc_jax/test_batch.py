"""What packing refuses, and masks that come from provenance (case 5)."""

from dataclasses import replace

import numpy as np
import pytest

from tests.wc_jax.policies import sample
from wc_jax.batch import pack


def test_too_long_sample_is_refused_by_its_id():
    with pytest.raises(ValueError, match=r"task7/3#1 has 17 tokens but a row holds 16"):
        pack([sample(4, 1), sample(17, 1)], row_tokens=16, sample_ids=["a", "task7/3#1"])


def test_too_few_rows_are_refused():
    with pytest.raises(ValueError, match="need 2 rows of 16 tokens, got num_rows=1"):
        pack([sample(9, 1), sample(9, 1)], row_tokens=16, num_rows=1)


def test_the_first_token_of_a_path_cut_inside_an_answer_is_context():
    batch, _ = pack([sample(4, 0)], row_tokens=16, advantages=[2.0])
    assert batch.loss_mask[0, :4].tolist() == [False, True, True, True]
    assert batch.advantage[0, :4].tolist() == [0.0, 2.0, 2.0, 2.0]


def test_unequal_lengths_are_refused():
    broken = replace(sample(4, 1), sampler_logp=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="sample x: arrays of unequal lengths"):
        pack([broken], row_tokens=16, sample_ids=["x"])
    with pytest.raises(ValueError, match="need as many"):
        pack([sample(4, 1)], row_tokens=16, advantages=[1.0, 2.0])


@pytest.mark.parametrize(("tokens", "mask"), [([9, 5, 2], [0, 1, 1]), ([9, 5, 2, 7, 6, 2], [0, 1, 1, 0, 1, 1])])
def test_mask_is_not_read_off_token_ids(tokens, mask):
    # 2 is both the padding id and the end id; the final 2 of each turn is trained.
    one = replace(
        sample(len(tokens), 1),
        tokens=np.array(tokens, np.int32),
        loss_mask=np.array(mask, bool),
        num_trained=sum(mask),
    )
    batch, _ = pack([one], row_tokens=8)
    np.testing.assert_array_equal(batch.loss_mask[0], mask + [0] * (8 - len(mask)))


def test_weights_make_each_rollout_count_the_same():
    # Rollout one gives three samples, rollout two gives one (case 2).
    samples = [sample(n, 1, seed=n) for n in (5, 7, 4, 9)]
    trained = {0: 4 + 6 + 3, 1: 8}
    of_rollout = [0, 0, 0, 1]
    batch, layout = pack(samples, row_tokens=16, weights=[1 / trained[r] for r in of_rollout])
    totals = [0.0, 0.0]
    for i, rollout in enumerate(of_rollout):
        place = layout.place(i)
        totals[rollout] += batch.token_weight[place.row, place.columns].sum()
    np.testing.assert_allclose(totals, [1.0, 1.0], rtol=1e-6)


def test_padding_rows_are_empty():
    batch, _ = pack([sample(4, 1)], row_tokens=8, num_rows=3)
    assert batch.tokens.shape == (3, 8)
    assert (batch.visible_until[1:] == np.arange(1, 9)).all() and not batch.loss_mask[1:].any()
