"""The compiled functions of a run, made from its config: what the learner runs and the planner compiles."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax
from jax.sharding import Mesh

from configs import ConfigError
from wc_jax.config import Config, ObjectiveConfig
from wc_jax.mesh import make_mesh
from wc_jax.objective import policy_objective
from wc_jax.policy import Compute, PolicyConfig, trained_names
from wc_jax.sharding import param_shardings
from wc_jax.step import Objective, make_score_fn, make_train_step


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Both functions of a step, and what of the config they were made with."""

    score: Callable
    """See `make_score_fn`."""
    step: Callable
    """See `make_train_step`."""
    compute: Compute
    trained: frozenset[str]
    """Names of the weights that an update moves."""


def make_programs(config: Config, policy: PolicyConfig, mesh: Mesh | None) -> Programs:
    """Compiles nothing yet. `mesh`: as `checked_mesh` gives it."""
    compute = Compute(dtype=config.model.dtype, remat=config.batch.remat, mesh=mesh)
    objective = config.objective
    trained = trained_names(policy, vision=config.model.train_vision, mtp=objective.mtp_coef > 0)
    temperature, micro_rows = config.agent.temperature, config.batch.micro_rows
    step = make_train_step(
        policy,
        config.optim,
        objective=_objective(objective),
        trained=trained,
        mtp_coef=objective.mtp_coef,
        trains_without_advantage=objective.kl_coef > 0 or objective.entropy_coef > 0,
        compute=compute,
        temperature=temperature,
        micro_rows=micro_rows,
    )
    score = make_score_fn(policy, compute=compute, temperature=temperature, micro_rows=micro_rows)
    return Programs(score=score, step=step, compute=compute, trained=trained)


def _objective(config: ObjectiveConfig) -> Objective:
    return partial(
        policy_objective,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        tis_cap=config.tis_cap,
        dual_clip=config.dual_clip,
        kl_coef=config.kl_coef,
        kl_estimator=config.kl_estimator,
        entropy_coef=config.entropy_coef,
    )


def checked_mesh(
    config: Config, policy: PolicyConfig, *, num_processes: int = 1, devices: Sequence[jax.Device] | None = None
) -> Mesh | None:
    """None for one device. Raises `ConfigError`, naming the setting, where devices, rows and weights do not fit.

    `devices`: those to use; None is all of this machine's.
    """
    shape = config.mesh
    if shape.num_devices == 1 and num_processes == 1:
        return None
    holders = shape.data * shape.fsdp
    if num_processes > 1 and shape.num_devices != jax.device_count():
        raise ConfigError(
            f"{num_processes} processes have {jax.device_count()} devices, but mesh.* takes {shape.num_devices};"
            f" write for example mesh.fsdp={jax.device_count()}"
        )
    if holders % num_processes:
        raise ConfigError(
            f"mesh.data * mesh.fsdp = {holders} must be a multiple of the {num_processes} processes:"
            " each process fills rows of its own"
        )
    if config.batch.micro_rows % holders:
        raise ConfigError(
            f"batch.micro_rows={config.batch.micro_rows} must be a multiple of mesh.data * mesh.fsdp = {holders}"
        )
    if config.batch.row_tokens % shape.sequence:
        raise ConfigError(
            f"batch.row_tokens={config.batch.row_tokens} must be a multiple of mesh.sequence={shape.sequence}"
        )
    try:
        mesh = make_mesh(shape, devices)
        param_shardings(policy, mesh)
    except ValueError as error:
        raise ConfigError(f"mesh.*: {error}") from error
    return mesh
