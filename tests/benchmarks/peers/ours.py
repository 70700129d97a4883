"""Our side of the update benchmark: packed rows, the score function and the train step as a run uses them."""

from typing import Any

import jax
import numpy as np

from rollout.types import Sample
from tests.benchmarks.peers.turns import Measures, serve
from tests.benchmarks.peers.work import LEARNING_RATE, MAX_GRAD_NORM, Work, load_work
from wc_jax.batch import pack, plan
from wc_jax.host_memory import keep_large_buffers
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch
from wc_jax.weights import load_policy


def samples_of(work: Work) -> list[Sample]:
    return [
        Sample(
            tokens=tokens,
            loss_mask=np.arange(len(tokens)) >= prompt,
            sampler_logp=np.full(len(tokens), np.nan, np.float32),
            node_ids=np.zeros(len(tokens), np.int32),
            segment=0,
            num_trained=len(tokens) - prompt,
        )
        for tokens, prompt in zip(work.tokens, work.prompts, strict=True)
    ]


def best_row_tokens(work: Work) -> int:
    """The length of rows, from the longest sample's to twice that, that leaves least to padding.

    So few samples leave holes in rows of any one length; a run has hundreds of them, and hardly any.
    """
    samples, longest = samples_of(work), max(len(tokens) for tokens in work.tokens)
    lengths = range(-(-longest // 64) * 64, 2 * longest + 1, 64)
    return min(lengths, key=lambda length: length * plan(samples, row_tokens=length).num_rows)


def pack_work(work: Work, row_tokens: int) -> Batch:
    """Each sample weighs the same, as in GRPO's first form, which is what both peers share."""
    samples = samples_of(work)
    weights = [1.0 / sample.num_trained for sample in samples]
    return pack(samples, row_tokens=row_tokens, advantages=work.advantages, weights=weights)[0]


class Ours:
    """The policy, its optimizer, and the compiled functions."""

    def __init__(self, settings: dict[str, Any]) -> None:
        keep_large_buffers()
        config, params = load_policy(settings["model"])
        optim = OptimConfig(lr=LEARNING_RATE, max_grad_norm=MAX_GRAD_NORM)
        options = {"compute": Compute(unroll=settings["unroll"])}
        options |= {"chunk": settings["chunk"], "micro_rows": settings["micro_rows"]}
        self._score, self._step = make_score_fn(config, **options), make_train_step(config, optim, **options)
        self._state = init_state(params, optim)
        self._works = {name: load_work(path) for name, path in settings["works"].items()}
        self._row_tokens = {name: best_row_tokens(work) for name, work in self._works.items()}

    def warm_up(self, work: str) -> None:
        batch = pack_work(self._works[work], self._row_tokens[work])
        batch.loss_mask[1:] = False
        # A batch without any advantage is skipped.
        self._run(batch._replace(advantage=np.zeros_like(batch.advantage)))

    def update(self, work: str) -> Measures:
        batch = pack_work(self._works[work], self._row_tokens[work])
        old_logp, metrics = self._run(batch)
        logp = float(np.sum(old_logp * batch.token_weight) / len(self._works[work].tokens))
        return {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"]), "logp": logp}

    def _run(self, batch: Batch) -> tuple[np.ndarray, dict[str, jax.Array]]:
        old_logp, _ = self._score(self._state.params, batch)
        self._state, metrics = self._step(self._state, batch._replace(old_logp=old_logp))
        return np.asarray(old_logp), jax.block_until_ready(metrics)


if __name__ == "__main__":
    serve(Ours)
