"""One row of the weight table, and what a set of weights is."""

import math
from dataclasses import dataclass

import jax

Params = dict[str, jax.Array]
"""Flat: name -> array. Weights of the layers are stacked, `[L, ...]`."""

STD = 0.02
"""Of the normal initialization."""


@dataclass(frozen=True)
class Weight:
    """One row of the table."""

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    init: float | str
    """The standard deviation of a normal distribution, or `ones`, `zeros` or `decay` (log of 0.01..16, evenly)."""

    @property
    def num_elements(self) -> int:
        """How many scalars it holds."""
        return math.prod(self.shape)

    def stacked(self, count: int) -> "Weight":
        """The same weight for each of `count` layers."""
        return Weight((count, *self.shape), ("layer", *self.axes), self.init)


def is_decayed(name: str) -> bool:
    """Whether weight decay pulls on it: on matrices, not on norms' scales, biases and decay rates."""
    return not name.endswith(("norm", "bias", "a_log"))
