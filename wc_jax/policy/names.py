"""How one tensor of a Hugging Face folder holds one or several of our weights; pure numpy, both ways.

A Hugging Face linear layer stores `[out, in]`, a tensor a layer; we store `[in, out]`, stacked. Some of its tensors
hold several of ours one after the other (the recurrent layers' q, k and v), or in turns, head by head (a query and
its gate): we keep them apart, so that each can be cut over devices by whole heads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Form = Literal["same", "linear", "conv", "patches"]
"""same: as ours. linear: [out, in] for our [in, out]. conv: [F, 1, width] for our [F, width].
patches: [out, C, t, p, p] for our [C t p p, out]."""


@dataclass(frozen=True, kw_only=True)
class HfTensor:
    """One tensor of a folder."""

    key: str
    parts: tuple[str, ...]
    """Our weights in it, in their order along its first axis."""
    layer: int | None = None
    """Which of the stacked layers; None: the weight is not stacked."""
    form: Form = "same"
    num_turns: int = 0
    """0: the parts stand one after the other; N: they take turns N times, as heads do."""
    kernel: tuple[int, ...] = ()
    """patches: (C, t, p, p)."""

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> list[int]:
        """How far each part reaches along the tensor's first axis; `shapes`: of our weights."""
        return [shape[-1] if self.form in ("linear", "patches") else shape[0] for shape in shapes]

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Of the tensor that holds weights of these shapes."""
        rest = {"same": shapes[0][1:], "linear": shapes[0][:1], "conv": (1, shapes[0][-1]), "patches": self.kernel}
        return (sum(self.sizes(shapes)), *rest[self.form])

    def split(self, value: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
        """Our weights, as views where possible; `sizes`: of each part along the tensor's first axis.

        Raises ValueError when they do not fit.

        >>> value = np.arange(8).reshape(4, 2)  # two heads, each a row of q and a row of its gate
        >>> q, gate = HfTensor(key="k", parts=("q", "gate"), form="linear", num_turns=2).split(value, (2, 2))
        >>> q.tolist(), gate.tolist()
        ([[0, 4], [1, 5]], [[2, 6], [3, 7]])
        """
        if value.shape[0] != sum(sizes):
            raise ValueError(f"{self.key}: the first axis must be {sum(sizes)}, got {value.shape}")
        turns = max(self.num_turns, 1)
        value = value.reshape(turns, -1, *value.shape[1:])
        ends = np.cumsum([size // turns for size in sizes])[:-1]
        return [self._ours(x.reshape(-1, *x.shape[2:])) for x in np.split(value, ends, axis=1)]

    def join(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """The contiguous tensor that holds these weights: `split`, backwards."""
        turns = max(self.num_turns, 1)
        theirs = [self._theirs(part) for part in parts]
        joined = np.concatenate([x.reshape(turns, -1, *x.shape[1:]) for x in theirs], axis=1)
        # What is joined from transposed arrays may lie transposed, and safetensors writes bytes as they lie.
        return np.ascontiguousarray(joined.reshape(-1, *joined.shape[2:]))

    def _ours(self, x: np.ndarray) -> np.ndarray:
        if self.form == "linear":
            return x.T
        if self.form == "conv":
            return x[:, 0]
        return x.reshape(x.shape[0], -1).T if self.form == "patches" else x

    def _theirs(self, x: np.ndarray) -> np.ndarray:
        if self.form == "linear":
            return x.T
        if self.form == "conv":
            return x[:, None]
        return x.T.reshape(x.shape[1], *self.kernel) if self.form == "patches" else x


def of_layer(rows: Mapping[str, tuple[str, Form]], key: str, ours: str, layer: int) -> list[HfTensor]:
    """One layer's tensors from rows `our name -> (their name, form)`; `key` and `ours`: what the names begin with."""
    return [
        HfTensor(key=key + theirs, parts=(f"{ours}.{name}",), layer=layer, form=form)
        for name, (theirs, form) in rows.items()
    ]
