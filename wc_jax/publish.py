"""New weights to the engine, and the proof that it uses them; without proof the run stops.

An engine that goes on with old weights, an old head or old cached prefixes raises no error of its own and
makes rewards drift for days. So after each push three things must hold: the engine reports our version; an
answer it samples for the canary prompt carries that version and met no cached prefix; and the engine's
log-probabilities of that answer are the trainer's own.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from rollout.engine import Engine, EngineError, Request
from rollout.types import Completion
from wc_jax.canary import Canary
from wc_jax.conversion import Dtypes, hf_specs, to_hf
from wc_jax.policy import PolicyConfig
from wc_jax.safetensors_files import WeightsError, in_file_order, write_file

Params = Mapping[str, jax.Array]


class PublishError(RuntimeError):
    """The engine could not be shown to use the trainer's weights. Stop the run."""


class EngineControl(Engine, Protocol):
    """An engine whose weights can be replaced."""

    def publish(self, path: Path, version: int) -> None:
        """Load the safetensors file and drop all cached prefixes. Raises `EngineError`."""

    def version(self) -> int:
        """The version in use, as the engine reports it."""


class Publisher:
    """Call it with the parameters and their version: at step 0, after each step, after a restart or resume.

    publish = Publisher(engine, config, server.weights_dir, canary=canary)
    publish(params, 0)      # -> {"sync/canary_gap": 2e-5, "sync/seconds": 0.4}
    """

    def __init__(
        self,
        engine: EngineControl,
        config: PolicyConfig,
        folder: Path,
        *,
        canary: Canary | None,
        dtype: Dtypes = "float32",
    ) -> None:
        """`folder`: where the weights' file is put, in memory if possible. `canary`: None for a scripted engine.

        The file is written tensor by tensor: besides it, a push needs host memory for a few tensors.
        """
        self._engine, self._config, self._folder = engine, config, folder
        self._canary, self._dtype = canary, dtype

    def __call__(self, params: Params, version: int) -> dict[str, float]:
        """Push and prove; returns what was measured. Raises `PublishError`."""
        start = time.perf_counter()
        path = self._folder / f"step-{version}.safetensors"
        try:
            specs = in_file_order(hf_specs(self._config, dtype=self._dtype))
            write_file(path, specs, to_hf(params, self._config, dtype=self._dtype, keys=list(specs)))
            self._engine.publish(path, version)
            reported = self._engine.version()
        except (OSError, WeightsError) as error:
            raise PublishError(f"could not write the weights to {path}: {error}") from error
        except EngineError as error:
            raise PublishError(f"the engine did not take the weights of step {version}: {error}") from error
        finally:
            path.unlink(missing_ok=True)
        if reported != version:
            raise PublishError(f"the engine reports version {reported} after version {version} was pushed")
        gap = 0.0 if self._canary is None else self._prove(self._canary, params, version)
        return {"sync/canary_gap": gap, "sync/seconds": time.perf_counter() - start}

    def _prove(self, canary: Canary, params: Params, version: int) -> float:
        try:
            answer = self._engine.generate(
                Request(
                    token_ids=canary.prompt_ids,
                    max_tokens=canary.num_tokens,
                    temperature=1.0,
                    seed=0,
                    stop_token_ids=(),
                    rollout_id="canary",
                    turn=version,
                    pictures=canary.pictures,
                )
            )
        except EngineError as error:
            raise PublishError(f"the engine did not answer the canary after version {version}: {error}") from error
        _check_provenance(answer, version)
        trainer = np.asarray(canary.score(params, canary.prompt_ids, answer.token_ids), np.float64)
        gap = float(np.abs(trainer - np.asarray(answer.logp)).max())
        if not gap <= canary.tolerance:  # NaN fails too.
            raise PublishError(
                f"after version {version} the engine's log-probabilities are up to {gap:.3g} nats from the"
                f" trainer's (allowed: {canary.tolerance:g}): it does not use the trainer's weights"
            )
        return gap


def _check_provenance(answer: Completion, version: int) -> None:
    if set(answer.policy_versions) != {version}:
        raise PublishError(f"the canary's tokens carry versions {sorted(set(answer.policy_versions))}, not {version}")
    if answer.num_cached_tokens:
        raise PublishError(
            f"the canary met {answer.num_cached_tokens} cached tokens right after version {version} was pushed:"
            " the prefix cache of the old weights survived"
        )
