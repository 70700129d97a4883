"""Rules as data: which logical axis of a weight lies along which mesh axis, and the placements that follow."""

import math
from collections.abc import Mapping, Sequence

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from wc_jax.mesh import PARTS, ROWS
from wc_jax.policy.config import PolicyConfig
from wc_jax.policy.table import weight_table
from wc_jax.types import Batch, TrainState

Rules = Mapping[str, str | tuple[str, ...] | None]
"""Logical axis -> mesh axes, None = not cut."""

DEFAULT_RULES: Rules = {
    "layer": None,
    "embed": PARTS,
    # What a matrix that writes to the residual stream is cut by: its rows, because cut columns would be strips too
    # narrow to lie well in memory, and summing gradients into them would turn every gradient around.
    "heads_in": ("tensor", *PARTS),
    "delta_in": ("tensor", *PARTS),
    "ff_in": ("tensor", *PARTS),
    "embed_out": None,
    "vocab": "tensor",
    "heads": "tensor",
    "kv_heads": "tensor",
    "head_dim": None,
    "delta_keys": "tensor",
    "delta_values": "tensor",
    "conv": None,
    "ff": "tensor",
    "rank": None,
    "embed_pair": None,
    # The vision tower is small beside the policy: cut by heads and hidden units only.
    "vision_embed": None,
    "vision_heads": "tensor",
    "vision_ff": "tensor",
    "pixels": None,
    "grid": None,
    "batch": ROWS,
    "token": "sequence",
}


def spec_for(
    name: str, shape: Sequence[int], axes: Sequence[str], mesh: Mesh, rules: Rules = DEFAULT_RULES
) -> PartitionSpec:
    """Where the array `name` is cut. Raises ValueError, naming it, on an unknown logical axis, on a mesh axis
    used for two dimensions, and on a dimension that its mesh axes do not divide.

    >>> from wc_jax.mesh import MeshShape, make_mesh
    >>> tuple(spec_for("w", (4, 6), ("embed", "ff"), make_mesh(MeshShape())))
    (('fsdp', 'sequence'), 'tensor')
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
    counts = [("heads", config.num_heads), ("kv_heads", config.num_kv_heads)]
    if config.delta is not None:
        counts += [("delta_keys", config.delta.key_heads), ("delta_values", config.delta.value_heads)]
        ways = mesh.shape["tensor"] * mesh.shape["sequence"]
        if config.delta.value_heads % ways:
            raise ValueError(
                f"the {config.delta.value_heads} value heads of recurrent layers are not divisible by tensor * sequence"
                f" = {ways}: each device works on whole rows of whole heads there"
            )
    if config.vision is not None:
        counts.append(("vision_heads", config.vision.num_heads))
    for axis, count in counts:
        spec_for(f"the {count} {axis}", (count,), (axis,), mesh, rules)
    return {
        name: NamedSharding(mesh, spec_for(name, weight.shape, weight.axes, mesh, rules))
        for name, weight in weight_table(config).items()
    }


def state_shardings(state: TrainState, config: PolicyConfig, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> TrainState:
    """A tree of shardings like `state` (arrays or their shapes): optimizer moments lie where their weights lie,
    scalars everywhere.
    """
    shardings = param_shardings(config, mesh, rules)
    everywhere = NamedSharding(mesh, PartitionSpec())

    def of(path: tuple[object, ...], leaf: object) -> NamedSharding:
        names = [getattr(key, "key", None) for key in path]
        return next((shardings[name] for name in names if name in shardings), everywhere)

    return jax.tree_util.tree_map_with_path(of, state)


def place_state(state: TrainState, config: PolicyConfig, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> TrainState:
    """The state on the mesh."""
    return jax.tree.map(jax.device_put, state, state_shardings(state, config, mesh, rules))


def batch_sharding(shape: Sequence[int], mesh: Mesh, rules: Rules = DEFAULT_RULES) -> NamedSharding:
    """Of each `[B, T]` array of a batch: rows over the devices that hold different rows, tokens over `sequence`."""
    return NamedSharding(mesh, spec_for("batch", shape, ("batch", "token"), mesh, rules))


def place_batch(batch: Batch, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> Batch:
    """A batch that this process holds whole, on the mesh."""
    sharding = batch_sharding(batch.tokens.shape, mesh, rules)
    return jax.tree.map(lambda x: jax.device_put(x, sharding), batch)
