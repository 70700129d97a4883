"""A mesh with named axes, and rules as data: which logical axis of a weight lies along which mesh axis."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.table import weight_table
from wc_jax.types import Batch, TrainState

MESH_AXES = ("data", "fsdp", "tensor")
"""data: whole copies, other rows. fsdp: other rows, and each weight is cut. tensor: each product is cut."""

Rules = Mapping[str, str | tuple[str, ...] | None]
"""Logical axis -> mesh axes, None = not cut."""

DEFAULT_RULES: Rules = {
    "layer": None,
    "embed": "fsdp",
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "ff": "tensor",
    "batch": ("data", "fsdp"),
    "token": None,
}


@dataclass(frozen=True, kw_only=True)
class MeshShape:
    """How many devices along each mesh axis."""

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        for name in MESH_AXES:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def make_mesh(shape: MeshShape, devices: Sequence[jax.Device] | None = None) -> Mesh:
    """A mesh over exactly the devices it needs. Raises ValueError when there are too few."""
    devices = jax.devices() if devices is None else list(devices)
    sizes = tuple(getattr(shape, name) for name in MESH_AXES)
    needed = math.prod(sizes)
    if needed > len(devices):
        raise ValueError(f"mesh {dict(zip(MESH_AXES, sizes, strict=True))} needs {needed} devices, have {len(devices)}")
    # JAX's default is explicit sharding in types; ours is left to the compiler.
    return jax.make_mesh(sizes, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES), devices=devices[:needed])


def spec_for(
    name: str, shape: Sequence[int], axes: Sequence[str], mesh: Mesh, rules: Rules = DEFAULT_RULES
) -> PartitionSpec:
    """Where the array `name` is cut. Raises ValueError, naming it, on an unknown logical axis, on a mesh axis
    used for two dimensions, and on a dimension that its mesh axes do not divide.

    >>> mesh = make_mesh(MeshShape())
    >>> tuple(spec_for("w", (4, 6), ("embed", "ff"), mesh))
    ('fsdp', 'tensor')
    """
    parts: list[str | tuple[str, ...] | None] = []
    used: dict[str, str] = {}
    for size, axis in zip(shape, axes, strict=True):
        if axis not in rules:
            raise ValueError(f"{name}: no rule for the logical axis {axis!r}; rules know {sorted(rules)}")
        target = rules[axis]
        mesh_axes = (target,) if isinstance(target, str) else (target or ())
        for mesh_axis in mesh_axes:
            if mesh_axis not in mesh.shape:
                raise ValueError(f"{name}: {axis!r} goes to {mesh_axis!r}, the mesh has {list(mesh.shape)}")
            if mesh_axis in used:
                raise ValueError(f"{name}: {used[mesh_axis]!r} and {axis!r} both go to the mesh axis {mesh_axis!r}")
            used[mesh_axis] = axis
        ways = math.prod(mesh.shape[mesh_axis] for mesh_axis in mesh_axes)
        if size % ways:
            raise ValueError(f"{name}: dimension {axis!r} of {size} is not divisible by {ways} ({mesh_axes})")
        parts.append(target)
    return PartitionSpec(*parts)


def param_shardings(config: PolicyConfig, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> dict[str, NamedSharding]:
    """Of every weight in the table. Heads are cut whole: ValueError when a mesh axis does not divide them."""
    for axis, count in (("heads", config.num_heads), ("kv_heads", config.num_kv_heads)):
        spec_for(f"the {count} {axis}", (count,), (axis,), mesh, rules)
    return {
        name: NamedSharding(mesh, spec_for(name, weight.shape, weight.axes, mesh, rules))
        for name, weight in weight_table(config).items()
    }


def place_state(state: TrainState, config: PolicyConfig, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> TrainState:
    """The state on the mesh: optimizer moments lie where their weights lie, scalars everywhere."""
    shardings = param_shardings(config, mesh, rules)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def place(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        names = [getattr(key, "key", None) for key in path]
        return jax.device_put(leaf, next((shardings[n] for n in names if n in shardings), everywhere))

    return jax.tree_util.tree_map_with_path(place, state)


def place_batch(batch: Batch, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> Batch:
    """Rows are spread over the devices that hold different rows."""
    spec = spec_for("batch", batch.tokens.shape, ("batch", "token"), mesh, rules)
    return jax.tree.map(lambda x: jax.device_put(x, NamedSharding(mesh, spec)), batch)
