"""The loader: merging, strictness, and messages that name the key."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from configs import ConfigError, load, to_plain
from configs.schema import build


@dataclass(frozen=True, kw_only=True)
class Left:
    kind: Literal["left"] = "left"
    width: int = 1


@dataclass(frozen=True, kw_only=True)
class Right:
    kind: Literal["right"] = "right"
    height: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Optim:
    lr: float = 1e-3
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.lr < 0:
            raise ValueError(f"lr must be 0 or more, got {self.lr}")


@dataclass(frozen=True, kw_only=True)
class Root:
    run_dir: Path
    seed: int = 0
    cap: float | None = None
    flag: bool = False
    optim: Optim = field(default_factory=Optim)
    side: Left | Right = field(default_factory=Left)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    path = tmp_path / "base.yaml"
    path.write_text("run_dir: runs/a\nseed: 3\noptim:\n  lr: 2e-6\n  names: [a, b]\n")
    return path


def test_merges_left_to_right_and_keeps_what_is_not_named(base: Path, tmp_path: Path) -> None:
    (tmp_path / "more.yaml").write_text("optim: {lr: 0.5}\nseed: 4\n")
    config = load(base, [str(tmp_path / "more.yaml"), "seed=5", "cap=1e1"], Root)
    assert config == Root(run_dir=Path("runs/a"), seed=5, cap=10.0, optim=Optim(lr=0.5, names=("a", "b")))


def test_exponents_without_a_dot_are_numbers(base: Path) -> None:
    assert load(base, [], Root).optim.lr == 2e-6
    assert load(base, ["optim.lr=5E-3"], Root).optim.lr == 5e-3


def test_a_union_is_chosen_by_kind_and_drops_the_other_kinds_settings(base: Path) -> None:
    config = load(base, ["side={kind: left, width: 7}", "side.kind=right", "side.height=3"], Root)
    assert config.side == Right(height=3.0)
    assert load(base, ["side.width=7"], Root).side == Left(width=7)


def test_plain_data_builds_the_same_config_again(base: Path) -> None:
    config = load(base, ["side.kind=right", "cap=2"], Root)
    assert build(Root, to_plain(config)) == config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optim.lrr=1", r"unknown key optim\.lrr; did you mean optim\.lr\?"),
        ("lr=1", r"unknown key lr; did you mean optim\.lr\?"),
        ("sede=1", r"unknown key sede; did you mean seed\?"),
        ("optm.lr=1", r"unknown key optm; did you mean optim\?"),
        ("side.height=1", r"side\.height has no effect with this side\.kind; leave it out"),
        ("seed=abc", r'seed: .*integer, got "abc" \(str\); write seed=1 \(a int\)'),
        ("seed=1.5", r"seed: .*integer.*got 1\.5"),
        ("seed=true", r"seed: .*integer, got true \(bool\)"),
        ("flag=1", r"flag: .*boolean, got 1 \(int\); write flag=true"),
        ("cap=x", r"cap: .*number, got \"x\".*or cap=null"),
        ("optim=3", r"optim is a group of settings, got 3 \(int\); set one of optim\.<lr, names>"),
        ("side.kind=up", r"side\.kind must be one of left, right, got \"up\""),
        ("optim.lr=-1", r"optim: lr must be 0 or more, got -1"),
        ("seed", r"can't read the argument 'seed'; write key=value"),
        ("optim.lr=[", r"optim\.lr=\[ is not valid YAML"),
        ("missing.yaml", r"can't read the config file missing\.yaml"),
    ],
)
def test_bad_overrides_are_answered_with_what_to_type(base: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(base, [override], Root)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "twice.yaml"
    path.write_text("run_dir: a\nseed: 1\nseed: 2\n")
    with pytest.raises(ConfigError, match=r"'seed' is given twice \(again in line 3\)"):
        load(path, [], Root)


def test_a_missing_key_without_default_is_named(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    with pytest.raises(ConfigError, match=r"run_dir is missing and has no default; write run_dir=some/folder"):
        load(path, [], Root)
