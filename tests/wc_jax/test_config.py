"""The root config: its size, its refusals, and the shipped YAML files."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import wc_jax.config
from configs import ConfigError, load
from configs.schema import keys
from wc_jax.config import Config

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def minimal(tmp_path: Path) -> Path:
    path = tmp_path / "minimal.yaml"
    path.write_text("run_dir: runs/x\nseed: 0\nnum_steps: 2\nmodel: {folder: models/x}\nagent: {window_tokens: 2048}\n")
    return path


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_load_and_open_with_their_command(path: Path) -> None:
    opening = path.read_text().partition("\nrun_dir:")[0].splitlines()
    assert all(line.startswith("#") for line in opening)
    command = f"configs/{path.name}"
    assert any(command in line for line in opening), f"the opening comment must name the command with {command}"
    if any(f"wc_jax.train {command}" in line for line in opening):
        assert load(path, [], Config).num_steps > 0


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.group_size=1", r"rollout: group_size must be 2 or more, got 1"),
        ("rollout.top_p=0.95", r"rollout\.accept_truncation_bias=true"),
        ("rollout.top_k=20", r"rollout\.accept_truncation_bias=true"),
        ("rollout.accept_truncation_bias=true", r"has no effect"),
        ("model.master_dtype=bfloat16", r"still 1\.0 after 100 updates.*model\.accept_bfloat16_masters=true"),
        ("model.accept_bfloat16_masters=true", r"has no effect with master_dtype=float32"),
        ("num_steps=0", r"num_steps must be above 0"),
        ("tasks.per_step=1000", r"tasks: per_step=1000 is more than num_train=512"),
        ("batch.row_tokens=100", r"raise batch\.row_tokens"),
        ("engine.port=70000", r"engine: port must be 0"),
        ("rollout.goup_size=4", r"unknown key rollout\.goup_size; did you mean rollout\.group_size\?"),
    ],
)
def test_refusals(minimal: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(minimal, [override], Config)


def test_accepting_the_bias_lets_truncation_through(minimal: Path) -> None:
    config = load(minimal, ["rollout.top_k=20", "rollout.accept_truncation_bias=true"], Config)
    assert config.rollout.top_k == 20


def test_bfloat16_masters_can_be_had_by_name(minimal: Path) -> None:
    asked = ["model.master_dtype=bfloat16", "model.accept_bfloat16_masters=true"]
    assert load(minimal, asked, Config).model.master_dtype == "bfloat16"


def test_there_are_few_settings() -> None:
    leaves = [key for key in keys(Config) if not any(other.startswith(f"{key}.") for other in keys(Config))]
    assert len(set(leaves)) < 100


def test_every_setting_is_explained() -> None:
    unexplained = list(_fields_without_docstring(inspect.getsource(wc_jax.config)))
    assert unexplained == []


def _fields_without_docstring(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for here, after in zip(node.body, [*node.body[1:], None], strict=True):
            if not isinstance(here, ast.AnnAssign) or not isinstance(here.target, ast.Name):
                continue
            explained = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            # A nested group is explained by its own class.
            is_group = isinstance(here.annotation, ast.Name) and here.annotation.id.endswith("Config")
            is_union = isinstance(here.annotation, ast.BinOp) and "Config" in ast.unparse(here.annotation)
            if not (explained or is_group or is_union or here.target.id == "kind"):
                yield f"{node.name}.{here.target.id}"
