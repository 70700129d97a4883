"""A training step on rollouts whose paths share prefixes, against the same step path by path. Run by `make bench`.

    python -m tests.benchmarks.bench_prefix_sharing [--layers 4] [--path-tokens 2048] [--saved 0.7] [--dtype bfloat16]

One rollout like the paper's, scaled down: six paths of equal length, each a rewrite that keeps the start of the one
before, some more and some less; sharing leaves out `--saved` of their tokens. A step is the whole update: behavior
log-probabilities, forward, backward, AdamW. Both forms start from the same weights and take turns; the ratio is of
their least times, by the clock and in processor seconds (which other work on the machine disturbs less). Gradients
are read off the first update: with eps = 1, Adam's first step moves a weight by g / (|g| + 1).

The default has few of SmolLM2-135M's 30 layers, to run in minutes on two cores. The unembedding works on trained
tokens only, as many in both forms: the fewer the layers, the larger its part and the smaller the gain.
"""

import argparse
import time
from functools import partial

import jax
import numpy as np

from rollout.types import Sample
from wc_jax.batch import pack
from wc_jax.host_memory import keep_large_buffers
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, PolicyConfig, init_params
from wc_jax.policy.weight import Params
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch

NUM_PATHS, PROMPT_SHARE = 6, 0.1
KEPT_MORE = (0.0, -0.12, 0.06, 0.0, 0.1, -0.04)
"""Of a path's length, than the average rewrite keeps; the sum is 0."""


def paths(path_tokens: int, saved: float, vocab_size: int) -> list[Sample]:
    """Six paths; what each adds are results of 60 tokens and answers of 40 in turn, which it trains."""
    rng = np.random.default_rng(0)
    kept = saved * NUM_PATHS / (NUM_PATHS - 1)
    tokens, found = np.zeros(0, np.int64), []
    for k, more in enumerate(KEPT_MORE):
        shown = int(path_tokens * (kept + more)) if k else 0
        tokens = np.append(tokens[:shown], rng.integers(0, vocab_size, path_tokens - shown))
        added = np.arange(path_tokens) - max(shown, int(PROMPT_SHARE * path_tokens))
        mask = (added >= 0) & (added % 100 >= 60)
        sample = Sample(
            tokens=tokens.astype(np.int32),
            loss_mask=mask,
            sampler_logp=np.where(mask, -1.0, np.nan).astype(np.float32),
            node_ids=np.zeros(path_tokens, np.int32),
            segment=k,
            num_trained=int(mask.sum()),
        )
        found.append(sample)
    return found


def laid_out(samples: list[Sample], *, share: bool) -> Batch:
    """One row a path, or one row for all."""
    num_tokens = len(samples[0].tokens)
    if share:
        layout = pack(samples, row_tokens=num_tokens * NUM_PATHS, share=True)[1]
        num_tokens = -(-max(run.column + run.stop - run.start for run in layout.runs) // 256) * 256
    advantages = [1.0 - 0.5 * k for k in range(NUM_PATHS)]
    batch, layout = pack(samples, row_tokens=num_tokens, share=share, advantages=advantages)
    rows, width = batch.tokens.shape
    print(
        f"{'shared' if share else 'apart '}: {rows} x {width}, {layout.num_computed} tokens for {layout.num_tokens},"
        f" {int(batch.loss_mask.sum())} trained, {layout.share_wasted:.1%} padding"
    )
    return batch


class Update:
    """One form of the batch, its compiled functions and its state."""

    def __init__(self, config: PolicyConfig, params: Params, batch: Batch, compute: Compute, chunk: int) -> None:
        optim = OptimConfig(lr=1.0, eps=1.0, max_grad_norm=0.0)
        options = {"compute": compute, "chunk": chunk, "micro_rows": 1}
        self.batch, self.score = batch, make_score_fn(config, **options)
        self.step = make_train_step(config, optim, **options)
        self.state = init_state(jax.tree.map(jax.numpy.array, params), optim)
        self.seconds: list[tuple[float, float]] = []
        """By the clock, and of processors."""

    def run(self) -> float:
        """One update; returns its loss. (With lr = 1 it trains nothing of use.)"""
        started = time.perf_counter(), time.process_time()
        old_logp, _ = self.score(self.state.params, self.batch)
        self.state, metrics = self.step(self.state, self.batch._replace(old_logp=old_logp))
        loss = float(metrics["loss"])
        jax.block_until_ready(self.state.params)
        self.seconds.append((time.perf_counter() - started[0], time.process_time() - started[1]))
        return loss

    def gradients(self, before: Params) -> dict[str, np.ndarray]:
        """Of the first update, from how far it moved."""
        moved = {name: np.asarray(before[name]) - np.asarray(value) for name, value in self.state.params.items()}
        return {name: x / (1.0 - np.abs(x)) for name, x in moved.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--path-tokens", type=int, default=2048)
    parser.add_argument("--saved", type=float, default=0.7)
    parser.add_argument("--chunk", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    keep_large_buffers()
    config = PolicyConfig(
        vocab_size=49_152, width=576, num_layers=args.layers, num_heads=9, num_kv_heads=3, head_dim=64, ff_dim=1536,
        rope_theta=100_000.0, max_positions=8192,
    )  # fmt: skip
    params = init_params(config, jax.random.key(0))
    samples = paths(args.path_tokens, args.saved, config.vocab_size)
    make = partial(Update, config, params, compute=Compute(dtype=args.dtype), chunk=args.chunk)
    apart, shared = (make(batch=laid_out(samples, share=share)) for share in (False, True))
    losses = [update.run() for update in (apart, shared)]
    print(f"first calls, compilation included: {apart.seconds.pop()[0]:.1f} s and {shared.seconds.pop()[0]:.1f} s")
    ours, theirs = shared.gradients(params), apart.gradients(params)
    off = max(float(np.abs(ours[name] - theirs[name]).max()) for name in ours)
    largest = max(float(np.abs(x).max()) for x in theirs.values())
    print(f"loss {losses[0]:.7f} and {losses[1]:.7f}; largest gradient {largest:.3g}, largest difference {off:.2g}")
    for _ in range(args.repeats):
        for update in (apart, shared):
            update.run()
    for clock, slow, fast in zip(("clock", "processors"), best(apart), best(shared), strict=True):
        print(f"{args.layers} layers, {args.dtype}, {clock}: {slow:.2f} s, {fast:.2f} s, ratio {fast / slow:.2f}")


def best(update: Update) -> tuple[float, float]:
    """Least seconds, by the clock and of processors."""
    wall, used = zip(*update.seconds, strict=True)
    return min(wall), min(used)


if __name__ == "__main__":
    main()
