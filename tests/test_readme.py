"""What the README shows runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_ten_lines_of_credit_run_with_the_core_alone() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    check = "import sys; assert not {'torch', 'vllm', 'playwright', 'docker', 'rollout'} & set(sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code + check], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "nan" not in ended.stdout
    assert len(code.strip().splitlines()) <= 10


def test_every_module_the_readme_runs_exists() -> None:
    root = Path(__file__).parents[1]
    for module in set(re.findall(r"python -m ([\w.]+)", README)):
        path = root / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for config in set(re.findall(r"configs/\w+\.yaml", README)):
        assert (root / config).is_file(), config
