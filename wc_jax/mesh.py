"""The mesh: four named axes, how many devices along each, and what of a batch lies where."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor", "sequence")
"""data: whole copies, other rows. fsdp: other rows, and each weight is cut. tensor: each product is cut.
sequence: each row is cut, and each weight."""

ROWS = ("data", "fsdp")
"""The axes whose devices hold different rows."""

PARTS = ("fsdp", "sequence")
"""The axes whose devices hold different parts of the weights."""

TOKENS = (ROWS, "sequence")
"""Where an array `[B, T]` lies."""

STATES = (ROWS, "sequence", None)
"""Where an array `[B, T, D]` lies."""


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """How many devices along each mesh axis."""

    data: int = 1
    """Copies of the weights; each works on other rows."""
    fsdp: int = 1
    """Parts that each weight is cut into; each holder works on other rows."""
    tensor: int = 1
    """Parts that heads, hidden units and the vocabulary are cut into."""
    sequence: int = 1
    """Parts that each row of tokens is cut into, and each weight once more."""

    def __post_init__(self) -> None:
        for name in MESH_AXES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def num_devices(self) -> int:
        """Devices that the mesh needs.

        >>> MeshShape(fsdp=4, tensor=2).num_devices
        8
        """
        return math.prod(getattr(self, name) for name in MESH_AXES)


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over exactly the devices it needs. Raises ValueError when there are too few.

    JAX chooses which device stands where, by the machine's network, except where it would cut a row of the batch over
    several processes that could each have whole rows: a process fills its own.
    """
    devices = jax.devices() if devices is None else list(devices)
    sizes = tuple(getattr(shape, name) for name in MESH_AXES)
    needed = shape.num_devices
    if needed > len(devices):
        raise ValueError(f"mesh {dict(zip(MESH_AXES, sizes, strict=True))} needs {needed} devices, have {len(devices)}")
    devices = devices[:needed]
    # JAX's default is explicit sharding in types; ours is left to the compiler.
    types = (AxisType.Auto,) * len(MESH_AXES)
    in_order = Mesh(_by_process(devices).reshape(sizes), MESH_AXES, axis_types=types)
    try:
        chosen = jax.make_mesh(sizes, MESH_AXES, axis_types=types, devices=devices)
    except NotImplementedError:
        # The machine's sides can't be cut so.
        return in_order
    return chosen if rows_have_one_process(chosen) or not rows_have_one_process(in_order) else in_order


def _by_process(devices: Sequence[jax.Device]) -> np.ndarray:
    return np.array(sorted(devices, key=lambda device: (device.process_index, device.id)))


def rows_have_one_process(mesh: Mesh) -> bool:
    """Whether all devices that share a row of the batch belong to one process."""
    owners = np.vectorize(lambda device: device.process_index)(mesh.devices)
    rows = owners.reshape(mesh.shape["data"] * mesh.shape["fsdp"], -1)
    return bool((rows == rows[:, :1]).all())


def spec(*axes: str | tuple[str, ...] | None) -> PartitionSpec:
    """`PartitionSpec`, by a shorter name."""
    return PartitionSpec(*axes)


def constrain(x: jax.Array, mesh: Mesh | None, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """`x`, told where it lies; without a mesh, `x`."""
    return x if mesh is None else jax.lax.with_sharding_constraint(x, NamedSharding(mesh, PartitionSpec(*axes)))


def on_each_device(function: Callable, mesh: Mesh | None, in_specs: Any, out_specs: Any) -> Callable:
    """`function` on the local parts of its arguments; without a mesh, `function` itself."""
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
