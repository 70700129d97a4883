"""Log-probability and entropy of tokens from hidden states, a chunk of tokens at a time.

No `T x V` array ever exists: a chunk's logits live only while they are worked on (see `logprob_loops`), in
the forward pass and again in the backward pass. Tokens that are not trained are sorted to the end, and the
loops stop before them. (A branch per chunk instead would hand the whole unembedding through each branch, a
copy of `D x V` per chunk.)
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from wc_jax import logprob_cut, logprob_loops
from wc_jax.logprob_loops import Chunks, Loops, PerToken
from wc_jax.mesh import PARTS, STATES, TOKENS, on_each_device, spec
from wc_jax.shapes import Array, Bool, Float, Int
from wc_jax.types import AnyArray

_TOKENS, _STATES, _HEAD = spec(*TOKENS), spec(*STATES), spec(PARTS, "tensor")
_EACH: Any = PerToken(*[_TOKENS] * 3)  # type: ignore[arg-type]


def _cut(x: jax.Array, order: jax.Array, chunk: int) -> jax.Array:
    """`[B, T, ...]`, its tokens in that order, as `[C, chunk, ...]`."""
    flat = x.reshape(-1, *x.shape[2:])[order]
    padding = -flat.shape[0] % chunk
    return jnp.pad(flat, ((0, padding),) + ((0, 0),) * (flat.ndim - 1)).reshape(-1, chunk, *flat.shape[1:])


def _restore(x: jax.Array, inverse: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """The way back from `_cut`."""
    return x.reshape(-1, *x.shape[2:])[inverse].reshape(*shape, *x.shape[2:])


def _local_targets(targets: jax.Array, unembed: jax.Array, mesh: Mesh | None) -> jax.Array:
    """Counted from this device's first column; outside of 0..columns-1 where another device has it."""
    if mesh is None:
        return targets
    return targets - jax.lax.axis_index("tensor").astype(targets.dtype) * unembed.shape[1]


def _chunks(
    hidden: jax.Array, unembed: jax.Array, targets: jax.Array, mask: jax.Array, loops: Loops, mesh: Mesh | None
) -> tuple[Chunks, jax.Array, jax.Array]:
    """Trained tokens first; with the order and its inverse."""
    order = jnp.argsort(~mask.reshape(-1), stable=True)
    cut = partial(_cut, order=order, chunk=loops.chunk)
    targets = _local_targets(targets, unembed, mesh)
    return Chunks(cut(hidden), cut(targets), cut(mask)), order, jnp.argsort(order)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _logprobs(
    hidden: jax.Array, unembed: jax.Array, targets: jax.Array, mask: jax.Array, loops: Loops, mesh: Mesh | None
) -> tuple[jax.Array, jax.Array]:
    out = _score(hidden, unembed, targets, mask, loops, mesh)
    return out.logp, out.entropy


def _score(hidden, unembed, targets, mask, loops, mesh) -> PerToken:  # type: ignore[no-untyped-def]
    def local(hidden: jax.Array, unembed: jax.Array, targets: jax.Array, mask: jax.Array) -> PerToken:
        chunks, _, inverse = _chunks(hidden, unembed, targets, mask, loops, mesh)
        found = (logprob_loops if mesh is None else logprob_cut).forward(chunks, unembed, loops)
        return jax.tree.map(lambda x: _restore(x, inverse, mask.shape), found)

    run = on_each_device(local, mesh, (_STATES, _HEAD, _TOKENS, _TOKENS), _EACH)
    return run(hidden, unembed, targets, mask)


def _logprobs_fwd(hidden: Any, unembed: Any, targets: Any, mask: Any, loops: Loops, mesh: Mesh | None) -> Any:
    # With symbolic zeros each argument says whether anybody asks for its gradient: a frozen head gets no buffer.
    values = (hidden.value, unembed.value, targets.value, mask.value)
    out = _score(*values, loops, mesh)
    return (out.logp, out.entropy), (*values, out, _Flag(unembed.perturbed))


class _Flag:
    """A static bool that travels with the residuals."""

    def __init__(self, value: bool) -> None:
        self.value = value


jax.tree_util.register_pytree_node(_Flag, lambda flag: ((), flag.value), lambda value, _: _Flag(value))


