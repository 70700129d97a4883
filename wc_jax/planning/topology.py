"""Devices that need not be there: slices of TPUs, nodes of GPUs, simulated CPU devices, as XLA's compiler sees them."""

import difflib
import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import jax
from jax.experimental import topologies

from configs import ConfigError
from wc_jax.planning.chips import CHIPS, Chip
from wc_jax.planning.gpu_target import gpu_target

_SLICES = {
    2: ("2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"),
    3: ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8", "8x8x16", "8x16x16", "16x16x16"),
}


@dataclass(frozen=True, kw_only=True)
class Topology:
    """So many of one chip. `sizes` are the slice's sides, or GPUs a node and nodes, or simulated devices."""

    chip: Chip
    sizes: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        """Of the whole topology."""
        return math.prod(self.sizes)

    @property
    def node_size(self) -> int:
        """Devices that reach each other over the near network."""
        return self.sizes[0] if self.chip.platform == "gpu" else self.num_devices

    def __str__(self) -> str:
        return f"{self.chip.name}:{'x'.join(map(str, self.sizes))}"


def parse_topology(text: str) -> Topology:
    """`v5p:4x4x4`, `h100:8x4` (8 GPUs in each of 4 nodes), `cpu:8`. Raises `ConfigError` naming the nearest known.

    >>> str(parse_topology("h200:8x2")), parse_topology("v5p:2x2x4").num_devices
    ('h200:8x2', 16)
    """
    name, colon, shape = text.partition(":")
    if name not in CHIPS:
        near = difflib.get_close_matches(name, CHIPS, n=2, cutoff=0.0)
        raise ConfigError(f"unknown chip {name!r} in --topology {text}; nearest known: {' and '.join(near)}")
    chip = CHIPS[name]
    parts = shape.split("x") if colon else []
    sizes = tuple(int(part) for part in parts if part.isascii() and part.isdigit() and int(part) > 0)
    if chip.platform == "tpu":
        _check_slice(text, chip, sizes if len(sizes) == len(parts) else ())
    elif len(sizes) != len(parts) or len(sizes) != (2 if chip.platform == "gpu" else 1):
        wanted = "GPUs in a node x nodes, for example 8x4" if chip.platform == "gpu" else "devices, for example 8"
        raise ConfigError(f"can't read --topology {text}; after {name}: write {wanted}")
    return Topology(chip=chip, sizes=sizes)


def _check_slice(text: str, chip: Chip, sizes: tuple[int, ...]) -> None:
    known = _SLICES[chip.dimensions]
    if "x".join(map(str, sizes)) in known:
        return
    wanted = math.prod(sizes) if sizes else 1

    def distance(shape: str) -> float:
        return abs(math.log(math.prod(map(int, shape.split("x"))) / wanted))

    near = sorted(known, key=distance)[:2]
    raise ConfigError(
        f"--topology {text} is no {chip.title} slice; nearest known: {' and '.join(f'{chip.name}:{n}' for n in near)}"
    )


def devices_of(topology: Topology) -> Sequence:
    """Devices to compile for. To be called before JAX is used for anything: a process has one set of devices.

    Raises `ConfigError` with what to install where the compiler is missing.
    """
    # Nothing is started: the compiler needs a description of the devices, never one of them.
    jax.config.update("jax_platforms", "cpu")
    if topology.chip.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", topology.num_devices)
        return jax.devices("cpu")
    if topology.chip.platform == "tpu":
        require("libtpu", "jax[tpu]", "tpu")
        # No look-up of what machine this is; and several processes may load the compiler.
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
        os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
        return topologies.get_topology_desc(platform="tpu", topology_name=str(topology)).devices
    require("jax_plugins.xla_cuda13", "jax[cuda13]", "gpu")
    gpus, nodes = topology.sizes
    # PJRT's order: groups of nodes, nodes in a group, GPUs in a node.
    return topologies.get_topology_desc(
        topology_name=topology.chip.name,
        platform="cuda",
        topology=f"1x{nodes}x{gpus}",
        target_config=gpu_target(topology.chip),
    ).devices


def require(module: str, package: str, environment: str) -> None:
    """Raises `ConfigError` with the lines to type where `module` can't be imported."""
    try:
        is_there = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        is_there = False
    if not is_there:
        version = importlib.metadata.version("jax")
        raise ConfigError(
            f"compiling for this topology needs {package}, which this environment lacks; type"
            f" `make plan-setup` and use .venv-plan-{environment}/bin/python, or in an environment of your own"
            f" `pip install '{package}=={version}'`"
        )
