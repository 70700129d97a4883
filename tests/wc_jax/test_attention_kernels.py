"""TPU's and the GPU's kernels, interpreted, against the float64 oracle; and what each platform's program holds."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.attention_oracle import Case, attention_and_gradients, make_case
from wc_jax.policy import attention_gpu, attention_tpu
from wc_jax.policy.attention import path_attention
from wc_jax.policy.attention_plan import Rows, Visible

BLOCK = 128
KERNELS = {"tpu": attention_tpu, "gpu": attention_gpu}
TARGETS = {"tpu": "tpu_custom_call", "cuda": "__gpu$xla.gpu.triton"}


def grouped(x: np.ndarray, kv_heads: int) -> jax.Array:
    """[B, T, N, H] -> [B*K, N/K, T, H]."""
    batch, length, heads, dim = x.shape
    x = np.asarray(x).reshape(batch, length, kv_heads, heads // kv_heads, dim).transpose(0, 2, 3, 1, 4)
    return jnp.asarray(x.reshape(batch * kv_heads, -1, length, dim))


def interpreted(kernel, case: Case, start: int = 0) -> tuple[np.ndarray, ...]:
    """`(out, d_q, d_k, d_v)` of the queries from column `start` on, grouped as the oracle's below."""

    @jax.jit
    def run(q, k, v, visible, d_out):
        rows, scale = Rows(q, k, v, visible, jnp.int32(start)), q.shape[3] ** -0.5
        out, lse = kernel.forward(rows, scale, BLOCK, interpret=True)
        return out, *kernel.backward(rows, out, lse, d_out, scale, BLOCK, interpret=True)

    kv_heads = case.k.shape[2]
    q, d_out = (grouped(x[:, start:], kv_heads) for x in (case.q, case.d_out))
    k, v = (grouped(x, kv_heads)[:, 0] for x in (case.k, case.v))
    visible = Visible(jnp.asarray(case.until), None if case.since is None else jnp.asarray(case.since))
    return tuple(np.asarray(x, np.float64) for x in run(q, k, v, visible, d_out))


def expected(case: Case, start: int = 0) -> tuple[np.ndarray, ...]:
    """The same from the oracle: queries before `start` have no say in the gradients of keys and values."""
    d_out, kv_heads = np.array(case.d_out), case.k.shape[2]
    d_out[:, :start] = 0
    out, d_q, d_k, d_v = attention_and_gradients(case._replace(d_out=d_out))
    rows = (grouped(x[:, start:], kv_heads) for x in (out, d_q))
    return (*rows, *(grouped(x, kv_heads)[:, 0] for x in (d_k, d_v)))


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("kind", "dim", "dtype", "start", "tolerance"),
    [("tree", 64, np.float32, 0, 2e-5), ("images", 64, np.float32, 128, 2e-5), ("tree", 128, jnp.bfloat16, 0, 4e-2)],
)
def test_values_and_gradients_equal_the_oracle(name, kind, dim, dtype, start, tolerance):
    case = make_case(kind, 3 * BLOCK, heads=4, kv_heads=2, dim=dim, dtype=dtype)
    found = interpreted(KERNELS[name], case, start)
    for what, a, b in zip(("out", "d_q", "d_k", "d_v"), found, expected(case, start), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=what)


@pytest.mark.parametrize("name", KERNELS)
def test_blocks_that_nobody_sees_are_not_computed(name):
    """Two packed samples of whole blocks: a NaN among the first's values would spoil even a sum with weight 0."""
    case = make_case("tree", 2 * BLOCK, heads=1, kv_heads=1, dim=64)
    until = np.repeat(np.array([[BLOCK, 2 * BLOCK]] * 2, np.int32), BLOCK, axis=1)
    v = case.v.copy()
    v[0, :BLOCK] = np.nan
    out = interpreted(KERNELS[name], case._replace(v=v, until=until))[0]
    assert np.isnan(out[0, 0, :BLOCK]).all() and np.isfinite(out[0, 0, BLOCK:]).all() and np.isfinite(out[1]).all()


def lowered(platform: str, num_tokens: int, **options) -> jax.stages.Lowered:
    """Value and gradients at the head counts and width of Qwen3.8-27B."""
    q, k = (jax.ShapeDtypeStruct((1, num_tokens, heads, 256), jnp.bfloat16) for heads in (24, 4))
    until = jax.ShapeDtypeStruct((1, num_tokens), jnp.int32)

    def loss(q, k, v, until):
        return jnp.sum(path_attention(q, k, v, until, **options).astype(jnp.float32))

    traced = jax.jit(jax.value_and_grad(loss, (0, 1, 2))).trace(q, k, k, until)
    return traced.lower(lowering_platforms=(platform,))


@pytest.mark.parametrize("platform", TARGETS)
def test_the_platform_s_program_calls_the_kernels_and_holds_no_square_of_the_row(platform):
    num_tokens = 65_536
    text = lowered(platform, num_tokens).as_text()
    assert text.count(f"@{TARGETS[platform]}(") == 3  # forward, queries' gradient, keys' and values'
    sizes = [np.prod([int(n) for n in dims.split("x")]) for dims in re.findall(r"tensor<([\dx]+)x\w+>", text)]
    assert max(sizes) == num_tokens * 24 * 256 < num_tokens**2 / 10


def test_forms_can_be_forced():
    assert not any(target in lowered("tpu", 512, form="loops").as_text() for target in TARGETS.values())
    with pytest.raises(ValueError, match="heads of at most 256 numbers, got 300"):
        path_attention(*[jnp.zeros((1, 2, 1, 300))] * 3, jnp.full((1, 2), 2), form="kernel")


def instructions(program: str) -> list[str]:
    """Without where in the source each comes from, and without the numbers that keep names apart."""
    bare = re.sub(r"metadata=\{[^}]*\}|\.[\d.]+|^\d+ .*$", "", program, flags=re.MULTILINE)
    return sorted(line for line in bare.splitlines() if line)


def test_on_cpu_the_compiled_program_is_that_of_the_loops():
    auto, loops = (instructions(lowered("cpu", 512, form=form).compile().as_text()) for form in ("auto", "loops"))
    assert auto == loops and any("while(" in line for line in loops)
