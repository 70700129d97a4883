"""The reader of compiled programs: what eight simulated devices send each other, against counts made by hand."""

import subprocess
import sys

import pytest

from wc_jax.planning.collectives import Collective, Traffic, collectives, replica_groups
from wc_jax.planning.hlo import read_module

# Eight devices as 4 x 2. Of a float32 [16, 8] that is cut by 4, each device holds [4, 8]: 128 bytes.
PROGRAM = """
import jax, jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec as P
mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

def local(x):
    def layer(x, _):
        whole = jax.lax.all_gather(x, "a", axis=0, tiled=True)  # 128 bytes to each of 3 others
        whole = jax.lax.psum(jnp.sin(whole) * (1.0 + jax.lax.axis_index("b")), "b")  # [16, 8]: 512 bytes, over 2
        return jax.lax.psum_scatter(jnp.cos(whole), "a", scatter_dimension=0, tiled=True), None  # 512 bytes, over 4
    def layers(x):
        return jax.lax.scan(layer, x, None, length=5)[0]
    x = jax.lax.cond(jnp.all(x > 0), layers, lambda x: x, x)
    return jax.lax.ppermute(x, "a", [(0, 1), (1, 2), (2, 3), (3, 0)])  # 128 bytes

f = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=P("a"), out_specs=P("a"), check_vma=False))
print(f.lower(jax.ShapeDtypeStruct((16, 8), jnp.float32)).compile().as_text())
"""


@pytest.fixture(scope="module")
def text() -> str:
    env = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=env, timeout=100)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_collectives_of_a_loop_in_a_branch_are_counted_as_by_hand(text):
    # Nodes of 4 devices: the axis of 4 steps over 0, 2, 4, 6, so two of each group stand in one node.
    assert collectives(read_module(text), node_size=4) == {
        Collective(kind="all-gather", group=4, near=2): Traffic(count=5, num_bytes=5 * 3 * 128),
        Collective(kind="all-reduce", group=2, near=2): Traffic(count=5, num_bytes=5 * 512),
        Collective(kind="reduce-scatter", group=4, near=2): Traffic(count=5, num_bytes=5 * 384),
        Collective(kind="collective-permute", group=2, near=1): Traffic(count=1, num_bytes=128),
    }


def test_trips_are_read_from_the_condition_where_the_compiler_does_not_say(text):
    silent = text.replace('"known_trip_count":{"n":"5"}', '"known_trip_count":{}')
    assert silent != text
    assert collectives(read_module(silent), node_size=8) == collectives(read_module(text), node_size=8)


def test_an_exchange_in_a_loop_of_unknown_length_is_refused(text):
    silent = text.replace('"known_trip_count":{"n":"5"}', '"known_trip_count":{}').replace(
        "direction=LT", "direction=NE"
    )
    with pytest.raises(ValueError, match="a loop whose length only the data decide"):
        collectives(read_module(silent), node_size=8)


# As TPU's compiler writes it: a sum over devices fused with the cut of each one's part, and groups by mesh axes.
FUSED = """HloModule jit_f

%all-reduce-scatter.3 (input: f32[64,32]) -> f32[16,32] {
  %input = f32[64,32]{1,0:T(8,128)} parameter(0)
  %all-reduce.1 = f32[64,32]{1,0:T(8,128)} all-reduce(%input), channel_id=3, replica_groups={{0,2,4,6},{1,3,5,7}}
  %offset = u32[] constant(0)
  ROOT %slice = f32[16,32]{1,0:T(8,128)} dynamic-slice(%all-reduce.1, %offset, %offset), dynamic_slice_sizes={16,32}
}

%cond (state: (s32[], f32[64,32])) -> pred[] {
  %state = (s32[]{:T(128)}, f32[64,32]{1,0:T(8,128)}) parameter(0)
  %limit = s32[]{:T(128)} constant(9)
  %i = s32[]{:T(128)} get-tuple-element(%state), index=0
  ROOT %less = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%body (state.1: (s32[], f32[64,32])) -> (s32[], f32[64,32]) {
  %state.1 = (s32[]{:T(128)}, f32[64,32]{1,0:T(8,128)}) parameter(0)
  %i.1 = s32[]{:T(128)} get-tuple-element(%state.1), index=0
  %x = f32[64,32]{1,0:T(8,128)} get-tuple-element(%state.1), index=1
  %part = f32[16,32]{1,0:T(8,128)} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.3
  %whole = f32[64,32]{1,0:T(8,128)} all-gather(%part), replica_groups=mesh['p'=4,'q'=2] {'p'}, dimensions={0}
  %step = s32[]{:T(128)} constant(STEP)
  %i.2 = s32[]{:T(128)} add(%i.1, %step)
  ROOT %next = (s32[]{:T(128)}, f32[64,32]{1,0:T(8,128)}) tuple(%i.2, %whole)
}

ENTRY %main (x.1: f32[64,32]) -> f32[64,32] {
  %x.1 = f32[64,32]{1,0:T(8,128)} parameter(0)
  %two = s32[]{:T(128)} constant(2)
  %start = (s32[]{:T(128)}, f32[64,32]{1,0:T(8,128)}) tuple(%two, %x.1)
  %loop = (s32[]{:T(128)}, f32[64,32]{1,0:T(8,128)}) while(%start), condition=%cond, body=%body
  ROOT %out = f32[64,32]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""


# From 2 to 9: seven times, or 2, 4, 6, 8: four times.
@pytest.mark.parametrize(("step", "trips"), [(1, 7), (2, 4)])
def test_tpus_fused_sum_and_cut_is_a_reduce_scatter(step, trips):
    found = collectives(read_module(FUSED.replace("STEP", str(step))), node_size=8)
    # [64, 32] float32 are 8,192 bytes, of which each device sends three quarters.
    assert found == {
        Collective(kind="reduce-scatter", group=4, near=4): Traffic(count=trips, num_bytes=trips * 6144),
        Collective(kind="all-gather", group=4, near=4): Traffic(count=trips, num_bytes=trips * 3 * 2048),
    }


@pytest.mark.parametrize(
    ("written", "groups"),
    [
        ("replica_groups=[4,2]<=[8]", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}", [(0, 2, 4, 6), (1, 3, 5, 7)]),
        ("replica_groups=mesh['p'=4,'q'=2] {'q'}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("replica_groups=mesh['p'=2,'q'=2,'r'=2] {'p','r'}", [(0, 1, 4, 5), (2, 3, 6, 7)]),
        ("replica_groups=mesh['p'=2,'q'=4], device_ids=([4,2]T(1,0)) {'p'}", [(0, 1), (2, 3), (4, 5), (6, 7)]),
        ("channel_id=1, use_global_device_ids=true", []),
    ],
)
def test_groups_are_read_in_every_way_that_they_are_written(written, groups):
    assert replica_groups(written) == groups


def test_a_text_without_a_program_is_refused():
    with pytest.raises(ValueError, match="no ENTRY computation"):
        read_module("HloModule nothing\n")
