"""Training on a tree's samples is training on the flat list of what it generated: same sum, same gradient."""

from dataclasses import replace

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given

from rollout.samples import build_samples
from rollout.selection import select_paths
from rollout.types import Tree
from tests.rollout.trees import Sketch, trees
from wc_jax.batch import pack
from wc_jax.objective import policy_objective

Path = list[tuple[int, int, int]]
VOCAB, LONGEST = 37, 96
WEIGHTS = jnp.asarray(np.random.default_rng(0).normal(size=(VOCAB, VOCAB)).astype(np.float32))


# What token i hears of token j, for j before i.
FADE = jnp.asarray(np.tril(0.8 ** np.abs(np.subtract.outer(np.arange(LONGEST), np.arange(LONGEST))), -1), jnp.float32)


@jax.jit
def slope(weights: jax.Array, tokens: jax.Array, mask: jax.Array) -> jax.Array:
    """Gradient of the summed log-probabilities under a policy that hears every earlier token, fainter by distance."""

    def total(weights: jax.Array) -> jax.Array:
        heard = jax.nn.one_hot(tokens, VOCAB)
        logp = jax.nn.log_softmax((FADE @ heard) @ weights, axis=1)
        return jnp.sum(jnp.where(mask, jnp.sum(logp * heard, axis=1), 0.0))

    return jax.grad(total)(weights)


def padded(tokens, mask) -> tuple[np.ndarray, np.ndarray]:
    filled, trained = np.zeros(LONGEST, np.int32), np.zeros(LONGEST, bool)
    # Left-aligned: nothing after a token is heard, so padding is silent.
    filled[: len(tokens)] = np.asarray(tokens) % VOCAB
    trained[: len(mask)] = mask
    return filled, trained


def summarized() -> Tree:
    """A path ends with a summary, the next shows it in a user message, with an answer copied below it."""
    s = Sketch()
    task = s.add(None, "user", template=2)
    work = s.add(task, "assistant", generated=3)
    summary = s.add(s.add(work, "user"), "assistant", generated=4)
    copy = s.copy(s.add(task, "user", template=5, token_ids=tuple(s.nodes[summary].token_ids)), work)
    return s.tree(summary, s.add(copy, "assistant", generated=2))


def cut_away() -> Tree:
    """With 6 tokens, the first path cuts half of an answer away, which the second still shows."""
    s = Sketch()
    answer = s.add(s.add(None, "user"), "assistant", template=0, generated=4)
    long = s.add(s.add(answer, "tool", template=2), "assistant", template=0, generated=2)
    return s.tree(long, s.add(answer, "assistant", template=0, generated=1))


def flat_list(paths: list[Path]) -> list[tuple[Path, int]]:
    """`(the path, the position)` of each generated token, in its owner's context: the first path that shows it, be it
    in a copy of its message. A token is told by who made it: (message, offset, token)."""
    seen, found = set(), []
    for path in paths:
        for at, (message, offset, _) in enumerate(path):
            if offset >= 0 and (message, offset) not in seen:
                seen.add((message, offset))
                found.append((path, at))
    return found


def shown(tree: Tree, k: int, max_tokens: int) -> Path:
    """Path k as a list of (message, offset among its generated tokens, token), cut at the front."""
    path = [
        (node.identity, offset - node.num_template, token)
        for node in tree.path(k)
        for offset, token in enumerate(node.token_ids)
    ]
    return path[-max_tokens:]


@given(trees(), st.integers(1, 8), st.integers(1, LONGEST))
@example(summarized(), 6, LONGEST)
@example(cut_away(), 6, 6)
def test_samples_give_the_gradient_of_the_flat_list(tree, max_paths, max_tokens):
    """Whatever is dropped, cut at the front, copied or summarized."""
    by_samples, num_trained = jnp.zeros_like(WEIGHTS), 0
    for sample in build_samples(tree, max_paths=max_paths, max_tokens=max_tokens):
        by_samples = by_samples + slope(WEIGHTS, *padded(sample.tokens, sample.loss_mask))
        num_trained += sample.num_trained
    kept = select_paths(len(tree.leaves), None, max_paths)
    flat = flat_list([shown(tree, k, max_tokens) for k in kept])
    by_tokens = jnp.zeros_like(WEIGHTS)
    for path, at in flat:
        context = [token for _, _, token in path[: at + 1]]
        by_tokens = by_tokens + slope(WEIGHTS, *padded(context, np.arange(at + 1) == at))
    assert num_trained == len(flat)
    np.testing.assert_allclose(by_samples, by_tokens, atol=5e-5)


@given(trees(), st.integers(1, 4))
def test_every_generated_token_that_a_retained_path_shows_is_trained_exactly_once(tree, max_paths):
    samples = build_samples(tree, max_paths=max_paths, max_tokens=10_000)
    trained = [
        (int(node), int(token))
        for sample in samples
        for node, token in zip(sample.node_ids[sample.loss_mask], sample.tokens[sample.loss_mask], strict=True)
    ]
    # Ids of a sketch's tokens are unique within its node.
    assert len(trained) == len(set(trained)) == sum(sample.num_trained for sample in samples)


def table(position: int, token: int) -> float:
    """Log-probability of a token at a position, each pair its own."""
    return -(position + token / 10)


def test_what_the_engine_and_the_trainer_say_of_a_token_meet_at_that_token():
    """Three prompt and two generated tokens, twice in a row (case 7): an index off by one anywhere leaves a gap."""
    s = Sketch()
    prompt = s.add(None, "user", token_ids=(4, 1, 3), template=3)
    answer = s.add(prompt, "assistant", template=0, generated=2, token_ids=(2, 5))
    s.nodes[answer] = replace(s.nodes[answer], logp=(table(3, 2), table(4, 5)))
    (one,) = build_samples(s.tree(answer))
    batch, _ = pack([one, one], row_tokens=12)
    assert batch.tokens.tolist() == [[4, 1, 3, 2, 5, 4, 1, 3, 2, 5, 0, 0]]
    assert np.flatnonzero(batch.loss_mask[0]).tolist() == [3, 4, 8, 9], "the first generated, nobody's successor"
    ours = np.vectorize(table)(batch.positions, batch.tokens).astype(np.float32)
    stats = policy_objective(ours, ours, batch.advantage, batch.loss_mask, sampler_logp=batch.sampler_logp)[2]
    assert float(stats.gap_max) == float(stats.gap_sum) == 0.0 and float(stats.num_sampled) == 4
