"""The forward function of every family: tokens in, hidden states out. The head is `logprobs`' business."""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp

from wc_jax.mesh import STATES, constrain
from wc_jax.policy.compute import IN_FLOAT32, Compute, with_remat
from wc_jax.policy.config import LayerKind, PolicyConfig
from wc_jax.policy.embedding import embed
from wc_jax.policy.layers import Rows, apply_layer, norm
from wc_jax.policy.rope import rope_table
from wc_jax.policy.vision import image_features
from wc_jax.policy.weight import Params
from wc_jax.shapes import Array, Float, Int
from wc_jax.types import AnyArray, Images


def hidden_states(
    params: Params,
    config: PolicyConfig,
    tokens: Int[AnyArray, "B T"],
    positions: Int[AnyArray, "B T *axes"] | None = None,
    visible_until: Int[AnyArray, "B T"] | None = None,
    predecessor: Int[AnyArray, "B T"] | None = None,
    images: Images | None = None,
    *,
    compute: Compute = IN_FLOAT32,
) -> Float[Array, "B T D"]:
    """Final normed states; state t has seen token t and the tokens before it in its own sample.

    `positions`, `visible_until`, `predecessor` and `images` as in `Batch`; None: each row is one sample of text.
    Recurrent layers want rows in chunks, see `Compute.delta_chunk`.
    """
    tokens = jnp.asarray(tokens)
    rows = describe_rows(tokens, positions, visible_until, predecessor, config)
    x = embedded(params, config, tokens, images, compute)
    return norm(_layers(x, params, rows, config, compute), params["final_norm"], config)


def describe_rows(
    tokens: jax.Array,
    positions: AnyArray | None,
    visible_until: AnyArray | None,
    predecessor: AnyArray | None,
    config: PolicyConfig,
) -> Rows:
    """What layers need to know of the rows; None: each row is one sample."""
    column = jnp.broadcast_to(jnp.arange(tokens.shape[1], dtype=jnp.int32)[None, :], tokens.shape)
    positions = column if positions is None else jnp.asarray(positions)
    cos, sin = rope_table(positions, config)
    return Rows(
        cos=cos,
        sin=sin,
        visible_until=jnp.full_like(column, tokens.shape[1]) if visible_until is None else jnp.asarray(visible_until),
        predecessor=column - 1 if predecessor is None else jnp.asarray(predecessor),
    )


def embedded(
    params: Params, config: PolicyConfig, tokens: jax.Array, images: Images | None, compute: Compute
) -> Float[Array, "B T D"]:
    """Each token's embedding, or the image feature that stands in its place."""
    x = embed(params["embed"], tokens, compute.jnp_dtype, compute.mesh)
    if images is None:
        return x
    assert config.vision is not None, "images for a policy without a vision tower"
    features = image_features(params, config.vision, images, compute=compute)
    found = jax.vmap(lambda row, slot: row[jnp.maximum(slot, 0)])(features, jnp.asarray(images.slot))
    x = jnp.where((images.slot >= 0)[:, :, None], found.astype(x.dtype), x)
    return constrain(x, compute.mesh, *STATES)


def unembed(params: Params, config: PolicyConfig) -> Float[Array, "D V"]:
    """The matrix that turns states into logits; with tied embeddings, the embedding itself."""
    return params["embed"].T if config.tie_embeddings else params["head"]


def _layers(x: jax.Array, params: Params, rows: Rows, config: PolicyConfig, compute: Compute) -> jax.Array:
    """All layers. They are looped over in groups that repeat, so that the compiled program holds one group."""
    kinds = config.kinds
    group = kinds[: _period(kinds)]
    num_groups = len(kinds) // len(group)
    apply = {
        kind: with_remat(partial(_apply, rows=rows, kind=kind, config=config, compute=compute), compute.remat)
        for kind in set(group)
    }
    stacks = {
        name: w.reshape(num_groups, -1, *w.shape[1:])
        for name, w in params.items()
        if name.startswith(("layers.", "full.", "linear."))
    }

    def one_group(x: jax.Array, w: Mapping[str, jax.Array]) -> tuple[jax.Array, None]:
        for i, kind in enumerate(group):
            nth = group[:i].count(kind)
            own = {name.removeprefix("layers."): v[i] for name, v in w.items() if name.startswith("layers.")}
            own |= {name.removeprefix(f"{kind}."): v[nth] for name, v in w.items() if name.startswith(f"{kind}.")}
            x = apply[kind](x, own)
        return x, None

    if not compute.unroll:
        return jax.lax.scan(one_group, x, stacks)[0]
    for g in range(num_groups):
        x, _ = one_group(x, {name: w[g] for name, w in stacks.items()})
    return x


def _apply(
    x: jax.Array, w: Params, *, rows: Rows, kind: LayerKind, config: PolicyConfig, compute: Compute
) -> jax.Array:
    return apply_layer(x, w, rows, kind=kind, config=config, compute=compute)


def _period(kinds: tuple[LayerKind, ...]) -> int:
    """The length of the shortest group of layers whose repetition is all of them.

    >>> _period(("linear", "full", "linear", "full")), _period(("full", "full")), _period(("linear", "full", "full"))
    (2, 1, 3)
    """
    length = len(kinds)
    return next(n for n in range(1, length + 1) if length % n == 0 and kinds[:n] * (length // n) == kinds)
