"""Does this config fit these hosts? What the launchers in tpu/ and gpu/ ask before they ask a cluster for anything.

    python -m wc_jax.pod CONFIG [key=value ...] --topology v5p:2x2x4 [--in-image]

One process runs on each host and has all of its devices, because browser, sandboxes and model server are one a process.
Prints `name=value` lines: the hosts, their chips, and what Google's clouds call them. Exit codes: 0 and 2 (bad input).
Whether it fits the chips' memory is another question: `wc_jax.plan`.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from configs import ConfigError, load
from wc_jax.config import Config
from wc_jax.exits import BAD_INPUT
from wc_jax.planning.topology import Topology, parse_topology


@dataclass(frozen=True)
class _Tpu:
    """What Google calls a kind of TPU."""

    gke: str
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    prefix: str
    """Of an accelerator type; a number follows."""
    counted: int
    """That number for each chip: v5p counts cores."""
    runtime: str
    """Software version of a TPU VM."""
    largest_host: int
    """Chips of the largest machine that is a slice by itself; hosts of larger slices have 4."""


_TPUS = {
    "v5p": _Tpu("tpu-v5p-slice", "v5p-", 2, "v2-alpha-tpuv5", 4),
    "v5e": _Tpu("tpu-v5-lite-podslice", "v5litepod-", 1, "v2-alpha-tpuv5-lite", 8),
    "v6e": _Tpu("tpu-v6e-slice", "v6e-", 1, "v2-alpha-tpuv6e", 8),
}

MOUNTED = ("runs", "models")
"""Folders of the project that an image's containers share with each other; all else is the image's own."""


def chips_per_host(topology: Topology) -> int:
    """Devices of each host.

    >>> [chips_per_host(parse_topology(name)) for name in ("v5p:2x2x4", "v6e:2x4", "v6e:4x4", "h100:8x2")]
    [4, 8, 4, 8]
    """
    if topology.chip.platform != "tpu":
        return topology.node_size
    return topology.num_devices if topology.num_devices <= _TPUS[topology.chip.name].largest_host else 4


def num_hosts(topology: Topology) -> int:
    """And so processes of a run."""
    return topology.num_devices // chips_per_host(topology)


def check_pod(config: Config, topology: Topology) -> None:
    """Raises `ConfigError`, naming the setting, where mesh, batch or tasks can't be shared out to the hosts."""
    mesh, hosts = config.mesh, num_hosts(topology)
    if mesh.num_devices != topology.num_devices:
        raise ConfigError(
            f"mesh.* takes {mesh.num_devices} devices, but {topology} has {topology.num_devices} ({hosts} hosts of"
            f" {chips_per_host(topology)}); change mesh.fsdp or another axis, or the topology"
        )
    if (mesh.data * mesh.fsdp) % hosts:
        raise ConfigError(
            f"mesh.data * mesh.fsdp = {mesh.data * mesh.fsdp} must be a multiple of the {hosts} hosts of {topology}:"
            f" each fills rows of its own; write for example mesh.fsdp={hosts} and shorten mesh.sequence or mesh.tensor"
        )
    if config.batch.micro_rows % (mesh.data * mesh.fsdp):
        raise ConfigError(
            f"batch.micro_rows={config.batch.micro_rows} must be a multiple of mesh.data * mesh.fsdp"
            f" = {mesh.data * mesh.fsdp}"
        )
    if config.tasks.per_step % hosts:
        raise ConfigError(
            f"tasks.per_step={config.tasks.per_step} can't be shared out evenly among {hosts} hosts; make it a multiple"
        )
    asked = config.distributed
    if asked.auto or asked.coordinator or asked.process_id:
        raise ConfigError(
            "distributed.auto, coordinator, num_processes and process_id are the launcher's; leave them out"
        )


def check_in_image(path: Path, config: Config) -> None:
    """That a container finds what the command names. Raises `ConfigError`."""
    if path.is_absolute() or ".." in path.parts:
        raise ConfigError(f"{path} must be a path within the project, as the image holds it, such as configs/NAME.yaml")
    for name, folder in (("run_dir", config.run_dir), ("model.folder", config.model.folder)):
        parts = PurePosixPath(folder).parts
        if len(parts) < 2 or parts[0] not in MOUNTED or ".." in parts:
            raise ConfigError(
                f"{name}={folder} must lie below {' or '.join(f'{each}/' for each in MOUNTED)}, which the hosts share"
            )


def facts(topology: Topology, arguments: Sequence[str]) -> Mapping[str, str]:
    """What the launchers put into commands and manifests; `arguments` as one line of JSON, which is YAML too."""
    found = {
        "chip": topology.chip.name,
        "platform": topology.chip.platform,
        "hosts": str(num_hosts(topology)),
        "chips": str(chips_per_host(topology)),
        "arguments": json.dumps(list(arguments)),
    }
    tpu = _TPUS.get(topology.chip.name)
    if tpu is not None:
        found |= {
            "gke_accelerator": tpu.gke,
            "gke_topology": "x".join(map(str, topology.sizes)),
            "accelerator_type": f"{tpu.prefix}{tpu.counted * topology.num_devices}",
            "runtime_version": tpu.runtime,
        }
    return found


def main(argv: Sequence[str]) -> int:
    """The command line. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m wc_jax.pod", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("config", metavar="CONFIG", type=Path)
    parser.add_argument("assignments", metavar="key=value", nargs="*")
    parser.add_argument("--topology", required=True)
    parser.add_argument("--in-image", action="store_true", help="the run's containers share runs/ and models/ only")
    options = parser.parse_intermixed_args(list(argv))
    try:
        topology = parse_topology(options.topology)
        config = load(options.config, options.assignments, Config)
        check_pod(config, topology)
        if options.in_image:
            check_in_image(options.config, config)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    for name, value in facts(topology, [str(options.config), *options.assignments]).items():
        print(f"{name}={value}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
