"""New weights to the engine, and the proof that it uses them; without proof the run stops.

An engine that goes on with old weights, an old head or old cached prefixes raises no error of its own and
makes rewards drift for days. So after each push three things must hold: the engine reports our version; an
answer it samples for the canary prompt carries that version and met no cached prefix; and the engine's
log-probabilities of that answer are the trainer's own.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rollout.engine import Engine, EngineError, Request
from rollout.types import Completion
from wc_jax.conversion import Dtypes, hf_specs, to_hf
from wc_jax.logprobs import token_logprobs
from wc_jax.policy import Compute, PolicyConfig, hidden_states, unembed
from wc_jax.safetensors_files import WeightsError, in_file_order, write_file

Params = Mapping[str, jax.Array]

Score = Callable[[Params, Sequence[int], Sequence[int]], np.ndarray]
"""(params, prompt ids, answer ids) -> the trainer's log-probability of each answer id, at temperature 1."""


_PLAIN = Compute()


class PublishError(RuntimeError):
    """The engine could not be shown to use the trainer's weights. Stop the run."""


class EngineControl(Engine, Protocol):
    """An engine whose weights can be replaced."""

    def publish(self, path: Path, version: int) -> None:
        """Load the safetensors file and drop all cached prefixes. Raises `EngineError`."""

    def version(self) -> int:
        """The version in use, as the engine reports it."""


@dataclass(frozen=True, kw_only=True)
class Canary:
    """The prompt whose answer is compared, and how close it must be."""

    score: Score
    prompt_ids: tuple[int, ...]
    """Over two cache blocks (64 tokens) long, so that a stale prefix would be hit; and no prefix of real work."""
    num_tokens: int = 16
    """Length of the sampled answer."""
    tolerance: float = 1e-3
    """Largest difference in nats. 1e-3 is ample for float32; bfloat16 engines differ by 0.3."""


def canary_prompt(vocab_size: int, *, num_tokens: int = 80, seed: int = 0) -> tuple[int, ...]:
    """Random ids: they share no cached prefix with anything the agent asks.

    >>> len(canary_prompt(512)), canary_prompt(512) == canary_prompt(512)
    (80, True)
    """
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, vocab_size, num_tokens))


def policy_score(config: PolicyConfig, *, compute: Compute = _PLAIN) -> Score:
    """The trainer's own forward function as a `Score`. Compiled once for each length of prompt and answer."""

    @jax.jit
    def all_logp(params: Params, tokens: jax.Array) -> jax.Array:
        states = hidden_states(dict(params), config, tokens[None], compute=compute)
        logp, _ = token_logprobs(states[0, :-1], unembed(dict(params), config), tokens[1:])
        return logp

    def score(params: Params, prompt_ids: Sequence[int], answer_ids: Sequence[int]) -> np.ndarray:
        tokens = jnp.asarray([*prompt_ids, *answer_ids], jnp.int32)
        return np.asarray(all_logp(params, tokens))[-len(answer_ids) :]

    return score


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
