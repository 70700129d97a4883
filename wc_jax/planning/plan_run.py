"""One plan: a config's two programs on a topology, whether they fit, how fast they could be, what to change first."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import ConfigError
from wc_jax.config import Config
from wc_jax.planning.chips import Chip
from wc_jax.planning.collectives import Collective, Traffic, collectives
from wc_jax.planning.compiling import Compiled, bytes_on_device, compile_for, score_arguments, step_arguments
from wc_jax.planning.estimate import Seconds, seconds
from wc_jax.planning.topology import Topology, devices_of
from wc_jax.planning.work import Cut, busiest_share, bytes_moved, executed_flops, model_flops, row_work
from wc_jax.policy import PolicyConfig, from_hf_config, num_params, weight_table
from wc_jax.programs import Programs, checked_mesh, make_programs


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program on one device."""

    name: str
    memory: Compiled
    resident: int
    """Bytes that the run keeps on the device meanwhile, beside the program's own arguments."""
    flops: float
    """Executed on the busiest device, in one run over the whole batch."""
    model_flops: float
    """Of all devices, without what is computed again."""
    traffic: dict[Collective, Traffic]
    seconds: Seconds
    runs: int
    """In one update."""

    @property
    def peak(self) -> int:
        """Bytes on the device while it runs."""
        return self.memory.peak + self.resident


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `python -m wc_jax.plan` prints."""

    topology: Topology
    config: Config
    policy: PolicyConfig
    num_params: int
    rows: int
    """Of the planned batch."""
    programs: tuple[ProgramPlan, ...]

    @property
    def chip(self) -> Chip:
        """What the topology is made of."""
        return self.topology.chip

    @property
    def peak(self) -> int:
        """Bytes on one device, at the worst moment."""
        return max(program.peak for program in self.programs)

    @property
    def fits(self) -> bool:
        """Whether that is no more than the chip has."""
        return self.peak <= self.chip.memory_bytes and all(p.memory.module is not None for p in self.programs)

    @property
    def step_seconds(self) -> float:
        """One update takes no less: scoring, then training, on the planned batch."""
        return sum(program.runs * program.seconds.least for program in self.programs)

    @property
    def mfu(self) -> float:
        """At most: the model's own FLOPs over what the devices could do in that time."""
        useful = sum(program.runs * program.model_flops for program in self.programs)
        return useful / (self.step_seconds * self.topology.num_devices * self.chip.flops)

    @property
    def binds(self) -> str:
        """What to look at first: memory size where it does not fit, else what takes longest."""
        if not self.fits:
            return "memory size"
        longest = max(self.programs, key=lambda program: program.runs * program.seconds.least)
        return {"compute": "compute", "memory": "memory traffic", "network": "network"}[longest.seconds.binds]


def read_shape(config: Config) -> PolicyConfig:
    """The policy's shape from the folder's config.json; no other file of the folder is read. Raises `ConfigError`."""
    path = Path(config.model.folder) / "config.json"
    try:
        policy = from_hf_config(json.loads(path.read_text(encoding="utf-8")))
        policy = dataclasses.replace(policy, lora=config.model.lora)
        weight_table(policy)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.folder={config.model.folder}: {error}; a plan needs the folder's config.json and no weights"
        ) from error
    return policy


def planned_rows(config: Config) -> int:
    """Rows of the batch that is planned: the config's, or two micro-batches where it leaves them to the first step."""
    return config.batch.rows or 2 * config.batch.micro_rows


def plan_run(config: Config, topology: Topology) -> Plan:
    """Compiles both programs. Raises `ConfigError`."""
    policy = read_shape(config)
    if config.mesh.num_devices != topology.num_devices:
        raise ConfigError(
            f"mesh.* takes {config.mesh.num_devices} devices, {topology} has {topology.num_devices}; write for example"
            f" mesh.fsdp={max(1, topology.num_devices // (config.mesh.num_devices // config.mesh.fsdp))}"
        )
    devices = devices_of(topology)
    programs = make_programs(config, policy, checked_mesh(config, policy, devices=devices))
    rows = planned_rows(config)
    score_args = score_arguments(config, policy, programs, devices[0], rows)
    step_args = step_arguments(config, policy, programs, devices[0], rows)
    state, weights = bytes_on_device(step_args[0]), bytes_on_device(score_args[0])
    reference = weights if config.objective.kl_coef > 0 else 0
    plans = (
        # While it scores, the run keeps the optimizer's state and, with one, the reference policy.
        _plan("score", programs.score, score_args, state - weights + reference, config, policy, programs, topology),
        _plan("train", programs.step, step_args, reference, config, policy, programs, topology),
    )
    return Plan(
        topology=topology,
        config=config,
        policy=policy,
        num_params=num_params(policy),
        rows=rows,
        programs=plans,
    )


def _plan(
    name: str,
    function: Any,
    arguments: tuple[Any, ...],
    resident: int,
    config: Config,
    policy: PolicyConfig,
    programs: Programs,
    topology: Topology,
) -> ProgramPlan:
    trains = name == "train"
    compiled = compile_for(function, arguments, own=bytes_on_device(arguments))
    mesh, batch, rows = config.mesh, config.batch, planned_rows(config)
    work = row_work(policy, batch.row_tokens)
    spent = executed_flops(work, trains=trains, remat=batch.remat, has_adapters=policy.lora is not None)
    late = spent - executed_flops(
        dataclasses.replace(work, attention=0.0), trains=trains, remat=batch.remat, has_adapters=policy.lora is not None
    )
    busiest = (spent + late * (busiest_share(mesh.sequence) - 1.0)) * rows / topology.num_devices
    found = {}
    if compiled.module is not None:
        found = collectives(compiled.module, node_size=topology.node_size)
    moved = bytes_moved(
        policy,
        Cut(
            tokens=batch.micro_rows * batch.row_tokens // (mesh.data * mesh.fsdp * mesh.sequence),
            tensor=mesh.tensor,
            held=_held(policy, programs.trained, mesh.num_devices // mesh.data),
        ),
        trains=trains,
        remat=batch.remat,
        micro_batches=rows // batch.micro_rows,
        value_bytes=4 if config.model.dtype == "float32" else 2,
    )
    return ProgramPlan(
        name=name,
        memory=compiled,
        resident=resident,
        flops=busiest,
        model_flops=model_flops(work, trains=trains) * rows,
        traffic=found,
        seconds=seconds(topology.chip, flops=busiest, num_bytes=moved, found=found),
        runs=2 if name == "score" and config.objective.kl_coef > 0 else 1,
    )


def _held(policy: PolicyConfig, trained: Sequence[str] | frozenset[str], parts: int) -> int:
    return sum(w.num_elements for name, w in weight_table(policy).items() if name in trained) // parts
