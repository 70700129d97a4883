"""A plan as text for people and as plain data for programs."""

from typing import Any

from wc_jax.planning.advice import first_fix
from wc_jax.planning.planned import Plan, ProgramPlan

_GIB = 2**30


def as_text(plan: Plan) -> str:
    """A page."""
    config, chip, mesh = plan.config, plan.chip, plan.config.mesh
    axes = [f"{name}={getattr(mesh, name)}" for name in ("data", "fsdp", "tensor", "sequence")]
    lines = [
        f"{plan.topology}: {plan.topology.num_devices} x {chip.title}, mesh {' '.join(axes)}",
        f"policy {plan.policy.family}, {_count(plan.num_params)} parameters, {config.model.dtype};"
        f" batch of {plan.rows} rows of {config.batch.row_tokens} tokens, {config.batch.micro_rows} at a time,"
        f" remat={config.batch.remat}" + ("" if config.batch.rows else " (batch.rows=0: two micro-batches planned)"),
        "",
        f"{'of one device':<28}" + "".join(f"{program.name:>16}" for program in plan.programs),
    ]
    lines += [f"{title:<28}" + "".join(f"{of(program):>16}" for program in plan.programs) for title, of in _ROWS]
    kinds = sorted({what for program in plan.programs for what in _sent(program)})
    if kinds:
        lines += ["", f"{'sent by one device':<28}" + "".join(f"{program.name:>16}" for program in plan.programs)]
    for kind in kinds:
        lines.append(f"{kind:<28}" + "".join(f"{_sent(program).get(kind, '-'):>16}" for program in plan.programs))
    lines += ["", *_verdict(plan)]
    return "\n".join(lines)


def _count(num: int) -> str:
    return f"{num / 1e9:.2f} billion" if num >= 1e9 else f"{num / 1e6:.2f} million"


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / _GIB:.2f} GiB"


_ROWS = (
    ("arguments", lambda p: _gib(p.memory.arguments)),
    ("kept beside them", lambda p: _gib(p.resident)),
    ("temporaries", lambda p: _gib(p.memory.temporaries)),
    ("results and code", lambda p: _gib(p.memory.results + p.memory.code)),
    ("peak", lambda p: _gib(p.peak)),
    ("FLOPs (busiest device)", lambda p: f"{p.flops:.3g}"),
    ("compute, at least", lambda p: f"{p.seconds.compute:.3g} s"),
    ("memory traffic, at least", lambda p: f"{p.seconds.memory:.3g} s"),
    ("network, at least", lambda p: f"{p.seconds.network:.3g} s"),
    ("attention", lambda p: f"{p.kernels} kernels" if p.kernels else "loops"),
    ("compiled in", lambda p: f"{p.memory.compile_s:.0f} s"),
)


def _sent(program: ProgramPlan) -> dict[str, str]:
    """By kind and group: how many, how many bytes. What is below a thousandth of all is left out."""
    all_bytes = sum(traffic.num_bytes for traffic in program.traffic.values())
    found = {}
    for what, traffic in program.traffic.items():
        if traffic.num_bytes * 1000 >= all_bytes > 0:
            far = "" if what.near == what.group else f", {what.group // what.near} nodes"
            found[f"{what.kind} ({what.group}{far})"] = f"{traffic.count} x, {traffic.num_bytes / 1e9:.3g} GB"
    return found


def _verdict(plan: Plan) -> list[str]:
    chip = plan.chip
    room = f"peak {_gib(plan.peak)} of the {_gib(chip.memory_bytes)} that a program may use of {chip.title}"
    if not plan.fits:
        return [f"does not fit: {room}", f"first fix to try: {first_fix(plan)}"]
    return [
        f"fits: {room}",
        f"an update of this batch takes {plan.step_seconds:.3g} s or more; at most {plan.mfu:.0%} of the peak FLOP/s"
        f" are the model's own; what binds: {plan.binds}",
    ]


def as_data(plan: Plan) -> dict[str, Any]:
    """The same numbers, in bytes, seconds and FLOPs."""
    return {
        "topology": str(plan.topology),
        "devices": plan.topology.num_devices,
        "chip": plan.chip.title,
        "mesh": {name: getattr(plan.config.mesh, name) for name in ("data", "fsdp", "tensor", "sequence")},
        "num_params": plan.num_params,
        "rows": plan.rows,
        "row_tokens": plan.config.batch.row_tokens,
        "micro_rows": plan.config.batch.micro_rows,
        "fits": plan.fits,
        "peak_bytes": plan.peak,
        "memory_bytes": plan.chip.memory_bytes,
        "binds": plan.binds,
        "step_seconds": plan.step_seconds,
        "mfu_at_most": plan.mfu,
        "first_fix": None if plan.fits else first_fix(plan),
        "programs": {program.name: _program(program) for program in plan.programs},
    }


def _program(program: ProgramPlan) -> dict[str, Any]:
    memory = program.memory
    return {
        "argument_bytes": memory.arguments,
        "resident_bytes": program.resident,
        "temporary_bytes": memory.temporaries,
        "result_bytes": memory.results,
        "code_bytes": memory.code,
        "peak_bytes": program.peak,
        "compile_seconds": round(memory.compile_s, 1),
        "flops_of_busiest_device": program.flops,
        "model_flops": program.model_flops,
        "seconds": {name: getattr(program.seconds, name) for name in ("compute", "memory", "network")},
        "binds": program.seconds.binds,
        "attention_kernels": program.kernels,
        "collectives": [
            {"kind": what.kind, "group": what.group, "near": what.near, "count": t.count, "bytes": t.num_bytes}
            for what, t in program.traffic.items()
        ],
    }
