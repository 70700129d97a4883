"""How much there is to compute and to move, from the policy's shape alone: compilers count a loop's body once.

A multiply-add is two FLOPs. What is counted is matrix products; norms, gates and softmax are small beside them.
"""

from dataclasses import dataclass
from typing import Literal

from wc_jax.policy import PolicyConfig, weight_table

Remat = Literal["none", "dots", "layer"]


@dataclass(frozen=True, kw_only=True)
class RowWork:
    """FLOPs of one full row, forward."""

    layers: float
    """Products with the layers' weights."""
    attention: float
    """Queries with keys, and their weights with values."""
    recurrence: float
    """Reading and writing the states of recurrent layers."""
    head: float
    """Logits of every token."""

    @property
    def mixing(self) -> float:
        """What is not a product with a weight."""
        return self.attention + self.recurrence

    @property
    def total(self) -> float:
        """All of it."""
        return self.layers + self.mixing + self.head


def layer_weights(policy: PolicyConfig) -> int:
    """Scalars of the layers' matrices: what each token is multiplied with, the head apart."""
    return sum(
        weight.num_elements
        for name, weight in weight_table(policy).items()
        if name.startswith(("layers.", "full.", "linear.")) and len(weight.shape) == 3 and "conv" not in weight.axes
    )


def row_work(policy: PolicyConfig, row_tokens: int) -> RowWork:
    """Of a row that holds one sample: each token sees all tokens before it and itself.

    >>> policy = PolicyConfig(vocab_size=10, width=4, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=2, ff_dim=3)
    >>> row_work(policy, 5)  # weights 4*4 + 2*4*2 + 4*4 + 3*4*3 = 84; pairs 5*6/2 = 15; head 4*10
    RowWork(layers=840.0, attention=240.0, recurrence=0.0, head=400.0)
    """
    kinds = policy.kinds
    pairs = row_tokens * (row_tokens + 1) / 2
    attention = 4.0 * policy.num_heads * policy.head_dim * pairs * kinds.count("full")
    recurrence = 0.0
    if policy.delta is not None:
        delta = policy.delta
        # A token reads the state at its key, corrects it, and reads it at its query: three products a head.
        state = delta.value_heads * delta.key_dim * delta.value_dim
        recurrence = 6.0 * state * row_tokens * kinds.count("linear")
    return RowWork(
        layers=2.0 * layer_weights(policy) * row_tokens,
        attention=attention,
        recurrence=recurrence,
        head=2.0 * policy.width * policy.vocab_size * row_tokens,
    )


def model_flops(work: RowWork, *, trains: bool) -> float:
    """What the row must cost: forward, and in training twice that for the gradients."""
    return work.total * (3.0 if trains else 1.0)


def executed_flops(work: RowWork, *, trains: bool, remat: Remat, has_adapters: bool) -> float:
    """What the programs spend on the row: also all that the backward pass computes again.

    Attention's backward pass has five products where its forward pass has two; the head's starts from new logits.
    Under adapters the weights' own gradients are left out.
    """
    if not trains:
        return work.total
    again = {"none": 0.0, "dots": work.mixing, "layer": work.layers + work.mixing}[remat]
    of_weights = 1.0 if has_adapters else 2.0
    back = of_weights * work.layers + 2.5 * work.attention + 2.0 * work.recurrence + (1.0 + of_weights) * work.head
    return work.total + again + back


def busiest_share(sequence: int) -> float:
    """Attention work of the device that holds a row's end, over the mean: it sees most tokens.

    >>> busiest_share(1), busiest_share(4)
    (1.0, 1.75)
    """
    return (2 * sequence - 1) / sequence


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How the work lies on devices."""

    tokens: int
    """Of one micro-batch on one device."""
    tensor: int
    """Parts that each product is cut into."""
    held: int
    """Scalars of trained weights that one device keeps."""


def bytes_moved(
    policy: PolicyConfig, cut: Cut, *, trains: bool, remat: Remat, micro_batches: int, value_bytes: int = 2
) -> float:
    """Bytes between one device's memory and its compute units in one run of a program, at the least.

    Weights are written once when gathered and read once by each pass; a layer's activations are written and read
    once a pass; gradients are summed, and the optimizer reads and writes all it keeps, in float32.
    """
    weights = layer_weights(policy) / cut.tensor
    head = policy.width * policy.vocab_size / cut.tensor
    heads = policy.num_heads * policy.head_dim
    of_token = policy.num_layers * (8 * policy.width + (4 * heads + 5 * policy.ff_dim) / cut.tensor)
    passes = 1 if not trains else 2 if remat == "none" else 3
    moved = passes * (2 * value_bytes * weights + 2 * value_bytes * of_token * cut.tokens)
    moved += 2 * value_bytes * head * (2 if trains else 1)
    if not trains:
        return micro_batches * moved
    moved += 4 * (weights + head) + 4 * 3 * cut.held
    return micro_batches * moved + 4 * 9 * cut.held
