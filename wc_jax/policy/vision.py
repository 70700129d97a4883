"""The vision tower of Qwen3.5: patches of still images in, one feature for each token that shows them out.

Each patch is embedded linearly, given a learned position interpolated from a square grid, and sees all patches of its
own image through `depth` pre-norm layers whose heads turn with row and column. Then merge_size x merge_size
neighbors, which stand side by side, become one feature of the policy's width.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp

from wc_jax.mesh import STATES, constrain
from wc_jax.policy.attention import path_attention
from wc_jax.policy.blocks import linear
from wc_jax.policy.compute import Compute, with_remat
from wc_jax.policy.config import VisionConfig
from wc_jax.policy.rope import frequencies, rotate
from wc_jax.policy.weight import Params
from wc_jax.shapes import Array, Float, Int
from wc_jax.types import Images

_EPS = 1e-6


def image_features(
    params: Params, config: VisionConfig, images: Images, *, compute: Compute
) -> Float[Array, "B features W"]:
    """Of each merge_size x merge_size block of patches, [B, P / merge_size², out_width]; padding gives finite values.

    `params`: those of the policy, of which `vision.*` are read. A device holds its own rows' images, and its part of
    a row's patches. No P x P array exists.
    """
    patches, place, grid, since, until = (jnp.asarray(x) for x in images[:5])
    assert patches.shape[1] % config.merge_size**2 == 0, "a row's patches are whole blocks"
    own = {name.removeprefix("vision."): w for name, w in params.items() if name.startswith("vision.")}
    with jax.named_scope("patches"):
        x = _embed_patches(patches, own, config, compute)
        x = x + position_embeddings(own["positions"], place, grid).astype(x.dtype)
        x = constrain(x, compute.mesh, *STATES)
    turns = axial_angles(place, config)
    apply = partial(_layer, turns=turns, extent=(until, since), config=config, compute=compute)
    layers = {name.removeprefix("layers."): w for name, w in own.items() if name.startswith("layers.")}
    x, _ = jax.lax.scan(with_remat(apply, compute.remat), x, layers, unroll=config.depth if compute.unroll else 1)
    with jax.named_scope("merger"):
        return _merge(x, own, config, compute)


def _embed_patches(patches: jax.Array, w: Params, config: VisionConfig, compute: Compute) -> jax.Array:
    """uint8 [B, P, C*p*p] -> [B, P, D]. A still image repeats its frame: the kernel's time slices add up."""
    frames = w["patch_embed"].reshape(config.in_channels, config.temporal_patch_size, -1, config.width)
    kernel = jnp.sum(frames, axis=1).reshape(-1, config.width)
    # Mean and standard deviation of 0.5 on pixels in 0..1; a PictureRule refuses others.
    pixels = patches.astype(jnp.float32) / 127.5 - 1.0
    out = linear(pixels.astype(compute.jnp_dtype), kernel, compute.is_spread)
    return out + w["patch_embed_bias"].astype(out.dtype)[None, None]


def position_embeddings(
    table: Float[Array, "N D"], place: Int[Array, "B P 2"], grid: Int[Array, "B P 2"]
) -> Float[Array, "B P D"]:
    """The square table stretched over each image's grid: corners on corners, bilinear in between; float32."""
    side = math.isqrt(table.shape[0])
    # The order of operations decides, for a source between two rows, which rows those are: times first.
    source = place.astype(jnp.float32) * float(side - 1) / jnp.maximum(grid - 1, 1).astype(jnp.float32)
    low = jnp.floor(source)
    share = source - low
    near = low.astype(jnp.int32)
    far = jnp.minimum(near + 1, side - 1)
    table = table.astype(jnp.float32)
    found = jnp.zeros((*place.shape[:2], table.shape[1]), jnp.float32)
    for row, of_row in ((near[..., 0], 1.0 - share[..., 0]), (far[..., 0], share[..., 0])):
        for column, of_column in ((near[..., 1], 1.0 - share[..., 1]), (far[..., 1], share[..., 1])):
            found = found + (of_row * of_column)[..., None] * table[row * side + column]
    return found


def axial_angles(
    place: Int[Array, "B P 2"], config: VisionConfig
) -> tuple[Float[Array, "B P half"], Float[Array, "B P half"]]:
    """Cosine and sine for `rotate`: a head's first quarter of pairs turns by the row, its second by the column."""
    frequency, _ = frequencies(config.rope_theta, config.width // config.num_heads // 2, None)
    angle = (place.astype(jnp.float32)[..., None] * frequency[None, None, None]).reshape(*place.shape[:2], -1)
    return jnp.cos(angle), jnp.sin(angle)


def _layer(
    x: jax.Array,
    w: Params,
    *,
    turns: tuple[jax.Array, jax.Array],
    extent: tuple[jax.Array, jax.Array],
    config: VisionConfig,
    compute: Compute,
) -> tuple[jax.Array, None]:
    with jax.named_scope("attention"):
        h = layer_norm(x, w["attn_norm"], w["attn_norm_bias"])
        q, k, v = (
            _project(h, w, name, compute).reshape(*x.shape[:2], config.num_heads, -1) for name in ("q", "k", "v")
        )
        q, k = rotate(q, *turns), rotate(k, *turns)
        seen = path_attention(q, k, v, *extent, mesh=compute.mesh)
        x = x + _project(seen.reshape(x.shape), w, "o", compute)
    with jax.named_scope("mlp"):
        h = layer_norm(x, w["mlp_norm"], w["mlp_norm_bias"])
        x = x + _project(_gelu(_project(h, w, "up", compute), approximate=True), w, "down", compute)
    return constrain(x, compute.mesh, *STATES), None


def _merge(x: jax.Array, w: Params, config: VisionConfig, compute: Compute) -> jax.Array:
    own = {name.removeprefix("merger."): v for name, v in w.items() if name.startswith("merger.")}
    x = layer_norm(x, own["norm"], own["norm_bias"])
    x = x.reshape(x.shape[0], -1, config.merge_size**2 * config.width)
    x = constrain(x, compute.mesh, *STATES)
    out = _project(_gelu(_project(x, own, "up", compute), approximate=False), own, "down", compute)
    return constrain(out, compute.mesh, *STATES)


def _project(x: jax.Array, w: Params, name: str, compute: Compute) -> jax.Array:
    out = linear(x, w[name], compute.is_spread)
    return out + w[f"{name}_bias"].astype(out.dtype)[None, None]


def _gelu(x: jax.Array, *, approximate: bool) -> jax.Array:
    return jax.nn.gelu(x.astype(jnp.float32), approximate=approximate).astype(x.dtype)


def layer_norm(x: Float[Array, "B P D"], scale: Float[Array, "D"], bias: Float[Array, "D"]) -> Float[Array, "B P D"]:
    """Zero mean and unit variance over the last axis, then scaled and shifted; in float32, returned as x's type."""
    x32 = x.astype(jnp.float32)
    centered = x32 - jnp.mean(x32, axis=-1, keepdims=True)
    normed = centered * jax.lax.rsqrt(jnp.mean(centered * centered, axis=-1, keepdims=True) + _EPS)
    return (normed * scale.astype(jnp.float32)[None, None] + bias.astype(jnp.float32)[None, None]).astype(x.dtype)