def _logprobs_bwd(loops: Loops, mesh: Mesh | None, residuals: Any, cotangents: Any) -> Any:
    hidden, unembed, targets, mask, out, flag = residuals
    trains_head = flag.value
    up, down = (
        jnp.zeros(g.shape, jnp.float32) if isinstance(g, jax.custom_derivatives.SymbolicZero) else g for g in cotangents
    )

    def local(
        hidden: jax.Array,
        unembed: jax.Array,
        targets: jax.Array,
        mask: jax.Array,
        saved: PerToken,
        up: jax.Array,
        down: jax.Array,
    ) -> tuple[jax.Array, ...]:
        chunks, order, inverse = _chunks(hidden, unembed, targets, mask, loops, mesh)
        cut = partial(_cut, order=order, chunk=loops.chunk)
        d_hidden, d_unembed = (logprob_loops if mesh is None else logprob_cut).backward(
            chunks, unembed, loops, jax.tree.map(cut, saved), cut(up), cut(down), trains_head
        )
        d_hidden = _restore(d_hidden, inverse, mask.shape)
        if mesh is not None:
            d_hidden = jax.lax.psum(d_hidden, "tensor")
        if d_unembed is None:
            return (d_hidden.astype(hidden.dtype),)
        return d_hidden.astype(hidden.dtype), d_unembed.astype(unembed.dtype)

    in_specs = (_STATES, _HEAD, _TOKENS, _TOKENS, _EACH, _TOKENS, _TOKENS)
    run = on_each_device(local, mesh, in_specs, (_STATES, _HEAD) if trains_head else (_STATES,))
    found = run(hidden, unembed, targets, mask, out, up, down)
    return found[0], (found[1] if trains_head else None), None, None


_logprobs.defvjp(_logprobs_fwd, _logprobs_bwd, symbolic_zeros=True)


def row_logprobs(
    hidden: Float[AnyArray, "B T D"],
    unembed: Float[AnyArray, "D V"],
    targets: Int[AnyArray, "B T"],
    loss_mask: Bool[AnyArray, "B T"],
    *,
    temperature: float = 1.0,
    chunk: int = 512,
    tile: int = 4096,
    mesh: Mesh | None = None,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """`token_logprobs` of whole rows. With a mesh, each device works on its own rows, tokens and columns."""
    for name, value in (("temperature", temperature), ("chunk", chunk), ("tile", tile)):
        if value <= 0:
            raise ValueError(f"{name} must be above 0, got {value}")
    hidden, targets, mask = jnp.asarray(hidden), jnp.asarray(targets), jnp.asarray(loss_mask)
    unembed = jnp.asarray(unembed).astype(hidden.dtype)
    parts = 1 if mesh is None else mesh.devices.size
    num_columns = unembed.shape[1] // (1 if mesh is None else mesh.shape["tensor"])
    loops = Loops(
        temperature=temperature,
        chunk=max(1, min(chunk, mask.size // max(parts, 1))),
        tile=min(tile, num_columns),
    )
    return _logprobs(hidden, unembed, targets, mask, loops, mesh)


def token_logprobs(
    hidden: Float[AnyArray, "T D"],
    unembed: Float[AnyArray, "D V"],
    targets: Int[AnyArray, "T"],
    *,
    temperature: float = 1.0,
    chunk: int = 512,
    tile: int = 4096,
    loss_mask: Bool[AnyArray, "T"] | None = None,
) -> tuple[Float[Array, "T"], Float[Array, "T"]]:
    """Log-probability (nats) of `targets[t]` and full-vocabulary entropy, both under softmax(logits / temperature).

    `hidden[t]` must be the state that predicts `targets[t]`. With `loss_mask`, masked positions give 0,
    pass no gradient (they may be NaN), and cost nothing. `chunk x tile` logits are in memory at a time.
    `temperature`, `chunk` and `tile` are static. Raises ValueError where one of them is not above 0.

    >>> logp, entropy = token_logprobs(jnp.ones((1, 1)), jnp.log(jnp.array([[1.0, 3.0]])), jnp.array([1]))
    >>> [round(float(x[0]), 4) for x in (logp, entropy)]  # ln 3/4, and ln 4 - 3/4 ln 3
    [-0.2877, 0.5623]
    """
    targets = jnp.asarray(targets)
    mask = jnp.ones(targets.shape, bool) if loss_mask is None else jnp.asarray(loss_mask)
    if targets.shape[0] == 0:
        return jnp.zeros((0,), jnp.float32), jnp.zeros((0,), jnp.float32)
    logp, entropy = row_logprobs(
        jnp.asarray(hidden)[None],
        unembed,
        targets[None],
        mask[None],
        temperature=temperature,
        chunk=chunk,
        tile=tile,
    )
    return logp[0], entropy[0]
