"""Samples that share a prefix in a row give the loss and the gradients of samples one by one."""

from functools import partial

import jax
import numpy as np
import pytest

from rollout.types import Sample
from tests.wc_jax.policies import loud_params, small_config
from wc_jax.batch import pack
from wc_jax.forward import batch_logprobs
from wc_jax.objective import policy_objective
from wc_jax.policy import Compute

CONFIG = small_config()
ROWS, ROW_TOKENS = 8, 64
OBJECTIVE = partial(policy_objective, clip_low=0.4, clip_high=0.4, entropy_coef=0.1)


@jax.jit
def logprobs(params, batch):
    return batch_logprobs(params, CONFIG, batch, compute=Compute(), temperature=0.8, chunk=32)


@jax.jit
def loss_and_gradients(params, batch):
    """Sums, so that batches of parts of the samples add up."""

    def loss(params):
        logp, entropy = logprobs(params, batch)
        masks = batch.advantage, batch.loss_mask
        loss_sum, _, _ = OBJECTIVE(logp, batch.old_logp, *masks, entropy=entropy, token_weight=batch.token_weight)
        return loss_sum

    return jax.value_and_grad(loss)(params)


def words(text: str, owner: str, seed: int) -> Sample:
    """One letter a token; trained where `owner` has an x."""
    mask = np.array([c == "x" for c in owner])
    assert len(text) == len(owner)
    return Sample(
        tokens=np.array([ord(c) % 48 for c in text], np.int32),
        loss_mask=mask,
        sampler_logp=np.where(mask, -np.random.default_rng(seed).random(len(text)), np.nan).astype(np.float32),
        node_ids=np.zeros(len(text), np.int32),
        segment=0,
        num_trained=int(mask.sum()),
    )


GROUP = [
    # A prompt of twelve that everybody shows; the first rollout answers, and is rewritten twice.
    words("you build : ABCDEFresult oneGHIJ", "............xxxxxx..........xxxx", 0),
    words("you build : ABCDEFresult twoKLMN", "............................xxxx", 1),
    words("you build : ABCDEFsummary: OP", "..........................xxx", 2),
    # The second begins with the first's answer and trains it itself: it branches at the prompt.
    words("you build : ABCxyzresult oneQ", "............xxxxxx..........x", 3),
    words("you build : ABCxyzresult one, again RS", "...................................xxx", 4),
    # A branch that would begin with a token of its own repeats its branch point.
    words("you build : ABCDEFresult twoTU", "............................xx", 5),
    # A copy of a trunk that trains nothing of it, and one cut short.
    words("you build : ABCDEFresult oneGHIJ", "................................", 6),
    words("you build", ".........", 7),
    # A stranger, and one that was cut inside an answer.
    words("something else VW", "...............xx", 8),
    words("XYZ", "xxx", 9),
]


def random_tree(seed: int) -> list[Sample]:
    """Rollouts of one prompt, each a trunk and rewrites of it that go on from anywhere."""
    rng = np.random.default_rng(seed)

    def text(size: int) -> str:
        return "".join(chr(c) for c in rng.integers(48, 96, size))

    prompt, found = text(9), []
    for _ in range(2):
        trunk = prompt + text(int(rng.integers(8, 40)))
        owner = "." * 9 + "".join(rng.choice(list(".xx"), len(trunk) - 9))
        found.append(words(trunk, owner, len(found)))
        for _ in range(3):
            kept = int(rng.integers(1, len(trunk)))
            more = text(int(rng.integers(1, 60 - kept)))
            trunk = trunk[:kept] + more
            found.append(words(trunk, "." * kept + "".join(rng.choice(list(".x"), len(more))), len(found)))
    return found


CASES = {"group": GROUP, "random 0": random_tree(0), "random 1": random_tree(1), "random 2": random_tree(2)}


def laid_out(samples, old_logps=None, *, share=False, align=1, only=None):
    """A batch of one shape, whatever it holds: one compilation for all of these tests."""
    chosen = range(len(samples)) if only is None else only
    batch, layout = pack(
        [samples[i] for i in chosen],
        row_tokens=ROW_TOKENS,
        num_rows=ROWS,
        share=share,
        align=align,
        advantages=[(-1.0) ** i * (1 + i / 4) for i in chosen],
        weights=[1 / (1 + i % 3) for i in chosen],
    )
    if old_logps is not None:
        for place, i in enumerate(chosen):
            where = layout.place(place)
            owned = batch.loss_mask[where.row, where.columns] & samples[i].loss_mask
            batch.old_logp[where.row, where.columns[owned]] = old_logps[i][owned]
    return batch, layout


def old_logps_of(samples):
    """Log-probabilities per sample, and then somewhat off: ratios on both sides of the clipping bounds."""
    found = []
    for i, sample in enumerate(samples):
        batch, layout = laid_out(samples, only=[i])
        place = layout.place(0)
        logp = np.asarray(logprobs(loud_params(CONFIG), batch)[0])[place.row, place.columns]
        found.append(logp + np.random.default_rng(i).normal(0, 0.4, len(sample.tokens)).astype(np.float32))
    return found


def assert_same(found, expected, tolerance=1e-5):
    (loss, grads), (expected_loss, expected_grads) = found, expected
    assert float(loss) == pytest.approx(float(expected_loss), rel=tolerance, abs=tolerance)
    for name, value in expected_grads.items():
        scale = max(1.0, float(np.abs(value).max()))
        np.testing.assert_allclose(grads[name], value, atol=tolerance * scale, rtol=0, err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_shared_packed_and_alone_give_one_loss_and_gradient(name):
    samples, params = CASES[name], loud_params(CONFIG)
    old = old_logps_of(samples)
    parts = [loss_and_gradients(params, laid_out(samples, old, only=[i])[0]) for i in range(len(samples))]
    alone = jax.tree.map(lambda *x: sum(x), *parts)
    plain, plain_layout = laid_out(samples, old)
    assert_same(loss_and_gradients(params, plain), alone)
    for align in (1, 8):
        shared, layout = laid_out(samples, old, share=True, align=align)
        assert layout.num_computed < (0.75 if align == 1 else 0.95) * plain_layout.num_computed
        assert_same(loss_and_gradients(params, shared), alone)
    assert max(float(np.abs(g).max()) for g in alone[1].values()) > 0.1


def test_what_a_shared_token_is_worth_is_decided_by_its_owner():
    batch, layout = laid_out(GROUP, share=True)
    trunk = layout.place(0)
    # Sample 0 owns the first answer; samples 1, 2 and 5 look at the same columns and train others.
    for i in (1, 2, 5, 6):
        other = layout.place(i)
        assert other.row == trunk.row and (other.columns[:17] == trunk.columns[:17]).all()
    assert (batch.advantage[trunk.row, trunk.columns[12:18]] == 1.0).all()
    # Sample 3 trains the same answer in other columns.
    third = layout.place(3)
    assert (batch.loss_mask[third.row, third.columns] == GROUP[3].loss_mask).all()
    assert third.row != trunk.row or not set(third.columns[12:]) & set(trunk.columns[12:])


def test_the_objective_is_clipped_on_both_sides_in_these_cases():
    samples = GROUP
    batch, _ = laid_out(samples, old_logps_of(samples))
    logp, _ = logprobs(loud_params(CONFIG), batch)
    ratio = np.exp(np.asarray(logp) - batch.old_logp)[batch.loss_mask]
    assert (ratio < 0.6).any() and (ratio > 1.4).any() and ((ratio > 0.6) & (ratio < 1.4)).any()
