"""Nothing is left behind: not by a sandbox, not by a run, not by a run that was killed."""

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.mounts import mounts_below
from rollout.sandbox.protocol import Limits, SandboxError
from rollout.sandbox.rundir import base_dir

pytestmark = pytest.mark.sandbox


def groups_of(run_name: str) -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [*root.glob(f"webcoder/{run_name}-*"), *root.glob(f"*/webcoder/{run_name}-*")]


def is_running(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes():
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


def test_many_at_once_from_many_threads() -> None:
    sandboxes = LocalSandboxes(Limits(disk_bytes=8 << 20), max_boots=2)

    def use(number: int) -> str:
        sandbox = sandboxes({"n.txt": str(number).encode()})
        try:
            told = sandbox.exec(["bash", "-c", "cat n.txt; echo ' mine' >> n.txt; cat n.txt"], timeout_s=30).output
            return told if sandbox.read("n.txt").decode() in told else "files differ"
        finally:
            sandbox.close()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(use, range(24))) == [f"{n}{n} mine\n" for n in range(24)]
    run_dir = sandboxes.run_dir
    assert [path.name for path in run_dir.iterdir()] == ["etc"]
    sandboxes.close()
    assert not run_dir.exists()


def test_sandboxes_do_not_see_each_other() -> None:
    sandboxes = LocalSandboxes()
    one, other = sandboxes({"a": b"one"}), sandboxes({"a": b"other"})
    one.exec(["bash", "-c", "echo secret > /tmp/x"], timeout_s=10)
    assert other.exec(["ls", "-A", "/tmp"], timeout_s=10).output == ""
    assert (one.read("a"), other.read("a")) == (b"one", b"other")
    sandboxes.close()


def test_closing_the_factory_ends_a_running_command_and_leaves_nothing() -> None:
    sandboxes = LocalSandboxes()
    sandbox = sandboxes({})
    failures: list[BaseException] = []

    def run() -> None:
        try:
            sandbox.exec(["sleep", "16.1803"], timeout_s=60)
        except SandboxError as error:
            failures.append(error)

    worker = threading.Thread(target=run)
    worker.start()
    while not is_running("16.1803"):
        pass
    run_dir = sandboxes.run_dir
    sandboxes.close()
    sandboxes.close()
    worker.join(timeout=10)
    assert len(failures) == 1
    assert not is_running("16.1803")
    assert not run_dir.exists()
    assert mounts_below(run_dir) == groups_of(run_dir.name) == []
    with pytest.raises(SandboxError, match="closed"):
        sandboxes({})


_RUN = """
import sys
from rollout.sandbox.local import LocalSandboxes
sandboxes = LocalSandboxes()
sandbox = sandboxes({"a.txt": b"a"})
print(sandboxes.run_dir, flush=True)
sandbox.exec(["bash", "-c", "setsid sleep 14.1421 & sleep 14.1421"], timeout_s=600)
"""


def test_a_killed_run_is_cleaned_up_by_the_next() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )
    assert process.stdout is not None
    run_dir = Path(process.stdout.readline().strip())
    while not is_running("sleep\x0014.1421"):
        pass
    bystander = LocalSandboxes()  # a live run, which the reaper must leave alone
    assert run_dir.exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert run_dir.parent == base_dir()
    assert run_dir.exists()

    LocalSandboxes().close()
    assert not run_dir.exists()
    assert mounts_below(run_dir) == groups_of(run_dir.name) == []
    assert not is_running("sleep\x0014.1421")
    assert bystander.run_dir.exists()
    bystander.close()


def test_control_c_leaves_nothing() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert process.stdout is not None
    run_dir = Path(process.stdout.readline().strip())
    while not is_running("sleep\x0014.1421"):
        pass
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=20)[1]
    assert not run_dir.exists()
    assert mounts_below(run_dir) == groups_of(run_dir.name) == []
    assert not is_running("sleep\x0014.1421")


def test_packages_below_a_folder_that_others_cannot_enter(tmp_path: Path) -> None:
    private = tmp_path / "home"
    modules = private / "project" / "node_modules"
    for folder in (modules / "left-pad", modules / ".vite", modules / ".vite-temp"):
        folder.mkdir(parents=True)
    (modules / "left-pad" / "index.js").write_text("module.exports = 'found'")
    os.chmod(private, 0o700)
    sandboxes = LocalSandboxes()
    sandbox = sandboxes({}, node_modules=modules)
    assert sandbox.exec(["node", "-p", "require('left-pad')"], timeout_s=20).output == "found\n"
    sandboxes.close()
    assert (modules / "left-pad" / "index.js").read_text() == "module.exports = 'found'"


def test_missing_packages_name_the_command(tmp_path: Path) -> None:
    sandboxes = LocalSandboxes()
    with pytest.raises(SandboxError, match="python -m rollout.sandbox install"):
        sandboxes({}, node_modules=tmp_path / "node_modules")
    sandboxes.close()
