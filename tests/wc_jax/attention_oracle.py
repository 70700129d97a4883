"""Attention and its gradients in float64 numpy: the scores of a whole row at once, formulas as written."""

from typing import NamedTuple

import numpy as np


class Case(NamedTuple):
    """Arguments of `path_attention`, and the gradient of its result."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    until: np.ndarray
    since: np.ndarray | None
    d_out: np.ndarray


def tree_rows(length: int) -> np.ndarray:
    """`visible_until` of two rows: two packed samples and padding; a tree whose second branch forks again."""
    a, b, c = length // 3, length // 2, 3 * length // 4
    packed = [a] * a + [c] * (c - a) + list(range(c + 1, length + 1))
    tree = [length] * a + [b] * (b - a) + [length] * (c - b) + [c + 5] * 5 + [length] * (length - c - 5)
    return np.array([packed, tree], np.int32)


def image_rows(length: int) -> tuple[np.ndarray, np.ndarray]:
    """`since` and `until` of two rows: images that see themselves in both directions, padding, and causal text."""
    since, until = np.tile(np.arange(length), (2, 1)), np.tile(np.arange(length) + 1, (2, 1))
    a, b = length // 3 + 1, 2 * length // 3
    for row, first, last in ((0, 0, a), (0, a, b), (1, 2, b)):
        since[row, first:last], until[row, first:last] = first, last
    until[1, b:] = length
    return since.astype(np.int32), until.astype(np.int32)


def make_case(kind: str, length: int, heads: int, kv_heads: int, dim: int, dtype=np.float32, seed: int = 0) -> Case:
    """`kind`: tree or images. Scores are peaked, so that a key too many or too few shows."""
    rng = np.random.default_rng(seed)
    q, k, v, d_out = (rng.normal(size=(2, length, n, dim)) for n in (heads, kv_heads, kv_heads, heads))
    since, until = (None, tree_rows(length)) if kind == "tree" else image_rows(length)
    return Case(*(x.astype(dtype) for x in (1.5 * q, k, v)), until, since, d_out.astype(dtype))


def attention_and_gradients(case: Case) -> tuple[np.ndarray, ...]:
    """`(out, d_q, d_k, d_v)`."""
    q, k, v, d_out = (np.asarray(x, np.float64) for x in (case.q, case.k, case.v, case.d_out))
    repeat, column = q.shape[2] // k.shape[2], np.arange(q.shape[1])
    k, v = np.repeat(k, repeat, axis=2), np.repeat(v, repeat, axis=2)
    since = np.broadcast_to(column, case.until.shape) if case.since is None else case.since
    seen = (since[:, None, :] <= column[None, :, None]) & (column[None, :, None] < case.until[:, None, :])
    scores = np.einsum("bqnh,bknh->bnqk", q, k) / q.shape[3] ** 0.5
    weights = np.where(seen[:, None], np.exp(scores - scores.max(axis=-1, keepdims=True)), 0.0)
    weights /= weights.sum(axis=-1, keepdims=True)
    d_weights = np.einsum("bqnh,bknh->bnqk", d_out, v)
    d_scores = weights * (d_weights - (weights * d_weights).sum(axis=-1, keepdims=True)) / q.shape[3] ** 0.5
    d_k = np.einsum("bnqk,bqnh->bknh", d_scores, q)
    d_v = np.einsum("bnqk,bqnh->bknh", weights, d_out)
    d_k, d_v = (x.reshape(*x.shape[:2], -1, repeat, x.shape[3]).sum(axis=3) for x in (d_k, d_v))
    return np.einsum("bnqk,bknh->bqnh", weights, v), np.einsum("bnqk,bknh->bqnh", d_scores, k), d_k, d_v
