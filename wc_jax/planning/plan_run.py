"""One plan: a config's two programs, compiled for a topology, and what they take there."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs import ConfigError
from wc_jax.config import Config
from wc_jax.planning.collectives import collectives
from wc_jax.planning.compiling import (
    bytes_on_device,
    compile_for,
    score_arguments,
    step_arguments,
    too_large,
)
from wc_jax.planning.estimate import seconds
from wc_jax.planning.hlo import count_kernels
from wc_jax.planning.planned import Plan, ProgramPlan
from wc_jax.planning.topology import Topology, devices_of
from wc_jax.planning.work import Cut, busiest_share, bytes_moved, executed_flops, model_flops, row_work
from wc_jax.policy import PolicyConfig, from_hf_config, num_params, weight_table
from wc_jax.programs import Programs, checked_mesh, make_programs


def read_shape(config: Config) -> PolicyConfig:
    """The policy's shape from the folder's config.json; no other file of the folder is read. Raises `ConfigError`."""
    path = Path(config.model.folder) / "config.json"
    try:
        policy = from_hf_config(json.loads(path.read_text(encoding="utf-8")))
        policy = dataclasses.replace(policy, lora=config.model.lora)
        weight_table(policy)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.folder={config.model.folder}: {error}; a plan needs the folder's config.json and no weights: write"
            " model.folder=configs/shapes/NAME for a shape that ships with the project"
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
    held = _held(policy, programs, config.mesh.num_devices // config.mesh.data)
    # Float32 gradients: summed over micro-batches, and those of one. Without them there is no update.
    is_hopeless = state + reference + 2 * 4 * held > topology.chip.memory_bytes
    planner = _Planner(config=config, policy=policy, topology=topology, held=held, is_hopeless=is_hopeless)
    return Plan(
        topology=topology,
        config=config,
        policy=policy,
        num_params=num_params(policy),
        rows=rows,
        programs=(
            # While it scores, the run keeps the optimizer's state and, with one, the reference policy.
            planner.plan("score", programs.score, score_args, resident=state - weights + reference),
            planner.plan("train", programs.step, step_args, resident=reference),
        ),
    )


def _held(policy: PolicyConfig, programs: Programs, parts: int) -> int:
    """Scalars of trained weights on one device."""
    return sum(w.num_elements for name, w in weight_table(policy).items() if name in programs.trained) // parts


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """What both programs of a plan share."""

    config: Config
    policy: PolicyConfig
    topology: Topology
    held: int
    is_hopeless: bool
    """Weights, moments and gradients alone are too much: nothing need be compiled to know."""

    def plan(self, name: str, function: Any, arguments: tuple[Any, ...], *, resident: int) -> ProgramPlan:
        trains = name == "train"
        own, rows = bytes_on_device(arguments), planned_rows(self.config)
        if self.is_hopeless:
            compiled = too_large(own, 2 * 4 * self.held if trains else 0)
        else:
            compiled = compile_for(function, arguments, own=own)
        module = compiled.module
        found = {} if module is None else collectives(module, node_size=self.topology.node_size)
        busiest = self._busiest_flops(trains)
        work = row_work(self.policy, self.config.batch.row_tokens)
        return ProgramPlan(
            name=name,
            memory=compiled,
            resident=resident,
            flops=busiest,
            model_flops=model_flops(work, trains=trains) * rows,
            traffic=found,
            seconds=seconds(self.topology.chip, flops=busiest, num_bytes=self._bytes_moved(trains), found=found),
            kernels=0 if module is None else count_kernels(module, "attention"),
            runs=2 if not trains and self.config.objective.kl_coef > 0 else 1,
        )

    def _busiest_flops(self, trains: bool) -> float:
        batch = self.config.batch
        work = row_work(self.policy, batch.row_tokens)

        def spent(attention: float) -> float:
            changed = dataclasses.replace(work, attention=attention)
            has_adapters = self.policy.lora is not None
            return executed_flops(changed, trains=trains, remat=batch.remat, has_adapters=has_adapters)

        # The device with a row's end has more than its part of the attention.
        late = work.attention * busiest_share(self.config.mesh.sequence)
        return spent(late) * planned_rows(self.config) / self.topology.num_devices

    def _bytes_moved(self, trains: bool) -> float:
        mesh, batch = self.config.mesh, self.config.batch
        tokens = batch.micro_rows * batch.row_tokens // (mesh.data * mesh.fsdp * mesh.sequence)
        return bytes_moved(
            self.policy,
            Cut(tokens=tokens, tensor=mesh.tensor, held=self.held),
            trains=trains,
            remat=batch.remat,
            micro_batches=planned_rows(self.config) // batch.micro_rows,
            value_bytes=4 if self.config.model.dtype == "float32" else 2,
        )
