"""The trainer's half of a step on real arrays: pack, score, update, and the numbers that tell how it went."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.batch import pack
from wc_jax.config import Config
from wc_jax.credit import Credited
from wc_jax.policy import Compute, PolicyConfig
from wc_jax.policy.table import Params
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch, TrainState


class Learner:
    """Owns the compiled functions of one run; the state goes in and out."""

    def __init__(self, config: Config, policy: PolicyConfig) -> None:
        compute = Compute(dtype=config.model.dtype)
        temperature = config.agent.temperature
        self._config = config
        self._score = make_score_fn(policy, compute=compute, temperature=temperature)
        self._step = make_train_step(
            policy,
            config.optim,
            clip_low=config.objective.clip_low,
            clip_high=config.objective.clip_high,
            tis_cap=config.objective.tis_cap,
            compute=compute,
            temperature=temperature,
        )

    def init(self, params: Params) -> TrainState:
        """A state at step 0; `params` stay usable (the step gives its input away)."""
        return init_state(jax.tree.map(jnp.array, params), self._config.optim)

    def update(self, state: TrainState, credited: Credited) -> tuple[TrainState, dict[str, Any]]:
        """One optimizer step on all rows. Log-probabilities before it are the trainer's own.

        The state that is passed in must not be used again.
        """
        batch = self._pack(credited)
        old_logp, entropy = self._score(state.params, batch)
        batch = batch._replace(old_logp=old_logp)
        state, stats = self._step(state, batch)
        mask = np.asarray(batch.loss_mask)
        return state, {
            **measure_gap(np.asarray(old_logp), np.asarray(batch.sampler_logp), mask),
            "entropy": float(np.asarray(entropy)[mask].mean()) if mask.any() else float("nan"),
            **{name: float(value) for name, value in stats.items()},
            "num_rows": mask.shape[0],
            "num_samples": len(credited.samples),
            "trained_tokens": int(mask.sum()),
            "num_compiled": self._score._cache_size() + self._step._cache_size(),
        }

    def _pack(self, credited: Credited) -> Batch:
        batch, _ = pack(
            credited.samples,
            row_tokens=self._config.batch.row_tokens,
            num_rows=8,
            advantages=credited.advantages,
            sample_ids=credited.sample_ids,
        )
        return batch


def measure_gap(old_logp: np.ndarray, sampler_logp: np.ndarray, mask: np.ndarray) -> dict[str, float]:
    """How far the sampler's log-probabilities are from the trainer's on the same tokens, in nats.

    >>> measure_gap(np.array([-1.0, -2.0, -9.0]), np.array([-1.5, -2.0, 0.0]), np.array([True, True, False]))
    {'sampler_gap_mean': 0.25, 'sampler_gap_max': 0.5}
    """
    gap = np.abs(old_logp - sampler_logp)[mask & np.isfinite(sampler_logp)]
    if gap.size == 0:
        return {"sampler_gap_mean": float("nan"), "sampler_gap_max": float("nan")}
    return {"sampler_gap_mean": float(gap.mean()), "sampler_gap_max": float(gap.max())}
