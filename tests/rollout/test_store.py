"""Rollouts on disk come back equal, appear whole or not at all, and never leave their folder."""

import json
import math
import resource
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rollout.store import (
    list_rollouts,
    load_advantages,
    load_rollout,
    rollout_folder,
    save_advantages,
    save_rollout,
)
from rollout.types import Rollout, Stop
from tests.rollout.finished import a_report, a_rollout, a_task


def comparable(rollout: Rollout) -> Any:
    """repr, in which NaN equals NaN and 1 differs from 1.0 and from True; files in any order."""
    return repr(replace(rollout, files=dict(sorted(rollout.files.items()))))


@pytest.mark.parametrize(
    "rollout",
    [
        a_rollout(),
        a_rollout(stop=Stop.INFRA_FAILED),
        a_rollout(stop=Stop.TIME_LIMIT, reward=0.0),
        replace(a_rollout(), report=replace(a_report(), screenshot=b"", f_vlm=0.5)),
        replace(a_rollout(), files={}, potentials=(math.nan,) * 3),
    ],
)
def test_round_trip(tmp_path: Path, rollout: Rollout) -> None:
    folder = save_rollout(tmp_path, rollout)
    assert comparable(load_rollout(folder)) == comparable(rollout)
    assert "NaN" not in (folder / "rollout.json").read_text()


def test_lost_logprob_comes_back_as_nan(tmp_path: Path) -> None:
    rollout = a_rollout()
    nodes = (*rollout.tree.nodes[:-1], replace(rollout.tree.nodes[-1], logp=(-math.inf, math.nan)))
    folder = save_rollout(tmp_path, replace(rollout, tree=replace(rollout.tree, nodes=nodes)))
    assert all(math.isnan(value) for value in load_rollout(folder).tree.nodes[-1].logp)


def test_layout_is_what_a_person_expects(tmp_path: Path) -> None:
    folder = save_rollout(tmp_path, a_rollout("train/3/shop/1"))
    assert folder == tmp_path / "rollouts/step_00003/train/shop/1"
    assert (folder / "final.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "files/src/App.tsx").read_bytes() == b"export default 1\n"


def test_summary_says_what_a_list_needs(tmp_path: Path) -> None:
    save_rollout(tmp_path, a_rollout("train/3/shop/1"))
    (summary,) = list_rollouts(tmp_path)
    assert (summary.phase, summary.step, summary.task_id, summary.index) == ("train", 3, "shop", 1)
    assert summary.key == "step_00003/train/shop/1"
    assert summary.failed_gates == ("render",)
    assert (summary.reward, summary.num_turns, summary.num_segments) == (0.75, 2, 2)
    assert summary.num_generated_tokens == 7, "a copied answer counts once"


def test_order_is_numeric(tmp_path: Path) -> None:
    ids = ["train/2/a/0", "train/10/a/0", "eval/10/a/0", "train/10/a/2", "train/10/a/11", "train/10/b/0"]
    for rollout_id in ids:
        save_rollout(tmp_path, a_rollout(rollout_id))
    assert [summary.rollout_id for summary in list_rollouts(tmp_path)] == [
        "train/2/a/0", "eval/10/a/0", "train/10/a/0", "train/10/a/2", "train/10/a/11", "train/10/b/0",
    ]  # fmt: skip


def test_saving_again_replaces(tmp_path: Path) -> None:
    save_rollout(tmp_path, a_rollout(reward=0.25))
    folder = save_rollout(tmp_path, replace(a_rollout(reward=0.5), files={}))
    assert load_rollout(folder).reward == 0.5
    assert not (folder / "files").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_advantages_are_added_later(tmp_path: Path) -> None:
    folder = save_rollout(tmp_path, a_rollout())
    assert load_advantages(folder) is None
    save_advantages(tmp_path, a_rollout().rollout_id, [0.5, -0.25])
    assert load_advantages(folder) == [0.5, -0.25]


@pytest.mark.parametrize(
    "name", ["../../evil", "a/../../../b", "/etc/shadow", ".hidden", "..", "ünï / çødé\n", "a" * 60]
)
def test_hostile_task_ids_stay_below_the_run(tmp_path: Path, name: str) -> None:
    rollout_id = f"train/3/{name}/0"
    folder = save_rollout(tmp_path, a_rollout(rollout_id, task=a_task(name)))
    assert folder.resolve().is_relative_to((tmp_path / "rollouts/step_00003/train").resolve())
    (summary,) = list_rollouts(tmp_path)
    assert summary.task_id == name
    assert comparable(load_rollout(tmp_path / "rollouts" / summary.key)) == comparable(
        a_rollout(rollout_id, task=a_task(name))
    )


@pytest.mark.parametrize("path", ["../out.txt", "/abs.txt", "a/../../b", "", "."])
def test_project_paths_that_lead_out_are_refused_and_leave_nothing(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="stay inside"):
        save_rollout(tmp_path, replace(a_rollout(), files={path: b"x"}))
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize("rollout_id", ["", "train", "train/3/shop", "train/x/shop/0", "train/3/shop/x", "/3/shop/0"])
def test_other_ids_are_refused(rollout_id: str) -> None:
    with pytest.raises(ValueError, match="<phase>/<step>/<task_id>/<index>"):
        rollout_folder(Path("run"), rollout_id)


def test_listing_skips_what_is_unfinished_or_broken(tmp_path: Path) -> None:
    good = save_rollout(tmp_path, a_rollout("train/1/a/0"))
    root = good.parent
    (root / "1").mkdir()
    (root / "2").mkdir()
    (root / "2/summary.json").write_text('{"rollout_id": "train/1/a/2", "st')
    (root / "3").mkdir()
    (root / "3/summary.json").write_text(json.dumps({"rollout_id": "train/1/a/3"}))
    (root / ".writing-x/new").mkdir(parents=True)
    (root / ".writing-x/new/summary.json").write_bytes((good / "summary.json").read_bytes())
    (root / ".writing-y").mkdir()
    (root / ".writing-y/summary.json").write_bytes((good / "summary.json").read_bytes())
    assert [summary.rollout_id for summary in list_rollouts(tmp_path)] == ["train/1/a/0"]
    assert list_rollouts(tmp_path / "absent") == []


def test_listing_while_another_thread_writes(tmp_path: Path) -> None:
    written = []

    def write() -> None:
        rollouts = (a_rollout(f"train/1/a/{i % 5}", reward=i / 100) for i in range(60))
        written.extend(save_rollout(tmp_path, rollout) for rollout in rollouts)

    writer = threading.Thread(target=write)
    writer.start()
    while writer.is_alive():
        for summary in list_rollouts(tmp_path):
            assert summary.reward is not None
    writer.join()
    assert len(written) == 60
    assert len(list_rollouts(tmp_path)) == 5


def test_full_disk_leaves_the_old_rollout(tmp_path: Path) -> None:
    """A file-size limit stands in for the full disk: the write fails in the middle with an OSError."""
    folder = save_rollout(tmp_path, a_rollout(reward=0.25))
    big = replace(a_rollout(reward=0.5), files={"big.bin": bytes(1 << 20)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            save_rollout(tmp_path, big)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert load_rollout(folder).reward == 0.25
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
