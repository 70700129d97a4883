"""How fast one SFT update is, against plain matrix products in the same process.

    python -m tests.benchmarks.train_speed [--width 192 ... ] [--dtype bfloat16]

Prints tokens per second and GFLOP/s. `cpu` is processor seconds over both cores divided by their number:
on a busy machine it is what a quiet one would take, if all of it ran in parallel.
"""

import argparse
import os
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, PolicyConfig, init_params, num_params
from wc_jax.step import init_state, make_sft_step
from wc_jax.types import Batch

SHAPE = {
    "vocab_size": 2048, "width": 192, "num_layers": 6, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32, "ff_dim": 512,
}  # fmt: skip


def make_batch(rows: int, row_tokens: int, vocab_size: int) -> Batch:
    """Two segments a row, every second token trained."""
    rng = np.random.default_rng(0)
    first = row_tokens * 3 // 5
    positions = np.concatenate([np.arange(first), np.arange(row_tokens - first)])
    visible_until = np.repeat([first, row_tokens], [first, row_tokens - first])
    predecessor = np.where(positions > 0, np.arange(row_tokens) - 1, -1)
    mask = rng.random((rows, row_tokens)) < 0.5
    mask[:, [0, first]] = False
    zero = np.zeros((rows, row_tokens), np.float32)
    return Batch(
        tokens=rng.integers(0, vocab_size, (rows, row_tokens)).astype(np.int32),
        positions=np.broadcast_to(positions, zero.shape).astype(np.int32),
        visible_until=np.broadcast_to(visible_until, zero.shape).astype(np.int32),
        predecessor=np.broadcast_to(predecessor, zero.shape).astype(np.int32),
        loss_mask=mask,
        token_weight=mask.astype(np.float32),
        advantage=zero,
        sampler_logp=zero,
        old_logp=zero,
    )


def best_seconds(work: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Least `(wall, cpu)` seconds of several calls."""
    wall, cpu = [], []
    for _ in range(repeats):
        starts = time.perf_counter(), time.process_time()
        jax.block_until_ready(work())
        wall.append(time.perf_counter() - starts[0])
        cpu.append((time.process_time() - starts[1]) / (os.cpu_count() or 1))
    return min(wall), min(cpu)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    for name, value in {**SHAPE, "rows": 8, "row_tokens": 1024, "repeats": 4}.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--remat", default="none")
    parser.add_argument("--loop", action="store_true", help="loop over the layers instead of writing them out")
    args = parser.parse_args()
    config = PolicyConfig(**{name: getattr(args, name) for name in SHAPE})
    optim = OptimConfig(lr=1e-3)
    batch = make_batch(args.rows, args.row_tokens, config.vocab_size)
    step = make_sft_step(config, optim, compute=Compute(dtype=args.dtype, remat=args.remat, unroll=not args.loop))
    state = init_state(init_params(config, jax.random.key(0)), optim)

    def update() -> jax.Array:
        nonlocal state
        state, stats = step(state, batch)
        return stats.nll_sum

    jax.block_until_ready(update())
    square = jnp.ones((2048, 2048))
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(square, square))
    tokens = args.rows * args.row_tokens
    embedding = config.vocab_size * config.width
    attention = 2 * args.row_tokens * config.num_heads * config.head_dim * config.num_layers  # half is masked
    flops = 6 * tokens * (num_params(config) - embedding // 2) + 3 * tokens * attention
    peaks = best_seconds(lambda: product(square, square), args.repeats)
    steps = best_seconds(update, args.repeats)
    for clock, peak, seconds in zip(("wall", "cpu"), peaks, steps, strict=True):
        print(
            f"{clock}: {num_params(config) / 1e6:.2f}M {args.dtype} {tokens / seconds:.0f} tokens/s, "
            f"{flops / seconds / 1e9:.0f} GFLOP/s of {2 * 2048**3 / peak / 1e9:.0f} in a square product"
        )


if __name__ == "__main__":
    main()
