"""Policies with recurrent layers: padded, packed, shared and alone agree, and rows out of step are found out."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.policies import loud_params, sample, small_hybrid
from tests.wc_jax.test_prefix_sharing import GROUP
from wc_jax.batch import pack
from wc_jax.forward import batch_logprobs
from wc_jax.policy import Compute, hidden_states, init_params
from wc_jax.policy.delta_layer import by_groups_of_heads
from wc_jax.policy.delta_rule import gated_delta_rule

CHUNK = 8
COMPUTE = Compute(delta_chunk=CHUNK)
CONFIG = small_hybrid()
PARAMS = loud_params(CONFIG)


@jax.jit
def loss_and_gradients(params, batch):
    def loss(params):
        logp, _ = batch_logprobs(params, CONFIG, batch, compute=COMPUTE, temperature=1.0, chunk=32)
        return (logp * batch.token_weight).sum(), logp

    (total, logp), gradients = jax.value_and_grad(loss, has_aux=True)(params)
    return total, gradients, logp


def test_shared_packed_and_alone_give_one_loss_and_gradient():
    lay_out = partial(pack, row_tokens=64, align=CHUNK, num_rows=8, weights=None)
    parts = [loss_and_gradients(PARAMS, lay_out([one])[0]) for one in GROUP]
    alone = jax.tree.map(lambda *x: sum(x), *[part[:2] for part in parts])
    for share in (False, True):
        batch, layout = lay_out(GROUP, share=share)
        assert (layout.num_computed < layout.num_tokens) == share
        total, gradients, _ = loss_and_gradients(PARAMS, batch)
        np.testing.assert_allclose(total, alone[0], rtol=1e-5)
        for name, expected in alone[1].items():
            np.testing.assert_allclose(
                gradients[name], expected, atol=2e-5 * max(1.0, float(abs(expected).max())), err_msg=name
            )


@pytest.mark.parametrize("shift", [8, 24])
def test_left_padding_changes_nothing(shift):
    """Case 6: alone, behind padding, and behind another sample."""
    one, other = sample(21, 5, seed=1), sample(shift - 3, 4, seed=2)
    alone = hidden_states(PARAMS, CONFIG, one.tokens[None], compute=COMPUTE)
    batch, layout = pack([other, one], row_tokens=64, align=CHUNK)
    place = layout.place(1)
    is_padding = ~np.isin(np.arange(64), np.concatenate([layout.place(i).columns for i in (0, 1)]))
    assert is_padding.any()
    for tokens in (batch.tokens, np.where(is_padding, 7, batch.tokens)):
        found = hidden_states(
            PARAMS, CONFIG, tokens, batch.positions, batch.visible_until, batch.predecessor, compute=COMPUTE
        )
        np.testing.assert_allclose(found[place.row, place.columns], alone[0], atol=1e-5)
    tokens = np.zeros((1, 64), np.int32)
    tokens[0, shift : shift + 21] = one.tokens
    column = np.arange(64)
    inside = (column >= shift) & (column < shift + 21)
    rows = {
        "positions": np.where(inside, column - shift, 0)[None],
        "visible_until": np.where(inside, shift + 21, column + 1)[None],
        "predecessor": np.where(inside & (column > shift), column - 1, -1)[None],
    }
    found = hidden_states(PARAMS, CONFIG, tokens, **rows, compute=COMPUTE)
    np.testing.assert_allclose(found[0, shift : shift + 21], alone[0], atol=1e-5)


def test_a_row_out_of_step_with_the_chunks_is_not_a_number_and_its_neighbor_is():
    aligned, _ = pack(GROUP[:2], row_tokens=64, align=CHUNK, share=True)
    unaligned, _ = pack(GROUP[:2], row_tokens=64, align=1, share=True)
    assert unaligned.predecessor.tolist() != aligned.predecessor.tolist()
    rows = [np.concatenate([getattr(b, n) for b in (aligned, unaligned)]) for n in unaligned._fields[:4]]
    found = hidden_states(PARAMS, CONFIG, *rows, compute=COMPUTE)
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


def test_heads_that_take_turns_give_the_same():
    rng = np.random.default_rng(0)
    batch, _ = pack(GROUP[:3], row_tokens=64, align=CHUNK)
    shape = (*batch.tokens.shape, 6)
    q, k, v = (rng.normal(size=(*shape, 4)).astype(np.float32) for _ in range(3))
    decay, beta = -rng.random(shape).astype(np.float32), rng.random(shape).astype(np.float32)
    rows = {"visible_until": jnp.asarray(batch.visible_until), "predecessor": jnp.asarray(batch.predecessor)}
    rule = partial(gated_delta_rule, **rows, chunk=CHUNK)

    def gradients(limit):
        def total(*arrays):
            out = by_groups_of_heads(rule, arrays, limit)
            return (out * np.arange(6, dtype=np.float32)[None, None, :, None]).sum(), out

        return jax.value_and_grad(total, argnums=(0, 1, 2, 3, 4), has_aux=True)(q, 0.5 * k, v, decay, beta)

    whole = gradients(10**9)
    for limit in (3 * batch.tokens.size, 1):  # three heads at a time, one at a time
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), gradients(limit), whole)


@pytest.mark.parametrize(
    ("compute", "tolerance"),
    [
        (Compute(delta_chunk=CHUNK, remat="layer", unroll=True), 1e-5),
        (Compute(delta_chunk=CHUNK, dtype="bfloat16"), 0.1),
    ],
    ids=["recomputed", "bfloat16"],
)
def test_how_it_is_computed_changes_no_more_than_rounding(compute, tolerance):
    quiet = init_params(CONFIG, jax.random.key(0))
    batch, _ = pack(GROUP[:3], row_tokens=64, align=CHUNK)

    @partial(jax.jit, static_argnums=1)
    def gradients(params, compute):
        def loss(params):
            return batch_logprobs(params, CONFIG, batch, compute=compute, temperature=1.0, chunk=32)[0].sum()

        return jax.grad(loss)(params)

    expected = gradients(quiet, COMPUTE)
    for name, found in gradients(quiet, compute).items():
        error = np.linalg.norm(found - expected[name])
        assert error <= tolerance * np.linalg.norm(expected[name]), name
