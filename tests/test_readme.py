"""What the README shows runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text()


ONLY_JAX = """
import importlib.metadata, sys

class Refuse:
    "Of what is installed, only jax and what jax itself needs can be imported."
    allowed = {"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "wc_jax"}
    refused = set(importlib.metadata.packages_distributions()) | {"rollout", "verifier", "configs"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in self.refused - self.allowed:
            raise ModuleNotFoundError(f"refused: {name}", name=name)

sys.meta_path.insert(0, Refuse())
"""


def test_the_ten_lines_of_credit_run_with_jax_alone() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(code.strip().splitlines()) <= 10
    check = (
        "\nloaded = {m.partition('.')[0] for m in sys.modules}; assert not {'jaxtyping', 'optax', 'rollout'} & loaded"
    )
    ended = subprocess.run([sys.executable, "-c", ONLY_JAX + code + check], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found = [float(x) for x in re.findall(r"-?\d+\.\d+", ended.stdout)]
    # By hand: rewards 1, .5, 0 lie 1.2247 std apart. Rollout one: offsets .796 and 0, their mean over 120 and 40
    # tokens is .597. Rollout two: .0995 and 0, mean over 90 and 60 tokens .0597.
    expected = [1.4237, 0.6277, 0.0398, -0.0597, -1.2247, -1.2247]
    assert found == pytest.approx(expected, abs=2e-4)


def test_every_module_the_readme_runs_exists() -> None:
    root = Path(__file__).parents[1]
    for module in set(re.findall(r"python -m ([\w.]+)", README)):
        path = root / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for config in set(re.findall(r"configs/\w+\.yaml", README)):
        assert (root / config).is_file(), config
