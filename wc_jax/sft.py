"""Warm start: supervised fine-tuning on demonstrations, the loss on the developer's tokens only.

    python -m wc_jax.sft configs/nano.yaml [key=value ...]

Makes a Hugging Face folder that `wc_jax.train` starts from. With `model.fresh` it trains a tokenizer and
starts from random weights (that is how the nano policy is made); with `model.folder` from a given model.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import jax
import numpy as np

from configs import ConfigError, load
from rollout.context import ContextConfig
from rollout.pages.demos import demo_samples
from rollout.pages.vocabulary import save_tokenizer, train_tokenizer
from rollout.render import ChatFormat
from rollout.types import Sample
from wc_jax.batch import pack
from wc_jax.optim import OptimConfig
from wc_jax.policy import Compute, PolicyConfig, init_params
from wc_jax.progress import Progress
from wc_jax.step import init_state, make_sft_step
from wc_jax.weights import load_policy, save_policy


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
    context: ContextConfig = field(default_factory=ContextConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    rows: int = 8
    """Packed rows per update."""
    row_tokens: int = 1024
    dtype: str = "float32"
    """Of the saved weights; training masters are float32."""
    compute: str = "float32"
    """What the forward pass computes in: float32 or bfloat16."""
    save_every: int = 500


def batches(samples: Iterator[Sample], rows: int, row_tokens: int) -> Iterator[object]:
    """Endless packed batches: takes as many samples as fill `rows` rows and packs them."""
    waiting: list[Sample] = []
    budget = int(rows * row_tokens * 0.97)
    while True:
        total = 0
        while total < budget:
            sample = next(samples)
            if len(sample.tokens) > row_tokens:
                continue
            if total + len(sample.tokens) > budget:
                waiting.append(sample)
                break
            waiting.append(sample)
            total += len(sample.tokens)
        yield waiting
        waiting = []
