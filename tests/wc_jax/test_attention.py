"""`path_attention` against the float64 oracle: trees and images, ragged blocks, gradients, several devices."""

import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.attention_oracle import Case, attention_and_gradients, make_case
from wc_jax.policy.attention import path_attention
from wc_jax.policy.attention_plan import Rows, Visible, blocks_that_meet, meetings


def found(case: Case, **options) -> tuple[np.ndarray, ...]:
    """`(out, d_q, d_k, d_v)` of `path_attention`."""

    @jax.jit
    def run(case: Case):
        attend = partial(path_attention, visible_until=case.until, visible_since=case.since, **options)
        out, pull = jax.vjp(attend, case.q, case.k, case.v)
        return out, *pull(case.d_out)

    return tuple(np.asarray(x) for x in run(case))


def assert_close(found, expected, tolerance=2e-5):
    for name, a, b in zip(("out", "d_q", "d_k", "d_v"), found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kind", ["tree", "images"])
@pytest.mark.parametrize("block", [4, 7, 256])
def test_values_and_gradients_equal_the_oracle(kind, block):
    case = make_case(kind, 30, heads=4, kv_heads=2, dim=8)
    assert_close(found(case, block=block), attention_and_gradients(case))


def test_since_of_a_causal_row_changes_nothing():
    case = make_case("tree", 30, heads=2, kv_heads=1, dim=8)
    column = np.tile(np.arange(30, dtype=np.int32), (2, 1))
    assert_close(found(case._replace(since=column), block=8), found(case, block=8), 1e-6)


@pytest.mark.parametrize("kind", ["tree", "images"])
def test_what_nobody_sees_is_never_touched(kind):
    """A NaN among values spoils even a sum in which its weight is 0."""
    case = make_case(kind, 24, heads=1, kv_heads=1, dim=8)
    case = Case(*(None if x is None else x[:1] for x in case))
    v = case.v.copy()
    v[0, :8] = np.nan  # seen, in both kinds, by queries before column 12 only
    out = found(case._replace(v=v), block=4)[0][0]
    assert np.isfinite(out[12:]).all() and np.isnan(out[:8]).all()


@pytest.mark.parametrize("kind", ["tree", "images"])
def test_no_visible_pair_is_left_out_of_the_blocks_that_meet(kind):
    case, start, q_block, k_block = make_case(kind, 96, 1, 1, 8), 32, 8, 16
    q, k = jnp.zeros((2, 1, 96 - start, 8)), jnp.zeros((2, 96, 8))
    visible = Visible(jnp.asarray(case.until), None if case.since is None else jnp.asarray(case.since))
    needed = np.asarray(blocks_that_meet(Rows(q, k, k, visible, jnp.int32(start)), q_block, k_block))
    partner, num = (np.asarray(x) for x in meetings(jnp.asarray(needed)))
    since, until = (np.asarray(x) for x in visible.spelled_out())
    for row, query, key in np.ndindex(2, 96 - start, 96):
        if since[row, key] <= query + start < until[row, key]:
            block = row, query // q_block
            assert needed[block][key // k_block] and key // k_block in partner[block][: num[block]]
    assert needed.mean() < 0.9


PROGRAM = """
from tests.wc_jax.test_attention import *
from wc_jax.mesh import MeshShape, make_mesh
for kind, form in (("tree", "auto"), ("images", "auto"), ("images", "kernel")):
    case = make_case(kind, 32, heads=4, kv_heads=2, dim=8)
    for shape in ({"sequence": 8}, {"data": 2, "tensor": 2, "sequence": 2}):
        mesh = make_mesh(MeshShape(**shape))
        assert_close(found(case, block=4, mesh=mesh, form=form), attention_and_gradients(case))
        print(kind, form, shape)
"""


@pytest.mark.slow
def test_eight_devices_equal_the_oracle():
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 6
