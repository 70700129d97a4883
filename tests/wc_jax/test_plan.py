"""The planner's command line on simulated devices, and the numbers behind it."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from configs import ConfigError, load
from tests.wc_jax.policies import small_config
from wc_jax.config import Config
from wc_jax.plan import main
from wc_jax.planning.advice import first_fix
from wc_jax.planning.chips import CHIPS
from wc_jax.planning.collectives import Collective, Traffic
from wc_jax.planning.compiling import Compiled
from wc_jax.planning.estimate import Seconds, network_seconds
from wc_jax.planning.plan_report import as_text
from wc_jax.planning.plan_run import planned_rows, read_shape
from wc_jax.planning.planned import Plan, ProgramPlan
from wc_jax.planning.topology import parse_topology, require
from wc_jax.planning.work import Cut, bytes_moved, executed_flops, model_flops, row_work
from wc_jax.policy import DeltaConfig, num_params

ROOT = Path(__file__).parents[2]
SCRIPTED = str(ROOT / "configs" / "scripted.yaml")
SMALL = ["agent.window_tokens=64", "credit.max_sample_tokens=64", "batch.row_tokens=64", "batch.micro_rows=2"]


@pytest.fixture(scope="module")
def shape_only(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder without weights and without a tokenizer."""
    folder = tmp_path_factory.mktemp("shape")
    shutil.copy(ROOT / "models" / "nano" / "config.json", folder)
    return f"model.folder={folder}"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own, because the number of devices is settled before JAX starts."""
    env = {"PATH": "/usr/bin:/bin"}
    line = [sys.executable, "-m", "wc_jax.plan", SCRIPTED, *arguments]
    return subprocess.run(line, capture_output=True, text=True, env=env, cwd=ROOT, timeout=150)


@pytest.mark.slow
def test_a_config_is_planned_from_its_shape_alone(shape_only):
    done = command(*SMALL, shape_only, "mesh.fsdp=2", "mesh.sequence=2", "--topology", "cpu:4", "--json")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert found["fits"] and found["first_fix"] is None
    assert (found["devices"], found["rows"], found["row_tokens"]) == (4, 4, 64)
    config = load(SCRIPTED, [*SMALL, shape_only], Config)
    count = num_params(read_shape(config))
    assert found["num_params"] == count
    score, train = found["programs"]["score"], found["programs"]["train"]
    # Float32 weights cut in four, a batch of 4 rows of 64 tokens of 41 bytes, also in four; some norms are whole.
    assert score["argument_bytes"] == pytest.approx(count + 4 * 64 * 41 / 4, rel=0.02)
    assert train["argument_bytes"] == pytest.approx(3 * count + 4 * 64 * 41 / 4, rel=0.02)
    # While it scores, both moments stay where they are.
    assert score["resident_bytes"] == pytest.approx(2 * count, rel=0.02)
    kinds = {exchange["kind"] for exchange in train["collectives"]}
    assert {"all-gather", "reduce-scatter"} <= kinds
    assert 0.0 < found["mfu_at_most"] <= 1.0


@pytest.mark.slow
def test_one_device_is_planned_without_exchanges(shape_only):
    done = command(*SMALL, shape_only, "--topology", "cpu:1")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "fits: peak" in done.stdout and "all-gather" not in done.stdout


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        ("v5q:4x4x4", "unknown chip 'v5q' in --topology v5q:4x4x4; nearest known: v5p and v5e"),
        ("v5p:3x4x4", "v5p:3x4x4 is no TPU v5p slice; nearest known: v5p:4x4x4 and v5p:2x4x4"),
        ("v5p:4x4", "v5p:4x4 is no TPU v5p slice; nearest known: v5p:2x2x4"),
        ("v6e:big", "v6e:big is no TPU v6e slice; nearest known: v6e:2x2 and v6e:2x4"),
        ("h100:8", "write GPUs in a node x nodes, for example 8x4"),
        ("cpu:0", "write devices, for example 8"),
        ("cpu", "write devices, for example 8"),
    ],
)
def test_unknown_topologies_are_refused_with_what_is_near(topology, message, capsys):
    assert main([SCRIPTED, "--topology", topology]) == 2
    assert message in capsys.readouterr().err


def test_bad_input_is_exit_code_2_and_says_what_to_type(tmp_path, capsys):
    assert main([SCRIPTED, "mesh.fsdp=3", "--topology", "cpu:8"]) == 2
    assert "mesh.* takes 3 devices, cpu:8 has 8; write for example mesh.fsdp=8" in capsys.readouterr().err
    assert main([SCRIPTED, f"model.folder={tmp_path}", "--topology", "cpu:1"]) == 2
    assert "a plan needs the folder's config.json and no weights" in capsys.readouterr().err
    assert main([str(tmp_path / "no.yaml"), "--topology", "cpu:1"]) == 2
    assert "can't read the config file" in capsys.readouterr().err


def test_a_slice_is_counted_in_chips_and_nodes():
    pod, nodes = parse_topology("v5p:4x4x8"), parse_topology("h200:8x3")
    assert (pod.num_devices, pod.node_size) == (128, 128)
    assert (nodes.num_devices, nodes.node_size, str(nodes)) == (24, 8, "h200:8x3")


def test_flops_of_a_hybrid_row_by_hand():
    policy = small_config(
        width=8,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=4,
        ff_dim=10,
        vocab_size=20,
        layer_kinds=("linear", "full"),
        delta=DeltaConfig(key_heads=1, value_heads=2, key_dim=4, value_dim=6),
    )
    # q 8*8, k and v 8*4, o 8*8; q and k 8*4, v and z 8*12, a and b 8*2, o 12*8; feed-forward 3*8*10, twice.
    weights = (64 + 2 * 32 + 64) + (2 * 32 + 2 * 96 + 2 * 16 + 96) + 2 * 240
    work = row_work(policy, 10)
    assert work.layers == 2 * weights * 10
    assert work.attention == 4 * 8 * (10 * 11 / 2)
    assert work.recurrence == 6 * 2 * 4 * 6 * 10
    assert work.head == 2 * 8 * 20 * 10
    assert model_flops(work, trains=True) == 3 * work.total
    # Whole layers again; attention's backward pass at 2.5 times, the head's at 3 times its forward pass.
    expected = 4 * work.layers + 4.5 * work.attention + 4 * work.recurrence + 4 * work.head
    assert executed_flops(work, trains=True, remat="layer", has_adapters=False) == expected
    assert executed_flops(work, trains=True, remat="none", has_adapters=True) == pytest.approx(
        2 * work.layers + 3.5 * work.attention + 3 * work.recurrence + 3 * work.head
    )


def test_six_flops_a_parameter_and_token_where_rows_are_short():
    policy = small_config(tie_embeddings=False)
    matrices = num_params(policy) - policy.vocab_size * policy.width - 5 * policy.width  # embedding, norms
    work = row_work(policy, 16)
    assert model_flops(replace(work, attention=0.0), trains=True) == 6 * matrices * 16


def test_bytes_moved_grow_with_what_is_kept_and_computed_again():
    policy, cut = small_config(), Cut(tokens=64, tensor=1, held=1000)
    least = bytes_moved(policy, cut, trains=False, remat="none", micro_batches=1)
    train = bytes_moved(policy, cut, trains=True, remat="none", micro_batches=1)
    again = bytes_moved(policy, cut, trains=True, remat="layer", micro_batches=1)
    assert least < train < again
    # Nine arrays of float32 once an update, three once a micro-batch.
    more = bytes_moved(policy, replace(cut, held=2000), trains=True, remat="none", micro_batches=1)
    assert more - train == 4 * (9 + 3) * 1000


def test_devices_of_a_node_share_what_it_sends():
    chip = CHIPS["h100"]
    near = {Collective(kind="all-gather", group=8, near=8): Traffic(count=1, num_bytes=450_000_000_000)}
    far = {Collective(kind="all-gather", group=16, near=8): Traffic(count=1, num_bytes=800_000_000_000)}
    alone = {Collective(kind="all-reduce", group=2, near=1): Traffic(count=1, num_bytes=50_000_000_000)}
    assert network_seconds(chip, near) == pytest.approx(1.0)
    assert network_seconds(chip, far) == pytest.approx(2.0)
    assert network_seconds(chip, near | far | alone) == pytest.approx(4.0)


@pytest.mark.slow
def test_what_cannot_fit_is_told_without_compiling():
    # 27.4 billion trained weights on 8 devices of 16 GiB: 38 GiB of weights and moments, 25 GiB of gradients.
    shape = f"model.folder={ROOT / 'configs' / 'shapes' / 'qwen3_8_27b'}"
    done = command(*SMALL, shape, "mesh.fsdp=2", "mesh.sequence=4", "--topology", "cpu:8")
    assert done.returncode == 1, done.stderr[-3000:]
    assert "does not fit: peak 64." in done.stdout and "first fix to try: batch.remat=layer" in done.stdout


def a_plan(temporaries: int, module: object = "compiled", **changes: object) -> Plan:
    config = load(SCRIPTED, [f"{name}={value}" for name, value in changes.items()], Config)
    memory = Compiled(arguments=4 << 30, temporaries=temporaries, results=0, code=0, compile_s=1.0, module=module)
    program = ProgramPlan(
        name="train",
        memory=memory,
        resident=0,
        flops=1e12,
        model_flops=1e12,
        traffic={},
        seconds=Seconds(compute=4.0, memory=1.0, network=2.0),
        kernels=0,
        runs=1,
    )
    policy = small_config()
    return Plan(
        topology=parse_topology("v5e:2x2"),
        config=config,
        policy=policy,
        num_params=num_params(policy),
        rows=planned_rows(config),
        programs=(program,),
    )


def test_what_does_not_fit_gets_one_fix_at_a_time():
    much = 40 << 30
    assert first_fix(a_plan(much)).startswith("batch.remat=layer:")
    done = {"batch.remat": "layer"}
    assert first_fix(a_plan(much, **done, **{"batch.micro_rows": 4})).startswith("batch.micro_rows=1:")
    done |= {"batch.micro_rows": 2, "mesh.data": 2}
    assert first_fix(a_plan(much, **done)).startswith("mesh.data=1 mesh.fsdp=2:")
    done |= {"mesh.data": 1, "mesh.fsdp": 2}
    assert first_fix(a_plan(much, **done)).startswith("mesh.sequence=2 mesh.fsdp=1 batch.micro_rows=1:")
    done |= {"mesh.fsdp": 1, "mesh.sequence": 2, "batch.micro_rows": 1}
    assert "twice the devices and mesh.sequence=4: 44.0 GiB are needed, the chip has 15.8" in first_fix(
        a_plan(much, **done)
    )


def test_a_verdict_names_what_binds():
    fits, fails = a_plan(1 << 30), a_plan(40 << 30)
    assert fits.fits and fits.binds == "compute"
    assert "fits: peak 5.00 GiB of the 15.75 GiB" in as_text(fits)
    assert not fails.fits and fails.binds == "memory size"
    assert "first fix to try: batch.remat=layer" in as_text(fails)
    # The compiler gave up: that does not fit, whatever the sum says.
    assert not a_plan(1 << 30, module=None).fits


def test_a_missing_compiler_is_told_with_what_to_install():
    with pytest.raises(
        ConfigError, match=r"needs jax\[tpu\], .*`make plan-setup`.* `pip install 'jax\[tpu\]==\d+\.\d+"
    ):
        require("a_module_that_nobody_has", "jax[tpu]", "tpu")
