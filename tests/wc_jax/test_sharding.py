"""Rules as data, their checks, and simulated devices against one."""

import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.wc_jax.policies import small_config
from wc_jax.sharding import DEFAULT_RULES, MeshShape, make_mesh, param_shardings, place_batch, place_state, spec_for

ONE = make_mesh(MeshShape())


@pytest.mark.parametrize(
    ("axes", "rules", "message"),
    [
        (("embed", "color"), DEFAULT_RULES, "w: no rule for the logical axis 'color'"),
        (("heads", "ff"), DEFAULT_RULES, "w: 'heads' and 'ff' both go to the mesh axis 'tensor'"),
        (("embed", "ff"), {**DEFAULT_RULES, "ff": "model"}, "w: 'ff' goes to 'model', the mesh has"),
    ],
)
def test_bad_rules_are_refused_by_name(axes, rules, message):
    with pytest.raises(ValueError, match=message):
        spec_for("w", (4, 6), axes, ONE, rules)


def test_too_few_devices_are_refused():
    with pytest.raises(ValueError, match="needs 64 devices"):
        make_mesh(MeshShape(data=4, fsdp=16), jax.devices()[:1])
    with pytest.raises(ValueError, match="tensor must be at least 1"):
        MeshShape(tensor=0)


def test_every_weight_has_a_place():
    config = small_config()
    assert set(param_shardings(config, ONE)) >= {"embed", "layers.q", "final_norm"}


def test_placing_on_one_device_keeps_values():
    from tests.wc_jax.test_step import fresh, make_batch

    state, batch = fresh(), make_batch()[0]
    placed, placed_batch = place_state(state, small_config(), ONE), place_batch(batch, ONE)
    jax.tree.map(np.testing.assert_array_equal, state, placed)
    jax.tree.map(np.testing.assert_array_equal, batch, placed_batch)


PROGRAM = """
import json, sys
import jax, numpy as np
from tests.wc_jax.test_step import CONFIG, fresh, make_batch, scored, step_of
from wc_jax.sharding import MeshShape, make_mesh, param_shardings, place_batch, place_state
batch = scored(make_batch()[0])
found = {}
for name, shape in {"one": {}, "both": {"fsdp": 2, "tensor": 2}}.items():
    mesh = make_mesh(MeshShape(**shape))
    step = step_of()
    state, metrics = step(place_state(fresh(), CONFIG, mesh), place_batch(batch, mesh))
    state, metrics = step(state, place_batch(batch, mesh))
    found[name] = {n: np.asarray(p).ravel()[:50].tolist() for n, p in state.params.items()}
    found[name]["loss"] = float(metrics["loss"])
try:
    param_shardings(CONFIG, make_mesh(MeshShape(tensor=4)))
except ValueError as error:
    found["refused"] = str(error)
print(json.dumps(found))
"""


@pytest.mark.slow
def test_several_devices_give_the_update_of_one():
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=170)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    for name, value in found["one"].items():
        np.testing.assert_allclose(found["both"][name], value, atol=3e-6, err_msg=name)
    assert "the 2 kv_heads: dimension 'kv_heads' of 2 is not divisible by 4" in found["refused"]
