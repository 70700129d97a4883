"""The trainer's half of a step on real arrays: pack, score, update, and the numbers that tell how it went."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from wc_jax.aggregation import sample_weights
from wc_jax.batch import fill, plan, trained_tokens
from wc_jax.config import Config
from wc_jax.credit import Credited
from wc_jax.image_rows import ImageSpace, grown_space, space_needed
from wc_jax.multihost import introduce
from wc_jax.placing import Source, place, whole
from wc_jax.policy import PolicyConfig
from wc_jax.policy.weight import Params
from wc_jax.processes import ALONE, Processes
from wc_jax.programs import checked_mesh, make_programs
from wc_jax.sharding import batch_sharding, param_shardings, state_shardings
from wc_jax.step import init_state
from wc_jax.types import AnyArray, Batch, TrainState


class Learner:
    """Owns the compiled functions of one run; the state goes in and out.

    Of several processes, each packs its own samples into its own part of the batch. All must make the same
    calls; the state, the update and its numbers are those of the whole batch.
    """

    def __init__(self, config: Config, policy: PolicyConfig, processes: Processes = ALONE) -> None:
        """Compiles nothing yet. Raises `ConfigError` when the mesh does not fit."""
        self._policy, self._optim, self._processes = policy, config.optim, processes
        self._row_tokens, self._micro_rows = config.batch.row_tokens, config.batch.micro_rows
        self._num_rows, self._share = config.batch.rows, config.batch.share_prefixes
        self._mesh = checked_mesh(config, policy, num_processes=processes.count)
        programs = make_programs(config, policy, self._mesh)
        self._score, self._step, self._trained = programs.score, programs.step, programs.trained
        self._align = programs.compute.delta_chunk if policy.is_hybrid else 1
        self._master_dtype = jnp.dtype(config.model.master_dtype)
        self._frozen_dtype = jnp.dtype(config.model.frozen_dtype)
        self._aggregation, self._constant = config.objective.aggregation, config.objective.constant_length
        self._needs_reference = config.objective.kl_coef > 0
        self._reference: Params | None = None
        self._space: ImageSpace | None = None

    def init(self, params: Params | Source) -> TrainState:
        """A state at step 0. `params`, the same in every process: whole weights, which stay usable (the step gives its
        input away), or what reads them piece by piece; then the host never holds them all.
        """
        if self._needs_reference:
            self._reference = self._on_devices(params)
        placed = self._on_devices(params)
        if self._mesh is None:
            return init_state(placed, self._optim, self._trained)
        start = partial(init_state, optim=self._optim, trained=self._trained)
        places = state_shardings(jax.eval_shape(start, placed), self._policy, self._mesh)
        return jax.jit(start, donate_argnums=0, out_shardings=places)(placed)

    def _on_devices(self, params: Params | Source) -> Params:
        """A copy, cut as the mesh wants it; weights that are not trained in the dtype that is meant for them."""
        shardings = None
        if self._mesh is not None:
            introduce(self._mesh, self._processes)
            shardings = param_shardings(self._policy, self._mesh)
        pieces = params() if callable(params) else whole(params)
        return place(pieces, self._policy, shardings, self._kept_in)

    def _kept_in(self, name: str) -> np.dtype:
        return self._master_dtype if name in self._trained else self._frozen_dtype

    def on_host(self, state: TrainState) -> Params:
        """The parameters, whole, where this process can read them."""
        if self._processes.count == 1:
            return state.params
        return dict(multihost_utils.process_allgather(state.params, tiled=True))

    def update(self, state: TrainState, credited: Credited) -> tuple[TrainState, dict[str, Any]]:
        """One optimizer step on all rows. Log-probabilities before it are the trainer's own.

        The state that is passed in must not be used again.
        """
        layout = plan(
            credited.samples,
            row_tokens=self._row_tokens,
            share=self._share,
            align=self._align,
            sample_ids=credited.sample_ids,
        )
        images = space_needed(layout, credited.samples)
        num_patches = 0 if images is None else images.num_patches
        mine = (layout.num_rows, num_patches, len(credited.samples), layout.num_tokens, layout.num_computed)
        all_rows, all_patches, *others = zip(*self._processes.gather(mine, what="rows"), strict=True)
        self._make_room(max(all_patches))
        num_rows, (num_samples, num_tokens, num_computed) = self._height(max(all_rows)), map(sum, others)
        weights, count_weights = self._weights(credited)
        packed = fill(
            layout,
            credited.samples,
            num_rows=num_rows // self._processes.count,
            space=self._space,
            advantages=credited.advantages,
            weights=weights,
            count_weights=count_weights,
        )
        batch = self._placed(packed)
        old_logp, _ = self._score(state.params, batch)
        scored = batch._replace(old_logp=self._like_batch(old_logp))
        if self._reference is not None:
            scored = scored._replace(ref_logp=self._like_batch(self._score(self._reference, batch)[0]))
        state, metrics = self._step(state, scored)
        return state, {
            **{name: float(value) for name, value in metrics.items()},
            "num_samples": num_samples,
            "num_rows": num_rows,
            "shared_share": (num_tokens - num_computed) / max(num_tokens, 1),
            "padding_share": 1.0 - num_computed / (num_rows * self._row_tokens),
            "num_compiled": _num_compiled(self._score) + _num_compiled(self._step),
        }

    def _weights(self, credited: Credited) -> tuple[list[float], list[float]]:
        """Of the loss and of what it is divided by, a number a sample."""
        # Filled up, so that the number of samples is no new shape to compile for.
        size = round_up(max(len(credited.samples), max(credited.rollouts, default=0) + 1), 256)
        trained, rollouts = np.zeros(size, np.float32), np.zeros(size, np.int32)
        trained[: len(credited.samples)] = [trained_tokens(sample).sum() for sample in credited.samples]
        rollouts[: len(credited.samples)] = credited.rollouts
        weights, count_weights = sample_weights(
            trained,
            rollouts,
            num_rollouts=size,
            aggregation=self._aggregation,
            constant=self._constant or 1.0,
        )
        num_samples = len(credited.samples)
        return np.asarray(weights)[:num_samples].tolist(), np.asarray(count_weights)[:num_samples].tolist()

    def _like_batch(self, logp: jax.Array) -> AnyArray:
        """On one device back through the host, so that the step meets arrays of one kind and compiles once."""
        return np.asarray(logp) if self._mesh is None else logp

    def _placed(self, mine: Batch) -> Batch:
        """The batch of which `mine` are this process's rows."""
        if self._mesh is None:
            return mine
        num_rows = mine.tokens.shape[0] * self._processes.count
        sharding = batch_sharding((num_rows, mine.tokens.shape[1]), self._mesh)

        def place(x: AnyArray) -> jax.Array:
            return jax.make_array_from_process_local_data(sharding, x, (num_rows, *x.shape[1:]))

        return jax.tree.map(place, mine)

    def _make_room(self, num_patches: int) -> None:
        """For so many patches of images in a row, in every process; never less than before, as for rows."""
        if num_patches:
            assert self._policy.vision is not None, "images for a policy without a vision tower"
            parts = 1 if self._mesh is None else self._mesh.shape["sequence"]
            self._space = grown_space(self._space, num_patches, self._policy.vision, num_parts=parts)

    def _height(self, most_rows: int) -> int:
        """Rows of the batch. The process that needs most rows decides; others, and one without any valid sample, pad.

        Never fewer than before, so that nothing is compiled again without need.
        """
        needed = most_rows * self._processes.count
        if needed > self._num_rows:
            self._num_rows = round_up(needed * 1.25, self._micro_rows)
        self._num_rows = max(self._micro_rows, self._num_rows)
        return self._num_rows


def round_up(value: float, multiple: int) -> int:
    """The least multiple that is not below.

    >>> round_up(9.5, 4), round_up(8, 4)
    (12, 8)
    """
    return math.ceil(value / multiple) * multiple


def _num_compiled(function: Any) -> int:
    """How many shapes a jitted function was compiled for."""
    return int(function._cache_size())
