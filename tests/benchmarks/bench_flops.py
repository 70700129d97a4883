"""B4: arithmetic that one update achieves, against plain matrix products in the same process and type.

    python tests/benchmarks/bench_flops.py [--layers 30] [--row-tokens 2048] [--rows 2] [--dtype float32]

One update is: score the old log-probabilities, forward, backward, AdamW, on packed ragged samples. Counted
are the products that the mathematics needs: attention over visible pairs only, the head for trained tokens
only, and nothing for what is computed twice. The goal is 0.6.
"""

import argparse
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rollout.types import Sample
from wc_jax.batch import pack
from wc_jax.host_memory import keep_large_buffers
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, PolicyConfig, init_params, num_params
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch


def ragged_batch(vocab_size: int, row_tokens: int, num_rows: int) -> Batch:
    """Samples of 200 to 2,000 tokens until the rows are full; the first third of each is a prompt."""
    rng = np.random.default_rng(0)
    samples, left = [], [row_tokens] * num_rows
    for row in range(num_rows):
        while left[row] >= 200:
            length = int(rng.integers(200, min(2000, left[row]) + 1))
            mask = np.arange(length) >= length // 3
            samples.append(
                Sample(
                    tokens=rng.integers(0, vocab_size, length).astype(np.int32),
                    loss_mask=mask,
                    sampler_logp=np.where(mask, -1.0, np.nan).astype(np.float32),
                    node_ids=np.zeros(length, np.int32),
                    segment=0,
                    num_trained=int(mask.sum()),
                )
            )
            left[row] -= length
    advantages = rng.normal(size=len(samples)).tolist()
    return pack(samples, row_tokens=row_tokens, num_rows=num_rows, advantages=advantages)[0]


def needed_flops(config: PolicyConfig, batch: Batch) -> float:
    """Of scoring, forward and backward: four forward passes' worth."""
    columns = np.arange(batch.tokens.shape[1])
    is_token = (batch.predecessor >= 0) | (batch.visible_until > columns + 1)
    pairs = float((batch.positions + 1)[is_token].sum())
    body = num_params(config) - config.vocab_size * config.width * (1 if config.tie_embeddings else 2)
    forward = 2.0 * body * float(is_token.sum())
    forward += 4.0 * pairs * config.num_heads * config.head_dim * config.num_layers
    forward += 2.0 * config.width * config.vocab_size * float(batch.loss_mask.sum())
    return 4.0 * forward


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(work())
    return time.perf_counter() - started


def main() -> None:
    """Measure in turns, print the ratio."""
    parser = argparse.ArgumentParser()
    sizes = {"layers": 30, "row-tokens": 2048, "rows": 2, "micro-rows": 1, "rounds": 4, "chunk": 1024}
    for name, value in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    args = parser.parse_args()
    keep_large_buffers()
    config = PolicyConfig(
        vocab_size=49_152,
        width=576,
        num_layers=args.layers,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        ff_dim=1536,
    )
    batch = ragged_batch(config.vocab_size, args.row_tokens, args.rows)
    options = {"compute": Compute(dtype=args.dtype), "micro_rows": args.micro_rows, "chunk": args.chunk}
    optim = OptimConfig(lr=1e-6)
    score, step = make_score_fn(config, **options), make_train_step(config, optim, **options)
    state = init_state(init_params(config, jax.random.key(0)), optim)

    def update() -> jax.Array:
        nonlocal state
        old_logp, _ = score(state.params, batch)
        state, metrics = step(state, batch._replace(old_logp=np.asarray(old_logp)))
        return metrics["loss"]

    square = jnp.ones((2048, 2048), jnp.dtype(args.dtype))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready((update(), product(square, square)))
    updates, products = [], []
    for _ in range(args.rounds):
        products += [seconds(lambda: product(square, square)) for _ in range(10)]
        updates.append(seconds(update))
    peak, flops = 2 * 2048**3 / min(products), needed_flops(config, batch)
    achieved = flops / min(updates)
    trained = int(batch.loss_mask.sum())
    print(
        f"{num_params(config) / 1e6:.0f}M parameters, {args.dtype}, {trained} trained of {batch.tokens.size} tokens: "
        f"{min(updates):.2f} s an update, {trained / min(updates):.0f} trained tokens/s, {flops / 1e9:.0f} GFLOP\n"
        f"{achieved / 1e9:.0f} GFLOP/s of {peak / 1e9:.0f} in a square product\n"
        f"ratio: {achieved / peak:.2f} (goal 0.6)"
    )


if __name__ == "__main__":
    main()
