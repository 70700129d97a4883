"""The recurrent layer's two parts against token-by-token float64 oracles, over packed rows and trees."""

import subprocess
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import oracles_delta
from wc_jax.layout import lay_out
from wc_jax.policy.delta_rule import gated_delta_rule
from wc_jax.policy.short_conv import short_conv

ENGINE_PYTHON = Path(__file__).parents[2] / ".venv-engine" / "bin" / "python"
HEADS, KEY, VALUE = 2, 8, 6


def place(runs, length):
    """`(visible_until, predecessor)` of a row; runs: (column, tokens, last column of the parent or -1)."""
    until, before = np.arange(1, length + 1), np.full(length, -1)
    for column, tokens, parent in runs:
        before[column : column + tokens] = np.arange(column - 1, column + tokens - 1)
        before[column] = parent
    for t in reversed(range(length)):
        if before[t] >= 0:
            until[before[t]] = max(until[before[t]], until[t])
    return until, before


def tree(c):
    """Forks after one and after two chunks, one of them threefold; a leaf that leaves padding; a root in mid-chunk."""
    runs = [(0, c, -1), (c, c, c - 1), (2 * c, c - 1, 2 * c - 1), (3 * c, c, 2 * c - 1), (4 * c, c + 1, 2 * c - 1)]
    return [*runs, (6 * c, c + c // 2, c - 1), (7 * c + c // 2, c, -1)]


def packed(c):
    """Three samples that start anywhere, then padding."""
    return [(0, c + c // 2 + 1, -1), (c + c // 2 + 1, 1, -1), (c + c // 2 + 2, 5 * c, -1)]


def inputs(batch, length, seed=0, log_decay=None):
    rng = np.random.default_rng(seed)
    q, k = (rng.normal(size=(batch, length, HEADS, KEY)) for _ in range(2))
    v, d_out = (rng.normal(size=(batch, length, HEADS, VALUE)) for _ in range(2))
    q, k = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (q, k))
    if log_decay is None:
        log_decay = -rng.exponential(0.3, size=(batch, length, HEADS))
    beta = rng.uniform(0, 1, size=(batch, length, HEADS))
    # The oracle gets what float32 holds.
    return tuple(np.asarray(x, np.float32) for x in (q, k, v, log_decay, beta)), d_out.astype(np.float32)


def oracle(args, before, d_out):
    """Outputs and gradients of all rows and heads."""
    out = np.zeros(d_out.shape)
    grads = tuple(np.zeros(x.shape) for x in args)
    for b, n in np.ndindex(d_out.shape[0], HEADS):
        one = [x[b, :, n] for x in args]
        out[b, :, n] = oracles_delta.gated_delta_rule(*one, before[b])[0]
        found = oracles_delta.gated_delta_rule_grads(*one, before[b], d_out[b, :, n])
        for grad, some in zip(grads, found, strict=True):
            grad[b, :, n] = some
    return out, grads


@partial(jax.jit, static_argnames="chunk")
def ours(args, until, before, d_out, chunk):
    out, pull = jax.vjp(lambda *args: gated_delta_rule(*args, until, before, chunk=chunk), *args)
    return out, pull(d_out)


def close(found, expected, share):
    scale = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=share * scale)


def check(args, rows, d_out, chunk):
    until, before = (np.stack(x).astype(np.int32) for x in zip(*rows, strict=True))
    out, grads = ours(args, until, before, d_out, chunk)
    expected, expected_grads = oracle(args, before, d_out)
    close(out, expected, 1e-5)
    for grad, some in zip(grads, expected_grads, strict=True):
        close(grad, some, 1e-4)


def test_the_oracles_gradients_equal_finite_differences():
    args, d_out = inputs(1, 7)
    one = [x[0, :, 0].astype(np.float64) for x in args]
    before = [-1, 0, 1, 1, 3, 0, -1]

    def loss(*args):
        return (oracles_delta.gated_delta_rule(*args, before)[0] * d_out[0, :, 0]).sum()

    grads = oracles_delta.gated_delta_rule_grads(*one, before, d_out[0, :, 0])
    for i, grad in enumerate(grads):
        direction = np.random.default_rng(i).normal(size=grad.shape)
        up, down = (loss(*one[:i], one[i] + s * 1e-5 * direction, *one[i + 1 :]) for s in (1, -1))
        assert (up - down) / 2e-5 == pytest.approx((grad * direction).sum(), rel=1e-6)


@pytest.mark.parametrize("chunk", [4, 16, 64])
def test_trees_and_packed_samples_equal_the_recurrence_token_by_token(chunk):
    length = 8 * chunk + chunk // 2 + 1  # not a multiple of the chunk
    args, d_out = inputs(2, length, seed=chunk)
    check(args, [place(tree(chunk), length), place(packed(chunk), length)], d_out, chunk)


@pytest.mark.parametrize("length", [1, 5])
def test_a_row_may_be_shorter_than_a_chunk(length):
    args, d_out = inputs(1, length)
    check(args, [place([(0, length, -1)], length)], d_out, 64)


ONE, TWO = place([(0, 100, -1)], 100), place([(0, 40, -1), (40, 60, -1)], 100)


def test_a_fork_may_lie_within_a_chunk():
    args, d_out = inputs(2, 100)
    inside = place([(0, 5, -1), (5, 4, 4), (9, 3, 4), (12, 4, -1)], 100)
    check(args, [inside, TWO], d_out, 16)


@pytest.mark.parametrize("least", [0.0, -20.0])
def test_no_decay_and_strong_decay(least):
    rng = np.random.default_rng(0)
    # Strong ones stand between none at all, so that what is kept exactly lies next to what is lost.
    log_decay = np.where(rng.random((2, 100, HEADS)) < 0.5, 0.0, least)
    log_decay[1, :, 1] = least
    args, d_out = inputs(2, 100, log_decay=log_decay)
    check(args, [ONE, TWO], d_out, 16)


def test_keys_that_are_all_alike_and_nearly_overwritten():
    (q, k, v, log_decay, beta), d_out = inputs(2, 100)
    k = np.repeat(k[:, :1], 100, axis=1)
    check((q, k, v, np.zeros_like(log_decay), np.full_like(beta, 0.9)), [ONE, TWO], d_out, 16)


def test_laid_out_samples_equal_each_sample_alone_and_their_gradients_add_up():
    chunk, rng = 4, np.random.default_rng(3)
    stem, other = rng.integers(0, 9, 13), rng.integers(10, 19, 7)
    samples = [np.append(stem, x) for x in ([1] * 5, [2] * 3)] + [np.append(stem[:9], [3] * 6), other]
    layout = lay_out(samples, [np.zeros(len(s), bool) for s in samples], row_tokens=48, align=chunk)
    assert layout.num_rows == 1
    assert layout.share_saved > 0.3
    runs = [(run.column, run.stop - run.start, layout.predecessor(run)) for run in layout.runs]
    until, before = (x[None].astype(np.int32) for x in place(runs, 48))
    args, d_out = inputs(1, 48)
    out, grads = ours(args, until, before, d_out, chunk)
    summed = [np.zeros(x.shape) for x in args]
    counted = np.zeros(48, bool)
    for i in range(len(samples)):
        columns = layout.place(i).columns
        own = d_out * ~counted[None, :, None, None]
        size = len(columns)
        # The sample and nothing else, at the start of a row of the same size.
        *some, some_own = (np.zeros_like(x) for x in (*args, d_out))
        for into, x in zip((*some, some_own), (*args, own), strict=True):
            into[:, :size] = x[:, columns]
        row = [x[None].astype(np.int32) for x in place([(0, size, -1)], 48)]
        alone, alone_grads = ours(tuple(some), *row, some_own, chunk)
        close(out[:, columns], alone[:, :size], 1e-5)
        for total, grad in zip(summed, alone_grads, strict=True):
            total[:, columns] += grad[:, :size]
        counted[columns] = True
    for grad, total in zip(grads, summed, strict=True):
        close(np.where(counted.reshape(1, 48, *[1] * (grad.ndim - 2)), grad, 0), total, 1e-4)


def test_bfloat16_comes_back_as_it_went_in_and_is_summed_in_float32():
    args, d_out = inputs(1, 64)
    until, before = (x[None].astype(np.int32) for x in place([(0, 64, -1)], 64))
    rounded = tuple(x.astype(jnp.bfloat16) for x in args)
    out, grads = ours(rounded, until, before, d_out.astype(jnp.bfloat16), 16)
    assert {x.dtype for x in (out, *grads)} == {jnp.dtype(jnp.bfloat16)}
    # Half a unit in the last of eight binary digits: only the result is rounded.
    close(out.astype(jnp.float32), oracle(tuple(np.asarray(x, np.float64) for x in rounded), before, d_out)[0], 2**-8)


def test_memory_grows_with_the_row_and_nothing_waits_for_lapack():
    used = []
    for length in (4096, 8192):
        wide, thin = (jax.ShapeDtypeStruct((1, length, HEADS, *dims), jnp.float32) for dims in ((16,), ()))
        columns = jax.ShapeDtypeStruct((1, length), jnp.int32)
        compiled = ours.lower((wide, wide, wide, thin, thin), columns, columns, wide, 64).compile()
        used.append(compiled.memory_analysis().temp_size_in_bytes)
        # Its batched solves can lock each other out of the pool of a machine with few cores.
        assert 'custom_call_target="lapack' not in compiled.as_text()
    assert used[1] < 2.05 * used[0]
    assert used[1] < 8192 * 8192 * HEADS * 4 / 4


PROGRAM = """
import sys
import numpy as np, torch
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule, torch_recurrent_gated_delta_rule)
given = np.load(sys.argv[1])
args = [torch.tensor(given[f"arg{i}"], requires_grad=True) for i in range(5)]
out, _ = torch_chunk_gated_delta_rule(*args, chunk_size=64)
out.backward(torch.tensor(given["d_out"]))
with torch.no_grad():
    by_token, _ = torch_recurrent_gated_delta_rule(*args, initial_state=None, output_final_state=False)
x, weight = (torch.tensor(given[name]) for name in ("x", "weight"))
conv = torch.nn.functional.conv1d(
    x.mT, weight[:, None], padding=weight.shape[1] - 1, groups=x.shape[2])[..., : x.shape[1]].mT
grads = {f"grad{i}": a.grad.numpy() for i, a in enumerate(args)}
np.savez(sys.argv[2], out=out.detach().numpy(), by_token=by_token.numpy(), conv=conv.numpy(), **grads)
"""


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE_PYTHON.exists(), reason="the engine's environment is not installed")
def test_outputs_and_gradients_equal_transformers(tmp_path):
    length = 150
    args, d_out = inputs(2, length, seed=7)
    rng = np.random.default_rng(8)
    x, weight = rng.normal(size=(2, length, 5)).astype(np.float32), rng.normal(size=(5, 4)).astype(np.float32)
    named = {f"arg{i}": a for i, a in enumerate(args)}
    np.savez(tmp_path / "given.npz", d_out=d_out, x=x, weight=weight, **named)
    command = [ENGINE_PYTHON, "-c", PROGRAM, str(tmp_path / "given.npz"), str(tmp_path / "theirs.npz")]
    subprocess.run(command, check=True, capture_output=True, timeout=170)
    theirs = np.load(tmp_path / "theirs.npz")
    row = [np.stack([column] * 2).astype(np.int32) for column in place([(0, length, -1)], length)]
    out, grads = ours(args, *row, d_out, 64)
    close(out, theirs["out"], 1e-5)
    close(out, theirs["by_token"], 1e-5)
    for i, grad in enumerate(grads):
        close(grad, theirs[f"grad{i}"], 1e-4)
    close(jax.jit(short_conv)(x, weight, row[1]), theirs["conv"], 1e-5)


def test_short_convolution_and_its_gradient_follow_the_path():
    rows = np.array([[-1, 0, 1, 2, 3, 2, 5, 6, 1, -1, 9, -1], [-1, 0, 1, 2, 3, 4, 5, -1, 7, 8, 9, 10]], np.int32)
    rng = np.random.default_rng(0)
    x, d_out = (rng.normal(size=(2, 12, 3)).astype(np.float32) for _ in range(2))
    weight = rng.normal(size=(3, 4)).astype(np.float32)

    def slow(x, weight):
        return np.stack([oracles_delta.short_conv(*pair) for pair in zip(x, [weight] * 2, rows, strict=True)])

    conv = jax.jit(lambda x, weight: short_conv(x, weight, jnp.asarray(rows)))
    out, pull = jax.vjp(conv, x, weight)
    close(out, slow(x, weight), 1e-6)
    d_x, d_weight = pull(jnp.asarray(d_out))
    # It is linear in each, so that the gradient's entries are what it makes of unit vectors.
    units = np.eye(x.size).reshape(-1, *x.shape)
    close(d_x.ravel(), [(slow(unit, weight) * d_out).sum() for unit in units], 1e-6)
    units = np.eye(weight.size).reshape(-1, *weight.shape)
    close(d_weight.ravel(), [(slow(x, unit) * d_out).sum() for unit in units], 1e-6)
    assert conv(x.astype(jnp.bfloat16), weight).dtype == jnp.bfloat16
