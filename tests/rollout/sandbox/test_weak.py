"""Without root the sandbox still isolates; what it can't limit, it names."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import rollout.sandbox

pytestmark = pytest.mark.sandbox

_SCRIPT = """
import json, os, sys
from rollout.sandbox.local import LocalSandboxes
from rollout.sandbox.protocol import Limits
sandboxes = LocalSandboxes(Limits(memory_bytes=256 << 20, num_processes=40, disk_bytes=4 << 20))
sandbox = sandboxes({"src/a.txt": b"a"})
def bash(command, timeout_s=20):
    ended = sandbox.exec(["bash", "-c", command], timeout_s=timeout_s)
    return [ended.exit_code, ended.output]
out = dict(
    weaknesses=sandboxes.weaknesses,
    hello=bash("cat src/a.txt; id -u; ls /home /root"),
    node=bash("node -p 6*7"),
    memory=bash("node -e 'const a=[];for(;;)a.push(Buffer.alloc(1<<24,1))' 2>/dev/null")[0],
    disk=bash("head -c 9000000 /dev/zero > big"),
    survivor=bash("setsid nohup sleep 22.3606 >/dev/null 2>&1 & echo started"),
    timeout=bash("sleep 22.3606 & sleep 22.3606", 0.5),
    fork=bash("bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 9", 1.0)[0],
    alive=bash("echo alive"),
    network=bash("python3 -c 'import socket; socket.create_connection((\\"1.1.1.1\\", 53), 2)' 2>&1 | tail -1"),
    files=sandbox.list(),
)
run_dir = sandboxes.run_dir
sandboxes.close()
print(json.dumps({**out, "left": run_dir.exists()}))
"""


def test_not_root() -> None:
    python = sys.executable
    argv: list[str] = []
    if os.geteuid() == 0:
        # Root's own interpreter and project may lie where nobody else can go.
        python = "/usr/bin/python3"
        if not Path(python).exists():
            pytest.skip("no /usr/bin/python3 that another user can run")
        argv = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "rollout" / "sandbox"
        package.mkdir(parents=True)
        (package.parent / "__init__.py").touch()
        assert rollout.sandbox.__file__ is not None
        for source in Path(rollout.sandbox.__file__).parent.glob("*.py"):
            shutil.copy(source, package)
        subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
        done = subprocess.run(
            [*argv, python, "-B", "-c", _SCRIPT], cwd=folder, capture_output=True, text=True, timeout=120, check=False
        )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert len(seen["weaknesses"]) >= 4
    assert "sandboxes are weaker than they could be: not root" in done.stderr
    assert seen["hello"][1].startswith("a1000\n")
    assert "agent" in seen["hello"][1]
    assert seen["node"] == [0, "42\n"]
    assert seen["memory"] not in (0, None)
    assert seen["disk"][0] != 0
    assert seen["survivor"] == [0, "started\n"]
    assert seen["timeout"][0] is None
    assert seen["fork"] != 0
    assert seen["alive"] == [0, "alive\n"]
    assert "unreachable" in seen["network"][1]
    assert set(seen["files"]) <= {"src/a.txt", "big"}
    assert seen["left"] is False
    assert b"22.3606" not in b"".join(p.read_bytes() for p in Path("/proc").glob("[0-9]*/cmdline") if p.exists())
