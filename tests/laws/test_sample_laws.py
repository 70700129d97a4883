"""Training on a tree's samples is training on the flat list of what it generated: same sum, same gradient."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given

from rollout.samples import build_samples
from rollout.types import Tree
from tests.rollout.trees import trees

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


def flat_list(tree: Tree) -> list[tuple[list[int], int]]:
    """`(the tokens up to and with it, its position)` of each generated token, in its owner's context: the first path
    that shows the message or a copy of it."""
    seen, found = set(), []
    for k in range(len(tree.leaves)):
        context: list[int] = []
        for node in tree.path(k):
            for offset, token in enumerate(node.token_ids):
                context = [*context, token]
                if offset >= node.num_template and (node.identity, offset - node.num_template) not in seen:
                    seen.add((node.identity, offset - node.num_template))
                    found.append((context, len(context) - 1))
    return found


def is_short(tree: Tree) -> bool:
    return all(sum(len(node.token_ids) for node in tree.path(k)) <= LONGEST for k in range(len(tree.leaves)))


@given(trees().filter(is_short))
def test_samples_give_the_gradient_of_the_flat_list(tree):
    by_samples = jnp.zeros_like(WEIGHTS)
    samples = build_samples(tree, max_paths=len(tree.leaves), max_tokens=LONGEST)
    for sample in samples:
        by_samples = by_samples + slope(WEIGHTS, *padded(sample.tokens, sample.loss_mask))
    flat = flat_list(tree)
    by_tokens = jnp.zeros_like(WEIGHTS)
    for context, at in flat:
        by_tokens = by_tokens + slope(WEIGHTS, *padded(context, np.arange(len(context)) == at))
    assert sum(sample.num_trained for sample in samples) == len(flat)
    np.testing.assert_allclose(by_samples, by_tokens, atol=2e-5)


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
