"""Our side of the update benchmark: packed rows, the score function and the train step as a run uses them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rollout.types import Sample
from tests.benchmarks.peers.turns import Measures, serve
from tests.benchmarks.peers.work import LEARNING_RATE, MAX_GRAD_NORM, Work, load_work
from wc_jax.batch import pack
from wc_jax.host_memory import keep_large_buffers
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch
from wc_jax.weights import load_policy


def pack_work(work: Work, row_tokens: int) -> Batch:
    """Each sample weighs the same, as in GRPO's first form, which is what both peers share."""
    samples = [
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
    weights = [1.0 / sample.num_trained for sample in samples]
    return pack(samples, row_tokens=row_tokens, advantages=work.advantages, weights=weights)[0]


def prepare(settings: dict[str, Any]) -> Callable[[str], Measures]:
    keep_large_buffers()
    config, params = load_policy(settings["model"])
    optim = OptimConfig(lr=LEARNING_RATE, max_grad_norm=MAX_GRAD_NORM)
    options = {
        "compute": Compute(unroll=settings["unroll"]), "chunk": settings["chunk"], "micro_rows": settings["micro_rows"],
    }  # fmt: skip
    score, step = make_score_fn(config, **options), make_train_step(config, optim, **options)
    state = init_state(params, optim)
    works = {name: load_work(path) for name, path in settings["works"].items()}

    def update(name: str) -> Measures:
        nonlocal state
        batch = pack_work(works[name], settings["row_tokens"][name])
        old_logp, _ = score(state.params, batch)
        state, metrics = step(state, batch._replace(old_logp=old_logp))
        logp = float(np.sum(np.asarray(old_logp) * batch.token_weight) / len(works[name].tokens))
        return {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"]), "logp": logp}

    return update


if __name__ == "__main__":
    serve(prepare)
