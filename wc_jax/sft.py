"""Warm start: supervised fine-tuning on demonstrations, the loss on the developer's tokens only.

    python -m wc_jax.sft configs/nano.yaml [key=value ...]

Makes a Hugging Face folder that `wc_jax.train` starts from. With `model.fresh` it trains a tokenizer and
starts from random weights (that is how the nano policy is made); with `model.folder` from a given model.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Literal

import jax

from configs import load
from rollout.context import ContextConfig
from rollout.pages.demos import DRILLED, demo_samples
from rollout.pages.vocabulary import save_tokenizer, train_tokenizer
from rollout.render import ChatFormat
from rollout.types import Sample
from wc_jax.batch import pack
from wc_jax.exits import run_command
from wc_jax.host_memory import keep_large_buffers
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, PolicyConfig, init_params, trained_names
from wc_jax.policy.weight import Params
from wc_jax.progress import Progress
from wc_jax.row_packing import num_rows_needed
from wc_jax.step import init_state, make_sft_step
from wc_jax.types import Batch
from wc_jax.weights import load_policy, save_policy

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True, kw_only=True)
class FreshModel:
    """The shape of a policy that starts from random weights; its vocabulary comes with its tokenizer."""

    vocab_size: int = 2048
    width: int = 192
    num_layers: int = 6
    num_heads: int = 6
    num_kv_heads: int = 2
    head_dim: int = 32
    ff_dim: int = 512
    max_positions: int = 2048


@dataclass(frozen=True, kw_only=True)
class SftConfig:
    """A warm start in full."""

    run_dir: Path
    """Where the finished model folder and the loss curve go."""
    seed: int
    num_steps: int
    folder: Path | None = None
    """The model to start from; leave out for random weights of shape `fresh`."""
    fresh: FreshModel = field(default_factory=FreshModel)
    prompt: str = "plain"
    """The system prompt of the demonstrations."""
    num_drilled: int = DRILLED
    """Samples over which copying drills give way to whole demonstrations; 0 for a model that can copy."""
    context: ContextConfig = field(default_factory=ContextConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    rows: int = 8
    """Packed rows per update."""
    row_tokens: int = 1024
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the forward pass computes in; master weights are float32 always."""
    save_dtype: Literal["float32", "bfloat16"] = "float32"
    save_every: int = 500
    """Steps between writes of the model folder; the last step always writes it."""

    def __post_init__(self) -> None:
        if self.num_drilled < 0:
            raise ValueError(f"num_drilled must be 0 or more, got {self.num_drilled}")


def packed_batches(samples: Iterator[Sample], rows: int, row_tokens: int, align: int = 1) -> Iterator[Batch]:
    """Endless batches of one shape: samples are taken until the next one might not fit any row.

    `align`: the chunk of the policy's recurrent layers, as in `plan`.
    """
    waiting: list[Sample] = []
    for sample in samples:
        if len(sample.tokens) > row_tokens:
            continue
        lengths = [min(-(-len(s.tokens) // align) * align, row_tokens) for s in (*waiting, sample)]
        if num_rows_needed(lengths, row_tokens) > rows:
            yield pack(waiting, row_tokens=row_tokens, align=align, num_rows=rows)[0]
            waiting = []
        waiting.append(sample)


def start(config: SftConfig) -> tuple[Path, PolicyConfig, Params]:
    """(folder of the tokenizer, shape, weights) to begin with."""
    if config.folder is not None:
        shape, params = load_policy(config.folder)
        return config.folder, shape, params
    folder = config.run_dir / "tokenizer"
    tokenizer = train_tokenizer(config.fresh.vocab_size, config.seed)
    save_tokenizer(tokenizer, folder)
    # A multiple of 64: matrix kernels like it, and the extra rows are never sampled into a text.
    vocab_size = -(-tokenizer.get_vocab_size() // 64) * 64
    shape = PolicyConfig(**{**asdict(config.fresh), "vocab_size": vocab_size})
    return folder, shape, init_params(shape, jax.random.key(config.seed))


def train(config: SftConfig) -> Path:
    """Runs the warm start and returns the finished model folder, `RUN_DIR/model`."""
    config.run_dir.mkdir(parents=True, exist_ok=True)
    tokenizer_dir, shape, params = start(config)
    chat = ChatFormat.load(tokenizer_dir)
    compute = Compute(dtype=config.dtype, unroll=True)
    trained = trained_names(shape)
    step = make_sft_step(shape, config.optim, trained=trained, compute=compute)
    state = init_state(params, config.optim, trained)
    samples = demo_samples(chat, config.context, seed=config.seed, prompt=config.prompt, num_drilled=config.num_drilled)
    align = compute.delta_chunk if shape.is_hybrid else 1
    stream = packed_batches(samples, config.rows, config.row_tokens, align)
    progress = Progress(num_steps=config.num_steps, done=0)
    curve = config.run_dir / "metrics.jsonl"
    with curve.open("w") as log:
        for index, batch in enumerate(islice(stream, config.num_steps), start=1):
            with progress.phase("update"):
                state, stats = step(state, batch)
                loss = float(stats.nll_sum) / float(stats.token_count)
            log.write(
                json.dumps({"step": index, "loss": loss, "seconds": sum(progress.take_seconds().values())}) + "\n"
            )
            log.flush()
            if index % 50 == 0:
                progress.say(f"step {index}: {loss:.4f} nats per token")
            if index % config.save_every == 0 or index == config.num_steps:
                save(config, shape, state.params, tokenizer_dir)
            progress.step_done()
    progress.close()
    return config.run_dir / "model"


def save(config: SftConfig, shape: PolicyConfig, params: Params, tokenizer_dir: Path) -> None:
    """Writes the model folder, whole or not at all."""
    also = tuple(path for name in TOKENIZER_FILES if (path := tokenizer_dir / name).is_file())
    save_policy(config.run_dir / "model", shape, params, config.save_dtype, also=also)


def main(argv: list[str]) -> int:
    """The command line. Returns the exit code; every expected failure is one message on stderr."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if argv else 2
    keep_large_buffers()
    return run_command(lambda: print(f"model folder: {train(load(argv[0], argv[1:], SftConfig))}"), goes_on=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
