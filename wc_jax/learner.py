"""The trainer's half of a step on real arrays: pack, score, update, and the numbers that tell how it went."""

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.batch import pack
from wc_jax.config import Config
from wc_jax.credit import Credited
from wc_jax.objective import policy_objective
from wc_jax.policy import Compute, PolicyConfig
from wc_jax.policy.table import Params
from wc_jax.row_packing import num_rows_needed
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import TrainState


class Learner:
    """Owns the compiled functions of one run; the state goes in and out."""

    def __init__(self, config: Config, policy: PolicyConfig) -> None:
        self._optim = config.optim
        self._row_tokens, self._micro_rows = config.batch.row_tokens, config.batch.micro_rows
        self._num_rows = config.batch.rows
        compute, temperature = Compute(dtype=config.model.dtype), config.agent.temperature
        self._score = make_score_fn(policy, compute=compute, temperature=temperature, micro_rows=self._micro_rows)
        self._step = make_train_step(
            policy,
            config.optim,
            objective=partial(
                policy_objective,
                clip_low=config.objective.clip_low,
                clip_high=config.objective.clip_high,
                tis_cap=config.objective.tis_cap,
            ),
            compute=compute,
            temperature=temperature,
            micro_rows=self._micro_rows,
        )

    def init(self, params: Params) -> TrainState:
        """A state at step 0; `params` stay usable (the step gives its input away)."""
        return init_state(jax.tree.map(jnp.array, params), self._optim)

    def update(self, state: TrainState, credited: Credited) -> tuple[TrainState, dict[str, Any]]:
        """One optimizer step on all rows. Log-probabilities before it are the trainer's own.

        The state that is passed in must not be used again.
        """
        batch, _ = pack(
            credited.samples,
            row_tokens=self._row_tokens,
            num_rows=self._height(credited),
            advantages=credited.advantages,
            sample_ids=credited.sample_ids,
        )
        old_logp, _ = self._score(state.params, batch)
        # Back through the host, so that the step meets arrays of one kind and compiles once.
        state, metrics = self._step(state, batch._replace(old_logp=np.asarray(old_logp)))
        return state, {
            **{name: float(value) for name, value in metrics.items()},
            "num_samples": len(credited.samples),
            "num_rows": batch.tokens.shape[0],
            "num_compiled": _num_compiled(self._score) + _num_compiled(self._step),
        }

    def _height(self, credited: Credited) -> int:
        """Rows of the batch: never fewer than before, so that nothing is compiled again without need."""
        lengths = [len(sample.tokens) for sample in credited.samples]
        needed = num_rows_needed(lengths, self._row_tokens)
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
