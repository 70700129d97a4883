"""The recipes of the three papers: they say what was published, they are valid, and they run at toy size."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from configs import load, to_plain
from configs.merge import read_yaml
from configs.schema import keys
from tests.configs.recipes import RECIPES, ROOT, TOY, Recipe, overridden, toy_policies, write_toy
from wc_jax.checkpoint import Checkpoints
from wc_jax.config import Config
from wc_jax.planning.plan_run import read_shape
from wc_jax.programs import checked_mesh
from wc_jax.weights import load_policy

each_recipe = pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)


def value_at(tree: dict[str, Any], key: str) -> Any:
    for name in key.split("."):
        tree = tree[name]
    return tree


@each_recipe
def test_a_recipe_says_what_was_published(recipe: Recipe) -> None:
    plain = to_plain(load(recipe.path, [], Config))
    assert {key: value_at(plain, key) for key in recipe.published} == recipe.published


@each_recipe
def test_a_recipe_writes_nothing_that_another_setting_undoes(recipe: Recipe) -> None:
    config = load(recipe.path, [], Config)
    # Idle of their own accord: no schedule reads them, no other estimator is asked for.
    assert config.optim.schedule == "constant" and "total_steps" not in read_yaml(recipe.path)["optim"]
    assert config.rollout.accept_truncation_bias == (config.rollout.top_p < 1 or config.rollout.top_k > 0)
    assert config.credit.max_sample_tokens <= config.batch.row_tokens
    longest = config.agent.window_tokens
    assert config.agent.max_answer_tokens < longest
    assert config.agent.max_turns > 1 or config.credit.max_sample_tokens == longest, "an answer is trained whole"


@each_recipe
def test_a_recipe_fits_its_policy_and_mesh(recipe: Recipe) -> None:
    config = load(recipe.path, [f"model.folder={ROOT / 'configs' / 'shapes' / recipe.shape}"], Config)
    policy = read_shape(config)
    assert policy.family == toy_policies(512)[recipe.name].family
    assert config.agent.window_tokens <= policy.max_positions
    one = load(recipe.path, ["mesh.fsdp=1", "mesh.sequence=1"], Config)
    assert checked_mesh(one, policy) is None
    assert config.batch.micro_rows % (config.mesh.data * config.mesh.fsdp) == 0
    assert config.batch.row_tokens % config.mesh.sequence == 0


@each_recipe
def test_a_recipe_opens_with_command_hardware_time_and_result(recipe: Recipe) -> None:
    text = recipe.path.read_text()
    opening = text[: text.index("run_dir:")]
    for wanted in (f"configs/{recipe.name}.yaml", "Hardware:", "Time and result: not run", "python -m wc_jax.train"):
        assert wanted in opening
    assert "# Published, and not supported yet" in text
    unsourced = set(recipe.published) - set(keys(Config))
    for key in recipe.published:
        where = [line for line in text.splitlines() if re.search(rf"\b{key.rpartition('.')[2]}:", line)]
        if where and not any("#" in line for line in where):
            unsourced.add(key)
    assert unsourced == set(), "each published number names its source on its line"


@pytest.mark.browser
@pytest.mark.sandbox
@pytest.mark.slow
@each_recipe
def test_a_recipe_runs_at_toy_size(recipe: Recipe, tmp_path: Path) -> None:
    model, run_dir = write_toy(tmp_path / "model", recipe), tmp_path / "run"
    overrides = (*TOY, *recipe.toy, f"model.folder={model}", f"run_dir={run_dir}")
    command = [sys.executable, "-m", "wc_jax.train", str(recipe.path), *overrides]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-2000:]
    (step,) = (json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines())
    assert (step["num_failed"], step["skipped"]) == (0, 0)
    assert step["grad_norm"] > 0 and step["num_samples"] > 0
    is_shown = bool(list(run_dir.glob("rollouts/step_00001/train/*/*/pictures/*.png")))
    assert is_shown == (model / "preprocessor_config.json").exists(), "a policy that can see is shown its pages"
    left = yaml.safe_load((run_dir / "config.yaml").read_text())
    kept = {key: value for key, value in recipe.published.items() if key not in overridden(recipe)}
    assert {key: value_at(left, key) for key in kept} == kept and len(kept) >= 6
    (_, before), (after, _) = load_policy(model), Checkpoints(folder=run_dir / "checkpoints").restore_params()
    still = {name for name in before if np.array_equal(before[name], after[name])}
    assert still == {name for name in before if name.startswith(("vision.", "mtp."))}, "the text policy moved, whole"
