"""B1: trained tokens per second of one GRPO update, against TRL and Tunix on the same work.

    make bench-setup                                        (once: the peers' environments)
    python -m tests.benchmarks.bench_update_vs_peers        (see README.md for the time it takes)
    python -m tests.benchmarks.bench_update_vs_peers --layers 2 --samples 4 --longest 500 --full-length 256

One update is: score the old log-probabilities, forward, backward, AdamW. All three start from one folder of
weights, in float32, on the same cores, and take turns; loss, gradient norm and mean log-probability are printed
so that one can see that the same work is done. Compiling is not counted.
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

import jax

from tests.benchmarks.peers.turns import Contestant, Measures
from tests.benchmarks.peers.work import (
    NUM_LAYERS,
    ROPE_THETA,
    SMOLLM2_135M,
    Work,
    draw_work,
    ragged_lengths,
    save_work,
)
from wc_jax.policy import PolicyConfig, init_params
from wc_jax.weights import save_policy

ROOT = Path(__file__).resolve().parents[2]
PYTHONS = {
    "ours": ROOT / ".venv/bin/python",
    "trl": ROOT / ".venv-bench-torch/bin/python",
    "tunix": ROOT / ".venv-bench-tunix/bin/python",
}
MODULES = {"ours": "tests.benchmarks.peers.ours", "trl": "tests.benchmarks.peers.on_trl"}
MODULES["tunix"] = "tests.benchmarks.peers.on_tunix"
GOALS = {"ragged": 1.5, "full": 1.0}
# glibc keeps freed buffers instead of returning them to the kernel; ours asks for the same in its own process.
KEEP_BUFFERS = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": NUM_LAYERS, "samples": 4, "shortest": 200, "longest": 2000, "full-length": 1024}
    tuning = {"rounds": 2, "threads": 2, "micro-rows": 1, "trl-rows": 1, "tunix-rows": 1, "chunk": 1024}
    for name, value in {**sizes, **tuning}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--only", nargs="+", choices=list(PYTHONS), default=list(PYTHONS))
    parser.add_argument("--works", nargs="+", choices=list(GOALS), default=list(GOALS))
    parser.add_argument("--unroll", action="store_true", help="ours: write the layers out instead of looping")
    parser.add_argument("--tunix-remat", choices=["none", "block", "decoder"], default="none")
    # XLA's default schedule on CPU wants 16 GiB for one row of 2,000 tokens through Tunix's 30 layers, and does not
    # let its rematerialization save any of it; this one wants 8.
    parser.add_argument("--tunix-xla-flags", default="--xla_cpu_enable_concurrency_optimized_scheduler=false")
    parser.add_argument("--memory-gib", type=int, default=16, help="a contestant that wants more fails")
    parser.add_argument("--peers-return-buffers", action="store_true", help="peers without glibc's buffers kept")
    parser.add_argument("--logs", type=Path, default=None, help="folder for what the contestants print")
    return parser.parse_args()


def enter(args: argparse.Namespace, folder: Path, works: dict[str, Work]) -> dict[str, Contestant]:
    """Start every contestant on weights and work written below `folder`."""
    config = PolicyConfig(**SMOLLM2_135M, num_layers=args.layers, rope_theta=ROPE_THETA)
    save_policy(folder / "model", config, init_params(config, jax.random.key(0)))
    for name, work in works.items():
        save_work(folder / f"{name}.npz", work)
    settings = {
        "model": str(folder / "model"),
        "layers": args.layers,
        "threads": args.threads,
        "memory_gib": args.memory_gib,
        "works": {name: str(folder / f"{name}.npz") for name in works},
    }
    own = {
        "ours": {"micro_rows": args.micro_rows, "unroll": args.unroll, "chunk": args.chunk},
        "trl": {"micro_rows": args.trl_rows},
        "tunix": {"micro_rows": args.tunix_rows, "remat": args.tunix_remat},
    }
    common = {"OMP_NUM_THREADS": str(args.threads), "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    peers = {} if args.peers_return_buffers else KEEP_BUFFERS
    environment = {"ours": common, "trl": {**common, **peers}}
    environment["tunix"] = {**common, **peers, "XLA_FLAGS": args.tunix_xla_flags}
    logs = args.logs or folder
    logs.mkdir(parents=True, exist_ok=True)
    return {
        name: Contestant(
            name,
            PYTHONS[name],
            MODULES[name],
            log=logs / f"{name}.log",
            environment=environment[name],
            settings={**settings, **own[name]},
        )
        for name in args.only
    }


def compete(contestants: dict[str, Contestant], work: str, rounds: int) -> dict[str, list[Measures]]:
    """Every contestant's turns. A peer that took twice as long as another in the first round is done then."""
    turns: dict[str, list[Measures]] = {name: [] for name in contestants}
    for i in range(rounds):
        firsts = {name: found[0]["seconds"] for name, found in turns.items() if found and name != "ours"}
        for name, contestant in contestants.items():
            if name in firsts and firsts[name] > 2 * min(firsts.values()):
                continue
            found = contestant.update(work)
            print(
                f"  {work} round {i + 1} {name:5}  {found['seconds']:7.1f} s  "
                f"cpu {found['cpu_s']:7.1f} s  loss {found['loss']:+.6f}  gradient {found['grad_norm']:.5f}  "
                f"log-probability {found['logp']:.5f}  peak {found['peak_gib']:.1f} GiB",
                flush=True,
            )
            turns[name].append(found)
    return turns


