"""The work that every contestant of the update benchmark is given: samples, advantages, the shape of the policy.

Only numpy is imported: the contestants live in environments of their own.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

PAD_ID = 0
"""No sample contains it: the peers tell padding from tokens by it."""

SMOLLM2_135M = {
    "vocab_size": 49_152, "width": 576, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64, "ff_dim": 1536,
}  # fmt: skip
NUM_LAYERS = 30
# Tunix's Llama ignores its own `rope_theta` and always rotates by this one.
ROPE_THETA = 1_000_000.0
LEARNING_RATE = 1e-6
MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Work:
    """What one update trains on. The first `prompts[i]` tokens of a sample are context, all others are trained."""

    tokens: list[np.ndarray]
    prompts: list[int]
    advantages: list[float]

    @property
    def num_trained(self) -> int:
        return sum(len(tokens) - prompt for tokens, prompt in zip(self.tokens, self.prompts, strict=True))

    @property
    def num_tokens(self) -> int:
        return sum(len(tokens) for tokens in self.tokens)


def draw_work(lengths: list[int], *, vocab_size: int, prompt_share: float = 0.3, seed: int = 0) -> Work:
    """Random tokens of the given lengths, in a random order, with normal advantages."""
    rng = np.random.default_rng(seed)
    lengths = [int(length) for length in rng.permutation(lengths)]
    return Work(
        tokens=[rng.integers(PAD_ID + 1, vocab_size, length).astype(np.int32) for length in lengths],
        prompts=[round(prompt_share * length) for length in lengths],
        advantages=[float(a) for a in rng.normal(size=len(lengths))],
    )


def ragged_lengths(num_samples: int, shortest: int, longest: int) -> list[int]:
    """Evenly spread: the mean of a uniform draw, without a draw's luck."""
    return [round(x) for x in np.linspace(shortest, longest, num_samples)]


def save_work(path: Path, work: Work) -> None:
    np.savez(
        path,
        tokens=np.concatenate(work.tokens),
        lengths=[len(tokens) for tokens in work.tokens],
        prompts=work.prompts,
        advantages=work.advantages,
    )


def load_work(path: Path | str) -> Work:
    with np.load(path) as stored:
        tokens = np.split(stored["tokens"], np.cumsum(stored["lengths"])[:-1])
        return Work(tokens, stored["prompts"].tolist(), stored["advantages"].tolist())


def padded(work: Work) -> dict[str, np.ndarray]:
    """Prompts padded on the left, completions on the right, each to the longest of the update, as both peers do."""
    num, width = len(work.tokens), max(work.prompts)
    length = max(len(tokens) - prompt for tokens, prompt in zip(work.tokens, work.prompts, strict=True))
    prompts, completions = np.full((num, width), PAD_ID, np.int32), np.full((num, length), PAD_ID, np.int32)
    for i, (tokens, prompt) in enumerate(zip(work.tokens, work.prompts, strict=True)):
        prompts[i, width - prompt :] = tokens[:prompt]
        completions[i, : len(tokens) - prompt] = tokens[prompt:]
    return {"prompts": prompts, "completions": completions, "advantages": np.array(work.advantages, np.float32)}
