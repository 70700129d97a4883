"""What to change first where a program does not fit."""

import dataclasses

from wc_jax.config import Config
from wc_jax.planning.planned import Plan


def first_fix(plan: Plan) -> str:
    """One change of the config or the topology, the cheapest that is left, and what it is good for."""
    config, mesh, batch = plan.config, plan.config.mesh, plan.config.batch
    worst = max(plan.programs, key=lambda program: program.peak)
    kept = worst.memory.arguments + worst.resident
    holders = mesh.data * mesh.fsdp
    if batch.remat != "layer":
        return "batch.remat=layer: the backward pass computes whole layers again instead of keeping what they made"
    if batch.micro_rows > holders:
        return f"batch.micro_rows={holders}: one row at a time on each device; the update stays the same"
    if mesh.data > 1:
        merged = dataclasses.replace(mesh, data=1, fsdp=holders)
        return f"mesh.data=1 mesh.fsdp={merged.fsdp}: weights and moments are cut further instead of copied"
    if kept > plan.chip.memory_bytes // 2 and config.optim.moments_dtype == "float32":
        return "optim.moments_dtype=bfloat16: Adam's moments take half the memory"
    longer = _longer_sequence(config)
    if mesh.fsdp > 1 and longer is not None and worst.memory.temporaries > kept:
        return (
            f"mesh.sequence={longer} mesh.fsdp={mesh.fsdp // 2} batch.micro_rows={holders // 2}: each row is cut"
            " further, and fewer are in memory at once"
        )
    return (
        f"a topology with twice the devices and mesh.sequence={mesh.sequence * 2}"
        if longer is not None
        else f"a topology with twice the devices and mesh.fsdp={mesh.fsdp * 2} batch.micro_rows={2 * holders}"
    ) + f": {plan.peak / 2**30:.1f} GiB are needed, the chip has {plan.chip.memory_bytes / 2**30:.1f}"


def _longer_sequence(config: Config) -> int | None:
    """Twice the parts, where rows and heads can be cut so."""
    twice = 2 * config.mesh.sequence
    return twice if config.batch.row_tokens % twice == 0 and twice <= 16 else None
