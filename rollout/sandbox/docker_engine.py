"""Sandboxes as Docker containers: on this machine's engine or on any that DOCKER_HOST names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
import requests
from docker.types import Mount, Ulimit

from rollout.sandbox.bubblewrap import HOME, INNER_ID, WORKSPACE
from rollout.sandbox.docker_container import USER, DockerContainer, asked, remove_container
from rollout.sandbox.docker_modules import modules_volume
from rollout.sandbox.protocol import Limits, SandboxError
from rollout.sandbox.remote import BUILD_IMAGE, DEFAULT_LIFETIME_S
from rollout.sandbox.remote_owner import LABEL, is_left_over, owner_labels
from rollout.sandbox.remote_wire import keeper_argv, keeper_env

DEFAULT_IMAGE = "webcoder/sandbox"
OWN_PROCESSES = 8
"""The keeper, and what runs and drains commands, beside the command's own processes."""
NUM_INODES = 50_000
_MAX_OPEN_FILES = 4096
_MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class DockerSettings:
    """Which engine and which image."""

    image: str = DEFAULT_IMAGE
    """With /usr/bin/python3, bash, node and what else agents use; see rollout/sandbox/images."""
    host: str = ""
    """Such as tcp://10.0.0.5:2376 or unix:///run/docker.sock; empty: DOCKER_HOST, else this machine's engine."""
    lifetime_s: float = DEFAULT_LIFETIME_S
    """A container ends itself after this."""


class DockerEngine:
    """An `Engine` for `RemoteSandboxes`."""

    def __init__(self, settings: DockerSettings | None = None) -> None:
        """Raises `SandboxError`, in words for people, when engine or image are not there."""
        self._settings = settings or DockerSettings()
        self._api = _connect(self._settings)
        self._volumes: dict[Path, str] = {}
        try:
            self._image_id = _image_id(self._api, self._settings.image)
            self.weaknesses = _weaknesses(asked("describe itself", self._api.info))
        except BaseException:
            self._api.close()
            raise

    def start(self, name: str, run_name: str, limits: Limits, node_modules: Path | None) -> DockerContainer:
        """See `Engine.start`."""
        lifetime_s = self._settings.lifetime_s
        volume = None if node_modules is None else self.volume(node_modules)
        host_config = self._api.create_host_config(
            **_limits(limits),
            tmpfs=_writable(limits, has_modules=volume is not None),
            mounts=[Mount(f"{WORKSPACE}/node_modules", volume, type="volume", read_only=True)] if volume else [],
        )
        asked(
            "make a container",
            lambda: self._api.create_container(
                self._image_id,
                keeper_argv(lifetime_s),
                environment=keeper_env(),
                name=name,
                # An image could name an entry point: ours is process 1, whatever the image says.
                entrypoint=[],
                user=USER,
                working_dir=WORKSPACE,
                hostname="sandbox",
                network_disabled=True,
                healthcheck={"test": ["NONE"]},
                labels=owner_labels(run_name, lifetime_s),
                host_config=host_config,
            ),
        )
        try:
            asked("start a container", lambda: self._api.start(name))
        except BaseException:
            remove_container(self._api, name)
            raise
        return DockerContainer(self._api, name)

    def volume(self, node_modules: Path) -> str:
        """The engine's volume with these packages, filled now if it is not there yet."""
        if node_modules not in self._volumes:
            self._volumes[node_modules] = modules_volume(self._api, self._image_id, node_modules)
        return self._volumes[node_modules]

    def remove_left_over(self) -> int:
        """See `Engine.remove_left_over`."""
        found = asked("list containers", lambda: self._api.containers(all=True, filters={"label": f"{LABEL}=1"}))
        dead = [container["Id"] for container in found if is_left_over(container["Labels"])]
        for name in dead:
            remove_container(self._api, name)
        return len(dead)

    def close(self) -> None:
        """See `Engine.close`."""
        self._api.close()


def _connect(settings: DockerSettings) -> Any:
    kwargs = docker.utils.kwargs_from_env()
    if settings.host:
        kwargs["base_url"] = settings.host
    where = kwargs.get("base_url", "this machine's socket")
    try:
        # Beyond the pool's size a connection is made anew for each call.
        return docker.APIClient(version="auto", timeout=120, num_pools=64, max_pool_size=64, **kwargs)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise SandboxError(
            f"no Docker engine answers at {where} ({error}); start one, or name another with sandbox.host=URL"
            " or DOCKER_HOST"
        ) from error


def _image_id(api: Any, image: str) -> str:
    """By its id from here on, so that a new image under the same name cannot come into a running training."""
    try:
        return str(api.inspect_image(image)["Id"])
    except docker.errors.ImageNotFound as error:
        raise SandboxError(f"the Docker engine has no image {image!r}; {BUILD_IMAGE}") from error
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        raise SandboxError(f"Docker could not look at image {image!r}: {error}") from error


def _limits(limits: Limits) -> dict[str, Any]:
    """Everything of a container's host configuration that does not depend on the project."""
    return {
        "network_mode": "none",
        "mem_limit": limits.memory_bytes,
        "memswap_limit": limits.memory_bytes,
        "nano_cpus": int(limits.cpus * 1e9),
        "pids_limit": limits.num_processes + OWN_PROCESSES,
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],  # and the engine's default seccomp profile
        "init": False,  # the keeper is process 1, which nothing inside can kill
        "ipc_mode": "private",
        "shm_size": 16 * _MIB,
        "ulimits": [
            Ulimit(name="nofile", soft=_MAX_OPEN_FILES, hard=_MAX_OPEN_FILES),
            Ulimit(name="core", soft=0, hard=0),
        ],
        "auto_remove": True,
        "log_config": {"type": "none"},
        "oom_score_adj": 500,
    }


def _writable(limits: Limits, *, has_modules: bool) -> dict[str, str]:
    """The writable folders, each a file system in memory. Their sizes add up to the limit.

    Docker cannot put one file system under three folders, so each has a share of its own.
    """
    owner = f"uid={INNER_ID},gid={INNER_ID},nosuid,nodev"
    eighth = limits.disk_bytes // 8
    folders = {
        WORKSPACE: f"size={5 * eighth},nr_inodes={NUM_INODES},mode=755,exec,{owner}",
        "/tmp": f"size={2 * eighth},nr_inodes={NUM_INODES},mode=1777,exec,{owner}",
        HOME: f"size={eighth},nr_inodes={NUM_INODES},mode=755,exec,{owner}",
    }
    if has_modules:
        modules = f"{WORKSPACE}/node_modules"
        folders[f"{modules}/.vite"] = f"size={128 * _MIB},mode=755,{owner}"
        folders[f"{modules}/.vite-temp"] = f"size={16 * _MIB},mode=755,{owner}"
    return folders


def _weaknesses(info: dict[str, Any]) -> tuple[str, ...]:
    """What this engine does not enforce, as it says itself."""
    missing = []
    for key, what in (("MemoryLimit", "memory"), ("PidsLimit", "the number of processes"), ("CpuCfsQuota", "CPU time")):
        if not info.get(key):
            missing.append(f"the Docker engine does not limit {what}")
    if not any("name=seccomp" in option and "unconfined" not in option for option in info.get("SecurityOptions") or ()):
        missing.append("the Docker engine filters no system calls (no default seccomp profile)")
    return tuple(missing)
