"""The launchers of tpu/ and gpu/: what they would run, and what they refuse. No cluster is asked for anything."""

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from wc_jax.planning.topology import parse_topology
from wc_jax.pod import chips_per_host, num_hosts

ROOT = Path(__file__).parents[2]
GKE = ("tpu/launch.sh", "gke", "configs/webcoder_27b.yaml", "--topology", "v5p:2x2x4", "--volume", "claim")
QUEUED = ("tpu/launch.sh", "queued", "configs/webcoder_27b.yaml", "--topology", "v5p:2x2x4", "--zone", "us-east5-a")
QUEUED = (*QUEUED, "--nfs", "10.0.0.2:/web", "--project", "mine")
SLURM = (
    "gpu/launch.sh",
    "slurm",
    "configs/webcoder_27b.yaml",
    "--topology",
    "h100:8x2",
    "mesh.fsdp=2",
    "mesh.sequence=8",
)
KUBERNETES = ("gpu/launch.sh", "kubernetes", *SLURM[2:], "--volume", "claim")
IMAGE = ("--image", "registry.example/web:1")
AWKWARD = 'track.wandb_project=it\'s "a" $(name) & @NAME@ \\ *'
"""A setting that quotes, dollars and the template's own marks must not break."""


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*words, "--dry-run"],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "WEBCODER_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def printed(*words: str) -> str:
    ended = launch(*words)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def pod_of(manifest: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(the job, its pod, the pod's container) of a JobSet of one job."""
    (replicated,) = manifest["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    return job, pod, container


@pytest.mark.parametrize(
    ("command", "hosts", "chips", "resource", "added"),
    [
        (GKE, 4, 4, "google.com/tpu", ["distributed.auto=true"]),
        (KUBERNETES, 2, 8, "nvidia.com/gpu", []),
    ],
)
def test_a_manifest_has_a_pod_for_each_host_and_every_word(
    command: tuple[str, ...], hosts: int, chips: int, resource: str, added: list[str]
) -> None:
    manifest = yaml.safe_load(printed(*command, *IMAGE, "--name", "run-1", AWKWARD))
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("JobSet", "run-1")
    job, pod, container = pod_of(manifest)
    assert (job["completions"], job["parallelism"], job["completionMode"]) == (hosts, hosts, "Indexed")
    assert container["resources"] == {"requests": {resource: chips}, "limits": {resource: chips}}
    assert container["image"] == IMAGE[1]
    settings = [word for word in command[2:] if "=" in word]
    # Kubernetes reads $$ as $.
    words = [word.replace("$$", "$") for word in container["args"]]
    assert words == [command[2], *settings, AWKWARD, *added]
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", " ".join(container["args"])), "nothing that Kubernetes would expand"
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert {path: mounts[path]["subPath"] for path in ("/webcoder/runs", "/webcoder/models")} == {
        "/webcoder/runs": "runs",
        "/webcoder/models": "models",
    }
    assert {"name": "shared", "persistentVolumeClaim": {"claimName": "claim"}} in pod["volumes"]
    assert container["securityContext"] == {"privileged": True}


@pytest.mark.parametrize("command", [GKE, KUBERNETES])
def test_a_jobset_is_started_again_whole_except_after_mistakes(command: tuple[str, ...]) -> None:
    manifest = yaml.safe_load(printed(*command, *IMAGE))
    job, pod, container = pod_of(manifest)
    assert manifest["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert (job["backoffLimit"], pod["restartPolicy"]) == (0, "Never"), "a pod by itself is never started again"
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1, 2])
    assert rule["onExitCodes"]["containerName"] == container["name"]
    (last,) = manifest["spec"]["failurePolicy"]["rules"]
    assert (last["action"], last["onJobFailureReasons"]) == ("FailJobSet", ["PodFailurePolicy"])


def test_gke_puts_the_run_on_the_slice_and_gpus_learn_who_leads() -> None:
    _, pod, _ = pod_of(yaml.safe_load(printed(*GKE, *IMAGE)))
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5p-slice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
    }
    _, _, container = pod_of(yaml.safe_load(printed(*KUBERNETES, *IMAGE, "--name", "run-1")))
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    # A JobSet names its pods NAME-JOB-0-INDEX, below its own name.
    assert variables == {"WEBCODER_HOSTS": "2", "WEBCODER_LEADER": "run-1-host-0-0.run-1"}


def test_slurm_gets_a_task_a_node_with_all_its_gpus() -> None:
    words = shlex.split(printed(*SLURM, "--time", "24:00:00", "--partition", "gpu", AWKWARD))
    assert words[0] == "sbatch" and words[-5:] == ["gpu/job.sbatch", SLURM[2], *SLURM[5:], AWKWARD]
    assert {"--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=8", "--requeue", "--signal=TERM@120"} <= set(words)
    assert {"--time=24:00:00", "--partition=gpu"} <= set(words)


def test_a_queued_resource_boots_into_the_run() -> None:
    command, _, startup = printed(*QUEUED, *IMAGE, "--spot", AWKWARD).partition("\n\n# STARTUP:\n")
    words = shlex.split(command)
    assert words[:5] == ["gcloud", "compute", "tpus", "queued-resources", "create"]
    assert {"--accelerator-type=v5p-32", "--runtime-version=v2-alpha-tpuv5", "--spot", "--project=mine"} <= set(words)
    lines = startup.splitlines()
    assert lines[0].startswith("#!") and shlex.split(lines[1])[2:] == [IMAGE[1], "10.0.0.2:/web", QUEUED[2], AWKWARD]
    assert lines[2:] == (ROOT / "tpu" / "worker.sh").read_text().splitlines()[1:]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("tpu/launch.sh", "here"), "the first argument must be gke or queued, got 'here'"),
        (("gpu/launch.sh",), "the first argument must be slurm or kubernetes"),
        ((*SLURM, "--nodes", "2"), "unknown option --nodes"),
        ((*SLURM, "other.yaml"), "two configs, configs/webcoder_27b.yaml and other.yaml"),
        ((*SLURM, "--time", "now; rm x"), "--time now; rm x does not look right; write for example --time 24:00:00"),
        ((*SLURM, *IMAGE), "--image and --volume belong to kubernetes"),
        ((*SLURM, "optim.rl=1"), "unknown key optim.rl; did you mean optim.lr?"),
        ((*SLURM, "--topology", "h100:8x3"), "mesh.* takes 16 devices, but h100:8x3 has 24 (3 hosts of 8)"),
        ((*SLURM, "--topology", "v5p:2x2x4", "mesh.fsdp=4", "mesh.sequence=4"), "is no cluster of GPUs"),
        ((*SLURM, "tasks.per_step=3"), "tasks.per_step=3 can't be shared out evenly among 2 hosts"),
        ((*SLURM, "distributed.auto=true"), "are the launcher's; leave them out"),
        (
            (*GKE, *IMAGE, "mesh.fsdp=2", "mesh.sequence=8"),
            "mesh.data * mesh.fsdp = 2 must be a multiple of the 4",
        ),
        ((*GKE, *IMAGE, "batch.micro_rows=2"), "batch.micro_rows=2 must be a multiple of mesh.data * mesh.fsdp = 4"),
        ((*GKE, *IMAGE, "run_dir=/tmp/run"), "run_dir=/tmp/run must lie below runs/ or models/"),
        ((*GKE, *IMAGE, "model.folder=models/../x"), "model.folder=models/../x must lie below runs/ or models/"),
        ((*GKE, *IMAGE, "--topology", "v5p:3x3x3"), "v5p:3x3x3 is no TPU v5p slice"),
        ((*GKE, "--image"), "--image -"),
        (GKE, "--image is missing; write for example --image REGISTRY/webcoder-tpu:1"),
        ((*GKE, *IMAGE, "--name", "Run_1"), "--name Run_1 does not look right"),
        (
            (*QUEUED, *IMAGE, "--nfs", "server"),
            "--nfs server does not look right; write for example",
        ),
        ((*GKE, *IMAGE, "--spot"), "--nfs, --project, --zone and --spot belong to queued"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(words: tuple[str, ...], message: str) -> None:
    ended = launch(*words)
    assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
    assert message in ended.stderr


def test_without_dry_run_a_missing_command_is_named() -> None:
    environment = {"PATH": "/usr/bin:/bin", "WEBCODER_PYTHON": sys.executable}
    ended = subprocess.run(SLURM, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2 and "there is no sbatch here" in ended.stderr


def commands_in(readme: Path) -> list[list[str]]:
    lines = [line.strip() for line in readme.read_text().splitlines() if line.startswith("    ")]
    return [shlex.split(line) for line in lines if "launch.sh" in line]


@pytest.mark.parametrize("readme", ["tpu/README.md", "gpu/README.md"])
def test_the_commands_of_a_readme_are_good(readme: str) -> None:
    commands = commands_in(ROOT / readme)
    assert len(commands) == 2
    for command in commands:
        assert printed(*command)


@pytest.mark.parametrize("name", ["webcoder_27b", "webgrader_8b", "webgen_r1_7b"])
def test_a_recipe_fits_the_hosts_that_its_first_lines_name(name: str) -> None:
    text = (ROOT / "configs" / f"{name}.yaml").read_text()
    (topology,) = re.findall(r"launch\.sh .* --topology (\S+) ", text)
    command = [sys.executable, "-m", "wc_jax.pod", f"configs/{name}.yaml", "--topology", topology, "--in-image"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_hosts_hold_all_chips_of_every_topology() -> None:
    sizes = {"v5p": "2x2x1 2x2x2 4x4x4", "v5e": "2x2 2x4 4x4 16x16", "v6e": "2x2 2x4 8x8", "h100": "8x1 8x16 4x2"}
    for name in itertools.chain.from_iterable([f"{chip}:{s}" for s in found.split()] for chip, found in sizes.items()):
        topology = parse_topology(name)
        assert num_hosts(topology) * chips_per_host(topology) == topology.num_devices


@pytest.mark.parametrize(("folder", "program"), [("tpu", "wc_jax.train"), ("gpu", "gpu/start.sh")])
def test_an_image_starts_the_program_behind_a_first_process(folder: str, program: str) -> None:
    text = (ROOT / folder / "Dockerfile").read_text()
    (entry,) = re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)
    words = json.loads(entry)
    assert words[:2] == ["/usr/bin/tini", "--"] and words[-1] == program
    assert f".venv-plan-{folder}/.done" in text and "WORKDIR /webcoder" in text