def report(name: str, work: Work, turns: dict[str, list[Measures]], threads: int) -> None:
    """Trained tokens per second of the median turn, and the ratio to the better peer."""
    rates = {who: work.num_trained / statistics.median(m["seconds"] for m in found) for who, found in turns.items()}
    # Processor seconds over cores: what a quiet machine would take, if all of it ran in parallel.
    quiet = {who: statistics.median(m["cpu_s"] for m in found) / threads for who, found in turns.items()}
    lengths = sorted(len(tokens) for tokens in work.tokens)
    print(f"{name}: {len(lengths)} samples of {lengths[0]} to {lengths[-1]} tokens, {work.num_trained} trained")
    print(f"  {'':6} {'trained tokens/s':>16} {'by processor time':>18}")
    for who, rate in rates.items():
        print(f"  {who:6} {rate:16.1f} {work.num_trained / quiet[who]:18.1f}")
    peers = {who: rate for who, rate in rates.items() if who != "ours"}
    if "ours" in rates and peers:
        best = max(peers, key=peers.__getitem__)
        print(f"ratio: {rates['ours'] / peers[best]:.2f} (goal {GOALS[name]}) on {name} samples, against {best}")


def main() -> None:
    """Start all, let them take turns, print."""
    args = parse()
    missing = [name for name in args.only if not PYTHONS[name].exists()]
    if missing:
        raise SystemExit(f"no environment for {missing}: run `make bench-setup`")
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    vocab_size = SMOLLM2_135M["vocab_size"]
    lengths = {
        "ragged": ragged_lengths(args.samples, args.shortest, args.longest),
        "full": [args.full_length] * args.samples,
    }
    works = {name: draw_work(lengths[name], vocab_size=vocab_size) for name in args.works}
    with tempfile.TemporaryDirectory() as folder:
        contestants = enter(args, Path(folder), works)
        try:
            for name in works:
                for who, contestant in contestants.items():
                    print(f"  {name} warm-up {who:5} {contestant.warm_up(name)['seconds']:7.1f} s", flush=True)
            turns = {name: compete(contestants, name, args.rounds) for name in works}
        finally:
            for contestant in contestants.values():
                contestant.close()
    for name, work in works.items():
        report(name, work, turns[name], args.threads)


if __name__ == "__main__":
    main()
