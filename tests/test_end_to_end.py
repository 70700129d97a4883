"""The quickstart itself, cut to one step: a real server, real sandboxes, real builds, a real browser."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SMALL = (
    "num_steps=1",
    "tasks.per_step=1",
    "tasks.num_heldout=1",
    "rollout.group_size=4",
    "evaluation.rollouts_per_task=1",
    "batch.rows=4",
    "verifier.build_timeout_s=120",
)


@pytest.mark.browser
@pytest.mark.engine
@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_one_real_step_of_the_quickstart(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    command = [sys.executable, "-m", "wc_jax.train", "configs/quickstart.yaml", f"run_dir={run_dir}", *SMALL]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    (step,) = (json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines())
    assert step["num_failed"] == 0
    assert step["num_tokens"] > 0
    assert step["sampler_gap_max"] < 1e-3, "sampler and trainer describe the same distribution"
    assert step["sync/canary_gap"] < 1e-3
    assert step["num_compiled"] == 2, "one scoring and one update function"
    evaluations = [json.loads(line) for line in (run_dir / "evaluations.jsonl").read_text().splitlines()]
    assert [row["step"] for row in evaluations] == [0, 1]
    assert "<svg" in (run_dir / "report.html").read_text()
    rollouts = sorted((run_dir / "rollouts" / "step_00001").glob("train/*/*/rollout.json"))
    assert len(rollouts) == 4
    assert any("build ok" in path.read_text() for path in rollouts), "somebody looked at a page"
    leftovers = subprocess.run(["pgrep", "-f", str(run_dir)], capture_output=True, text=True, check=False).stdout
    assert leftovers == ""
