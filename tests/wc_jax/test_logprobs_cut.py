"""Log-probabilities where the unembedding is cut over eight devices: the numbers of one device, and nothing whole."""

import json
import subprocess
import sys

import pytest

PROGRAM = """
import json, re
import jax, jax.numpy as jnp, numpy as np
from wc_jax.logprobs import row_logprobs
from wc_jax.mesh import MeshShape, make_mesh

B, T, D, V, TILE = 4, 16, 16, 84, 10  # with tensor=2: tiles of 10 columns, four and a rest of two
rng = np.random.default_rng(0)
hidden, head = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((B, T, D), (D, V)))
targets = jnp.asarray(rng.integers(0, V, (B, T)), jnp.int32)
# Devices have different numbers of trained tokens, and one has none.
mask = jnp.asarray(rng.random((B, T)) < 0.4).at[0].set(True).at[1, :8].set(False)
weights = jnp.asarray(rng.normal(size=(2, B, T)), jnp.float32)

def program(mesh):
    def loss(hidden, head):
        logp, entropy = row_logprobs(hidden, head, targets, mask, temperature=0.8, chunk=3, tile=TILE, mesh=mesh)
        return jnp.sum(logp * weights[0] + entropy * weights[1]), (logp, entropy)
    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))

found = {}
for name, shape in {
    "one": None,
    "fsdp, tensor, sequence": {"fsdp": 2, "tensor": 2, "sequence": 2},
    "data, fsdp, sequence": {"data": 2, "fsdp": 2, "sequence": 2},
}.items():
    mesh = None if shape is None else make_mesh(MeshShape(**shape))
    (_, per_token), grads = program(mesh)(hidden, head)
    found[name] = [np.asarray(x).ravel().tolist() for x in (*per_token, *grads)]
    text = program(mesh).lower(hidden, head).compile().as_text()
    # Entry arguments are placed whole here; what counts is what the loops hold.
    found[name + ": whole"] = len(re.findall(r"f32\\[16,(84|42)\\]", text.split("ENTRY")[0]))
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict:
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", ["fsdp, tensor, sequence", "data, fsdp, sequence"])
def test_values_and_gradients_are_those_of_one_device(found, mesh):
    for name, got, expected in zip(("logp", "entropy", "d_hidden", "d_head"), found[mesh], found["one"], strict=True):
        assert got == pytest.approx(expected, abs=2e-5), name
        assert any(abs(x) > 1e-3 for x in expected), name


@pytest.mark.slow
def test_no_loop_holds_the_whole_head_or_its_gradient(found):
    assert found["one: whole"] > 0
    assert found["fsdp, tensor, sequence: whole"] == found["data, fsdp, sequence: whole"] == 0
