"""The table of plans: a row says what fits, and the page has as many columns in each line."""

import json
from pathlib import Path

from configs import load
from wc_jax.config import Config
from wc_jax.planning.plan_report import as_data
from wc_jax.planning.table import WANTED, Wanted, as_page, main, row_of
from wc_jax.planning.topology import parse_topology

ROOT = Path(__file__).parents[2]

EXCHANGES = [
    {"kind": "all-gather", "group": 16, "near": 8, "count": 4, "bytes": 30_000_000_000},
    {"kind": "all-gather", "group": 8, "near": 8, "count": 4, "bytes": 10_000_000_000},
    {"kind": "all-reduce", "group": 8, "near": 8, "count": 4, "bytes": 1_000_000},
]
PLAN = {
    "num_params": 27_781_427_952,
    "devices": 16,
    "chip": "H100 SXM",
    "row_tokens": 65_536,
    "rows": 4,
    "micro_rows": 2,
    "fits": True,
    "peak_bytes": 60 * 2**30,
    "memory_bytes": 76 * 2**30,
    "step_seconds": 6.0,
    "binds": "compute",
    "mfu_at_most": 0.66,
    "programs": {"score": {"collectives": EXCHANGES[:1]}, "train": {"collectives": EXCHANGES}},
}


def test_a_row_speaks_of_one_micro_batch():
    row = row_of(Wanted("webcoder_27b", "h100:8x2", ("mesh.fsdp=2",)), PLAN)
    # Two micro-batches: half of the time and of what is sent; what is below half a gigabyte is left out.
    assert row == (
        "| webcoder_27b, 27.8 B | h100:8x2 (16 x H100 SXM) | `mesh.fsdp=2` | 65,536 | 60.0 of 76.0 GiB | 3 s |"
        " compute | 66% | gather 35 GB |"
    )


def test_what_does_not_fit_has_no_time():
    row = row_of(Wanted("webcoder_27b", "h100:8x1"), {**PLAN, "fits": False, "binds": "memory size"})
    assert "**does not fit**: 60.0 of 76.0 GiB |  | memory size |  |" in row


def test_a_page_is_a_table():
    page = as_page([row_of(Wanted("webcoder_27b", "h100:8x2"), PLAN)] * 2)
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 4 and len({line.count("|") for line in table}) == 1


def test_every_row_wanted_takes_exactly_its_topologys_devices():
    for wanted in WANTED:
        topology = parse_topology(wanted.topology)
        config = load(ROOT / wanted.arguments[0], wanted.arguments[1:-2], Config)
        assert config.mesh.num_devices == topology.num_devices, wanted
        assert (ROOT / config.model.folder / "config.json").is_file(), wanted
    assert len({wanted.file for wanted in WANTED}) == len(WANTED)


def test_the_plans_own_data_is_what_a_row_needs():
    from tests.wc_jax.test_plan import a_plan

    data = json.loads(json.dumps(as_data(a_plan(1 << 30))))
    assert data.keys() >= PLAN.keys() and "GiB" in row_of(Wanted("scripted", "v5e:2x2"), data)


def test_the_command_wants_a_file(capsys):
    assert main([]) == 2
    assert "python -m wc_jax.planning.table docs/plans.md" in capsys.readouterr().out
