"""The real programs of a config, compiled for devices that are not there; no weight is read and nothing is run."""

import re
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, SingleDeviceSharding

from wc_jax.config import Config
from wc_jax.planning.hlo import Module, read_module
from wc_jax.policy import PolicyConfig, weight_table
from wc_jax.programs import Programs
from wc_jax.sharding import batch_sharding, param_shardings, state_shardings
from wc_jax.step import init_state
from wc_jax.types import Batch, TrainState


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One program, as its compiler describes it; bytes of one device."""

    arguments: int
    temporaries: int
    """Above what arguments and results take."""
    results: int
    """That do not lie where an argument lay."""
    code: int
    compile_s: float
    module: Module | None
    """None where the compiler gave up for lack of memory, or was not asked because of `too_large`."""

    @property
    def peak(self) -> int:
        """What the device must hold while the program runs."""
        return self.arguments + self.temporaries + self.results + self.code


def compile_for(function: Any, arguments: tuple[Any, ...], *, own: int) -> Compiled:
    """`function` is jitted. `own`: bytes of the arguments on one device, for when the compiler gives no answer."""
    started = time.monotonic()
    lowered = function.lower(*arguments)
    try:
        compiled = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        needed = memory_needed(str(error))
        if needed is None:
            raise
        return Compiled(
            arguments=own, temporaries=needed, results=0, code=0, compile_s=time.monotonic() - started, module=None
        )
    seconds = time.monotonic() - started
    memory = compiled.memory_analysis()
    return Compiled(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        results=memory.output_size_in_bytes - memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        compile_s=seconds,
        module=read_module(compiled.as_text()),
    )


def too_large(own: int, sums: int) -> Compiled:
    """A program that need not be compiled to know that it does not fit: its arguments and sums alone are too much."""
    return Compiled(arguments=own, temporaries=sums, results=0, code=0, compile_s=0.0, module=None)


def memory_needed(message: str) -> int | None:
    """Bytes of temporaries that a TPU's compiler asked for in vain; None where it failed for another reason.

    >>> memory_needed("RESOURCE_EXHAUSTED: ... required for HLO temporaries (1.50G) exceeds available HBM (0.50G).")
    1610612736
    """
    found = re.search(r"HLO temporaries \(([\d.]+)([KMG])\) exceeds|Used ([\d.]+)([KMG]) of", message)
    if found is None:
        return None
    number, unit = [group for group in found.groups() if group]
    return int(float(number) * 1024 ** ("KMG".index(unit) + 1))


def score_arguments(config: Config, policy: PolicyConfig, programs: Programs, device: Any, rows: int) -> tuple:
    """Of the scoring program: shapes, dtypes and places, no arrays."""
    return _params(config, policy, programs, device), _batch(config, programs, device, rows, is_scored=False)


def step_arguments(config: Config, policy: PolicyConfig, programs: Programs, device: Any, rows: int) -> tuple:
    """Of the training program."""
    params = _params(config, policy, programs, device)
    mesh = programs.compute.mesh
    state: TrainState = jax.eval_shape(lambda p: init_state(p, config.optim, programs.trained), params)
    places = (
        state_shardings(state, policy, mesh) if mesh else jax.tree.map(lambda _: SingleDeviceSharding(device), state)
    )
    state = jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), state, places)
    return state, _batch(config, programs, device, rows, is_scored=True)


def _params(config: Config, policy: PolicyConfig, programs: Programs, device: Any) -> dict[str, jax.ShapeDtypeStruct]:
    mesh, model = programs.compute.mesh, config.model
    places = param_shardings(policy, mesh) if mesh else None
    return {
        name: jax.ShapeDtypeStruct(
            weight.shape,
            jnp.dtype(model.master_dtype if name in programs.trained else model.frozen_dtype),
            sharding=places[name] if places else SingleDeviceSharding(device),
        )
        for name, weight in weight_table(policy).items()
    }


def _batch(config: Config, programs: Programs, device: Any, rows: int, *, is_scored: bool) -> Batch:
    """Rows of text. A batch that was scored holds old log-probabilities, and the reference's where one is used."""
    shape, mesh = (rows, config.batch.row_tokens), programs.compute.mesh
    place = batch_sharding(shape, mesh) if mesh else SingleDeviceSharding(device)

    def array(dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=place)

    whole, real = array(jnp.int32), array(jnp.float32)
    return Batch(
        tokens=whole,
        positions=whole,
        visible_until=whole,
        predecessor=whole,
        loss_mask=array(jnp.bool_),
        token_weight=real,
        count_weight=real,
        advantage=real,
        sampler_logp=real,
        old_logp=real,
        ref_logp=real if is_scored and config.objective.kl_coef > 0 else None,
    )


def bytes_on_device(arguments: Any) -> int:
    """Of a tree of placed shapes, on the device that holds most."""

    def of(x: jax.ShapeDtypeStruct) -> int:
        sharding = x.sharding
        shape = sharding.shard_shape(x.shape) if isinstance(sharding, NamedSharding) else x.shape
        count = 1
        for size in shape:
            count *= size
        return count * jnp.dtype(x.dtype).itemsize

    return sum(of(x) for x in jax.tree.leaves(arguments))
