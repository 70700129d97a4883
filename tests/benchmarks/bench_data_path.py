"""From message trees to arrays on a device: tokens per second, and the share of a training step. Run by `make bench`.

    python -m tests.benchmarks.bench_data_path [--tasks 16] [--group 8] [--row-tokens 131072]

Rollouts of the paper's size: a system prompt that all share, a task that a group shares, six paths each, every
path a rewrite that keeps part of the one before. One process, one thread: no rollout is prepared while others
still run, as they could be.

The step that it is held against is estimated, and low, which makes the share look larger: matrix products of the
parameters only (8 x parameters x tokens that are computed: scoring, forward, backward; no attention, no optimizer, no
waiting) for a policy of 27e9 parameters on 64 H100 at 40 % of 989 TFLOP/s. Beside it: SmolLM2-135M at this machine's
own rate, measured here as the products of its feed-forward layers.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rollout.samples import build_samples
from rollout.types import Node, Role, Sample, Tree
from wc_jax.batch import fill, plan
from wc_jax.host_memory import keep_large_buffers
from wc_jax.layout import Layout
from wc_jax.types import Batch

VOCAB_SIZE, SYSTEM_TOKENS, TASK_TOKENS, MAX_TOKENS, MAX_PATHS = 150_000, 3_000, 1_000, 65_536, 6
CLUSTER = (27e9, 64 * 989e12 * 0.4)
"""(parameters, FLOP/s)"""
SMALL_PARAMS = 134.5e6


class Pool:
    """Token ids to cut messages from: one list of ints, so that millions of messages stay small."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.ids: list[int] = self.rng.integers(0, VOCAB_SIZE, 1 << 20).tolist()
        self.logp: list[float] = (-self.rng.random(1 << 16)).tolist()

    def cut(self, size: int) -> tuple[int, ...]:
        start = int(self.rng.integers(0, len(self.ids) - size))
        return tuple(self.ids[start : start + size])


def rollout_tree(pool: Pool, system: tuple[int, ...], task: tuple[int, ...]) -> Tree:
    """Turns of an answer and a result; at a rewrite the tree goes on from 60 to 85 % of the path so far."""
    nodes: list[Node] = []
    depth: list[int] = []

    def add(parent: int | None, role: Role, ids: tuple[int, ...], num_template: int) -> int:
        logp = tuple(pool.logp[: len(ids) - num_template])
        node_id = len(nodes)
        nodes.append(
            Node(
                node_id=node_id,
                parent_id=parent,
                role=role,
                text="",
                token_ids=ids,
                num_template=num_template,
                logp=logp,
            )
        )
        depth.append(len(ids) + (0 if parent is None else depth[parent]))
        return node_id

    root = add(add(None, "system", system, len(system)), "user", task, len(task))
    tip, leaves = root, []
    for _ in range(MAX_PATHS):
        length = int(pool.rng.integers(max(20_000, depth[tip]), MAX_TOKENS))
        while depth[tip] < length - 2_000:
            answer = int(pool.rng.integers(50, 800))
            tip = add(tip, "assistant", pool.cut(3 + answer), 3)
            result = pool.cut(int(pool.rng.integers(50, 1_000)))
            tip = add(tip, "tool", result, len(result))
        leaves.append(add(tip, "assistant", pool.cut(103), 3))
        kept = depth[tip] * pool.rng.uniform(0.6, 0.85)
        while tip != root and depth[tip] > kept:
            tip = nodes[tip].parent_id or root
        summary = pool.cut(500)
        tip = add(tip, "user", summary, len(summary))
    return Tree(nodes=tuple(nodes), leaves=tuple(leaves))


def best_seconds(work: Callable[..., Any], *args: Any, repeats: int) -> tuple[float, Any]:
    """Least processor seconds of several calls, and what the last one returned.

    The path is one thread, so that is what a quiet machine takes; a busy one takes longer by the clock.
    """
    found = []
    for _ in range(repeats):
        result = None  # as a run, which holds one step's arrays at a time
        started = time.process_time()
        result = work(*args)
        found.append(time.process_time() - started)
    return min(found), result


def to_device(batch: Batch) -> None:
    """Copied and let go of."""
    jax.block_until_ready(jax.device_put(batch))


def measured_flops() -> float:
    """FLOP/s of this machine's float32 products of the shapes of SmolLM2-135M's feed-forward layers."""
    x, w = jnp.ones((4096, 576)), jnp.ones((576, 1536))
    product = jax.jit(lambda: (x @ w) @ w.T)
    jax.block_until_ready(product())
    found = []
    for _ in range(5):
        started = time.perf_counter()
        jax.block_until_ready(product())
        found.append(time.perf_counter() - started)
    return 4 * 4096 * 576 * 1536 / min(found)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--row-tokens", type=int, default=131_072)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    keep_large_buffers()
    pool = Pool(0)
    system = pool.cut(SYSTEM_TOKENS)
    trees = [
        rollout_tree(pool, system, task)
        for task in (pool.cut(TASK_TOKENS) for _ in range(args.tasks))
        for _ in range(args.group)
    ]

    def build() -> list[Sample]:
        return [s for tree in trees for s in build_samples(tree, max_paths=MAX_PATHS, max_tokens=MAX_TOKENS)]

    def arrange(share: bool) -> Layout:
        return plan(samples, row_tokens=args.row_tokens, share=share)

    def arrays(layout: Layout) -> Batch:
        return fill(layout, samples, advantages=[1.0] * len(samples))

    build_s, samples = best_seconds(build, repeats=args.repeats)
    num_tokens = sum(len(sample.tokens) for sample in samples)
    print(
        f"{len(trees)} rollouts, {len(samples)} samples, {num_tokens / 1e6:.1f}M tokens, rows of {args.row_tokens};"
        " processor seconds"
    )
    flops = measured_flops()
    for share in (True, False):
        plan_s, layout = best_seconds(arrange, share, repeats=args.repeats)
        fill_s, batch = best_seconds(arrays, layout, repeats=args.repeats)
        put_s, _ = best_seconds(to_device, batch, repeats=args.repeats)
        total_s = build_s + plan_s + fill_s + put_s
        cluster_s = 8 * CLUSTER[0] * layout.num_computed / CLUSTER[1]
        here_s = 8 * SMALL_PARAMS * layout.num_computed / flops
        print(
            f"{'shared' if share else 'apart '}: samples {build_s:.2f} s, plan {plan_s:.2f} s, fill {fill_s:.2f} s,"
            f" device {put_s:.2f} s: {num_tokens / total_s / 1e6:.1f}M tokens/s;"
            f" {layout.num_rows} rows, {layout.share_saved:.0%} saved, {layout.share_wasted:.1%} padding\n"
            f"        {total_s / cluster_s:.2%} of a step of {cluster_s:.0f} s (27B, 64 H100, 40 %; estimated),"
            f" {total_s / here_s:.3%} of one of {here_s:.0f} s (135M, here, at {flops / 1e9:.0f} GFLOP/s)"
        )


if __name__ == "__main__":
    main()
