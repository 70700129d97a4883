"""What runs on a host: who a process is, two processes as a JobSet starts them, and what follows each exit code."""

import csv
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.wc_jax.small_runs import write_config, write_tiny_policy
from tests.wc_jax.together import free_port
from wc_jax.checkpoint import Checkpoints
from wc_jax.report import read_rows
from wc_jax.run_folder import RunFolder

ROOT = Path(__file__).parents[2]
START = ROOT / "gpu" / "start.sh"
BARE = {"PATH": "/usr/bin:/bin"}


def started_with(environment: dict[str, str], *words: str) -> list[str]:
    """The arguments that the interpreter gets: echo stands in for it."""
    ended = subprocess.run(
        [START, *words],
        env={**BARE, "WEBCODER_PYTHON": "/bin/echo", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


def slurm(index: int, count: int, nodes: str) -> dict[str, str]:
    task = {"SLURM_PROCID": str(index), "SLURM_NTASKS": str(count), "SLURM_LOCALID": "0"}
    return {**task, "SLURM_STEP_NODELIST": nodes}


@pytest.mark.parametrize(
    ("nodes", "leader"),
    [
        ("node07", "node07"),
        ("a,b", "a"),
        ("gpu-[003-005,9],x1", "gpu-003"),
        ("gpu-[3,5]", "gpu-3"),
        ("gpu[7]-ib", "gpu7-ib"),
        ("rack[1-2]n[3-4]", "rack1n3"),
    ],
)
def test_the_first_node_of_slurms_list_leads(nodes: str, leader: str) -> None:
    words = started_with(slurm(1, 4, nodes), "c.yaml", "seed=1")
    assert words[:4] == ["-m", "wc_jax.train", "c.yaml", "seed=1"]
    assert words[4:] == [
        f"distributed.coordinator={leader}:8476",
        "distributed.num_processes=4",
        "distributed.process_id=1",
    ]


def test_a_pod_is_told_by_its_index_and_one_host_needs_nobody() -> None:
    pod = {"JOB_COMPLETION_INDEX": "1", "WEBCODER_HOSTS": "2", "WEBCODER_LEADER": "a.b", "WEBCODER_PORT": "99"}
    together = ["distributed.coordinator=a.b:99", "distributed.num_processes=2", "distributed.process_id=1"]
    assert started_with(pod, "c.yaml") == ["-m", "wc_jax.train", "c.yaml", *together]
    for alone in (
        {},
        slurm(0, 1, "node1"),
        {"JOB_COMPLETION_INDEX": "0", "WEBCODER_HOSTS": "1", "WEBCODER_LEADER": "a.b"},
    ):
        assert started_with(alone, "c.yaml") == ["-m", "wc_jax.train", "c.yaml"]


@pytest.mark.parametrize(
    ("environment", "words", "message"),
    [
        ({}, (), "no config; write gpu/start.sh CONFIG"),
        ({**slurm(1, 2, "a"), "SLURM_LOCALID": "1"}, ("c",), "task 1 is not alone on its node"),
        ({"WEBCODER_PORT": "x"}, ("c",), "WEBCODER_PORT=x is no port"),
        ({"WEBCODER_PYTHON": "/no/python"}, ("c",), "there is no /no/python"),
        ({"JOB_COMPLETION_INDEX": "0"}, ("c",), "WEBCODER_HOSTS is not set"),
        ({"SLURM_PROCID": "0"}, ("c",), "SLURM_NTASKS is not set"),
    ],
)
def test_a_half_told_process_does_not_start(environment: dict[str, str], words: tuple[str, ...], message: str) -> None:
    environment = {**BARE, "WEBCODER_PYTHON": "/bin/echo", **environment}
    ended = subprocess.run([START, *words], env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "") and message in ended.stderr


def stand_in(folder: Path, name: str, script: str) -> None:
    """A command of a cluster that this machine lacks."""
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{script}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"),
    [(0, 0, ""), (1, 0, ""), (2, 0, ""), (3, 0, "requeue 7"), (143, 19, "requeue 7"), (143, 20, "")],
)
def test_slurm_takes_back_what_was_interrupted(tmp_path: Path, code: int, restarts: int, requeued: str) -> None:
    stand_in(tmp_path, "srun", f'echo "$@" >{tmp_path}/srun.txt; exit {code}')
    stand_in(tmp_path, "scontrol", f'echo "$@" >{tmp_path}/scontrol.txt')
    job = {"SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT), "SLURM_RESTART_COUNT": str(restarts)}
    command = ["bash", str(ROOT / "gpu" / "job.sbatch"), "c.yaml", "seed=1"]
    ended = subprocess.run(
        command, env={"PATH": f"{tmp_path}:/usr/bin:/bin", **job}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == code
    assert (tmp_path / "srun.txt").read_text().split()[-3:] == ["gpu/start.sh", "c.yaml", "seed=1"]
    done = tmp_path / "scontrol.txt"
    assert (done.read_text().strip() if done.exists() else "") == requeued


@pytest.mark.parametrize(("codes", "last"), [([3, 143, 0], 0), ([2], 2), ([137, 1], 1), ([3] * 21, 3)])
def test_a_tpu_vm_starts_its_process_again_until_it_is_done(tmp_path: Path, codes: list[int], last: int) -> None:
    (tmp_path / "codes").write_text("".join(f"{code}\n" for code in codes))
    run = f'printf "%q " "$@" >>{tmp_path}/runs; echo >>{tmp_path}/runs'
    take = f'read -r code <{tmp_path}/codes; sed -i 1d {tmp_path}/codes; exit "$code"'
    stand_in(tmp_path, "docker", f'[ "$1" = run ] || exit 0\n{run}\n{take}')
    stand_in(tmp_path, "sleep", "exit 0")
    command = ["bash", str(ROOT / "tpu" / "worker.sh"), "image:1", "10.0.0.2:/web", "c.yaml", "track.wandb_project=a b"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    runs = (tmp_path / "runs").read_text().splitlines()
    assert (ended.returncode, len(runs)) == (last, len(codes))
    words = shlex.split(runs[0])
    assert words[-4:] == ["image:1", "c.yaml", "track.wandb_project=a b", "distributed.auto=true"]
    mounts = [next(csv.reader([word])) for word in words if word.startswith("type=volume")]
    for name, mount in zip(("runs", "models"), mounts, strict=True):
        assert {f"dst=/webcoder/{name}", f"volume-opt=device=:/web/{name}", "volume-opt=o=addr=10.0.0.2,rw"} <= set(
            mount
        )


@pytest.mark.browser
@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_pods_train_are_stopped_and_go_on(tmp_path: Path) -> None:
    model = write_tiny_policy(tmp_path / "model")
    changes = {
        "num_steps": 2,
        "tasks": {"num_train": 2, "num_heldout": 2, "per_step": 2},
        "rollout": {"group_size": 2, "concurrency": 2},
        "evaluation": {"every": 2},
        "verifier": {"build_timeout_s": 120},
        "mesh": {"data": 2},
        "distributed": {"start_timeout_s": 120, "failure_timeout_s": 10},
    }
    config = write_config(tmp_path / "config.yaml", model, tmp_path / "run", **changes)
    folder = RunFolder(path=tmp_path / "run")
    first = start_pods(config)
    try:
        deadline = time.monotonic() + 150
        while not Checkpoints(folder=folder.checkpoints).steps() and time.monotonic() < deadline:
            assert all(pod.poll() is None for pod in first), [pod.communicate() for pod in first]
            time.sleep(0.1)
        # As when a node is drained: the process itself gets the signal, because start.sh has become it.
        first[1].send_signal(signal.SIGTERM)
        ended = [pod.communicate(timeout=100)[1] for pod in first]
    finally:
        kill(first)
    assert [pod.returncode for pod in first] == [3, 143], ended
    assert "process 1 failed" in ended[0]
    second = start_pods(config)
    try:
        ended = [pod.communicate(timeout=150)[1] for pod in second]
    finally:
        kill(second)
    assert [pod.returncode for pod in second] == [0, 0], ended
    assert [row["step"] for row in read_rows(folder.metrics)] == [1, 2]


def start_pods(config: Path) -> list[subprocess.Popen[str]]:
    """Both processes of a run, told who they are as a JobSet's pods are."""
    shared = {"WEBCODER_HOSTS": "2", "WEBCODER_LEADER": "127.0.0.1", "WEBCODER_PORT": str(free_port())}
    devices = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    return [
        subprocess.Popen(
            [START, config],
            env={**os.environ, **shared, **devices, "WEBCODER_PYTHON": sys.executable, "JOB_COMPLETION_INDEX": index},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in ("0", "1")
    ]


def kill(pods: list[subprocess.Popen[str]]) -> None:
    for pod in pods:
        pod.kill()
        pod.communicate()
