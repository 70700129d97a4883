"""B2: peak memory of scoring and training as a row grows, against the form that holds all logits.

    python -m tests.benchmarks.bench_memory [--plot memory.png]

Each point is a process of its own that scores and trains on one row whose tokens are all trained; its peak
resident size is read when it ends. The policy is narrow and the vocabulary Qwen's, so that the logits dominate
as they do in practice. The slope is a least-squares fit in bytes a token; the goal is one at least 8 times
smaller. The other form is the same update on `[T, V]` logits, as one writes it first.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rollout.types import Sample
from wc_jax.batch import pack
from wc_jax.objective import policy_objective, summarize
from wc_jax.optim import OptimConfig, apply_gradients, global_norm, make_optimizer
from wc_jax.policy import Params, PolicyConfig, hidden_states, init_params, unembed
from wc_jax.step import init_state, make_score_fn, make_train_step
from wc_jax.types import Batch, Stats, TrainState

FORMS = ("ours", "full logits")
MIB = 2**20


def full_logprobs(params: Params, config: PolicyConfig, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """`(logp[B, T], entropy[B, T])` as one writes it first: `[B, T, V]` logits and their log-softmax."""
    hidden = hidden_states(params, config, batch.tokens, batch.positions, batch.visible_until)
    logp = jax.nn.log_softmax(hidden @ unembed(params, config), axis=-1)[:, :-1]
    picked = jnp.take_along_axis(logp, batch.tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    # Position t speaks of token t; the first token of the row is not predicted.
    shifted = (jnp.pad(x, ((0, 0), (1, 0))) for x in (picked, entropy))
    logp, entropy = (jnp.where(batch.loss_mask, x, 0.0) for x in shifted)
    return logp, entropy


def full_update(config: PolicyConfig, optim: OptimConfig) -> tuple[Callable, Callable]:
    """`(score, step)` as `make_score_fn` and `make_train_step` give them, on all logits at once."""

    def loss(params: Params, batch: Batch) -> tuple[jax.Array, Stats]:
        logp, entropy = full_logprobs(params, config, batch)
        loss_sum, count, stats = policy_objective(
            logp, batch.old_logp, batch.advantage, batch.loss_mask, entropy=entropy
        )
        return loss_sum / count, stats

    def step(state: TrainState, batch: Batch) -> tuple[TrainState, dict[str, jax.Array]]:
        grads, stats = jax.grad(loss, has_aux=True)(state.params, batch)
        params, opt_state = apply_gradients(make_optimizer(optim), grads, state.opt_state, state.params)
        metrics = {**summarize(stats), "grad_norm": global_norm(grads)}
        return state._replace(params=params, opt_state=opt_state, step=state.step + 1), metrics

    score = jax.jit(lambda params, batch: full_logprobs(params, config, batch))
    return score, jax.jit(step, donate_argnums=0)


def measure(form: str, num_tokens: int, vocab_size: int, width: int, num_layers: int) -> dict[str, float]:
    """Peak resident bytes of this process after one update of one row, and the update's loss and gradient norm."""
    config = PolicyConfig(
        vocab_size=vocab_size,
        width=width,
        num_layers=num_layers,
        num_heads=4,
        num_kv_heads=2,
        head_dim=width // 4,
        ff_dim=3 * width,
    )
    rng = np.random.default_rng(0)
    row = Sample(
        tokens=rng.integers(0, vocab_size, num_tokens).astype(np.int32),
        loss_mask=np.arange(num_tokens) > 0,
        sampler_logp=np.full(num_tokens, np.nan, np.float32),
        node_ids=np.zeros(num_tokens, np.int32),
        segment=0,
        num_trained=num_tokens - 1,
    )
    batch, _ = pack([row], row_tokens=num_tokens, advantages=[1.0])
    optim = OptimConfig(lr=1e-6)
    state = init_state(init_params(config, jax.random.key(0)), optim)
    score, step = full_update(config, optim)
    if form == "ours":
        score, step = make_score_fn(config), make_train_step(config, optim)
    old_logp, _ = score(state.params, batch)
    state, metrics = step(state, batch._replace(old_logp=old_logp))
    found = {"loss": float(metrics["loss"]), "grad_norm": float(metrics["grad_norm"])}
    return {**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0}


def in_new_process(form: str, num_tokens: int, args: argparse.Namespace) -> dict[str, float]:
    sizes = [str(size) for size in (num_tokens, args.vocab_size, args.width, args.layers)]
    command = [sys.executable, "-m", "tests.benchmarks.bench_memory", "--point", form, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{form} at {num_tokens} tokens ended with code {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def draw(path: Path, found: dict[str, dict[int, dict[str, float]]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for form, points in found.items():
        axes.plot(list(points), [point["peak"] / 2**30 for point in points.values()], marker="o", label=form)
    axes.set(xlabel="tokens in the row", ylabel="peak memory of the process (GiB)", ylim=(0, None))
    axes.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure every point, fit, print the ratio of the slopes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1024, 2048, 4096, 8192])
    # At 4,096 tokens the other form needs more than 15 GiB.
    parser.add_argument("--full-tokens", type=int, nargs="+", default=[512, 1024, 2048])
    for name, value in {"vocab-size": 151_936, "width": 128, "layers": 2}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--plot", type=Path, default=None)
    parser.add_argument("--point", nargs=5, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.point is not None:
        print(json.dumps(measure(args.point[0], *(int(size) for size in args.point[1:]))))
        return
    lengths = {"ours": args.tokens, "full logits": args.full_tokens}
    found = {form: {tokens: in_new_process(form, tokens, args) for tokens in lengths[form]} for form in FORMS}
    print(f"{'':12} {'tokens':>7} {'peak, MiB':>10} {'loss':>10} {'gradient norm':>14}")
    for form, points in found.items():
        for tokens, point in points.items():
            peak = point["peak"] / MIB
            print(f"{form:12} {tokens:7} {peak:10.0f} {point['loss']:10.6f} {point['grad_norm']:14.6f}")
    slopes = {
        form: float(np.polyfit(list(points), [point["peak"] for point in points.values()], 1)[0])
        for form, points in found.items()
    }
    for form, slope in slopes.items():
        print(f"{form}: {slope:,.0f} bytes a token")
    held = 4 * args.vocab_size
    print(f"a single float32 array of logits would be {held:,} bytes a token, {held / slopes['ours']:.1f} times ours")
    print(f"ratio: {slopes['full logits'] / slopes['ours']:.1f} (goal 8)")
    if args.plot is not None:
        draw(args.plot, found)


if __name__ == "__main__":
    main()
