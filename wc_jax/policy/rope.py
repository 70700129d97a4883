"""Rotary positions, half-rotation form: dimension i turns with dimension i + half, as Hugging Face stores it."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.policy.config import PolicyConfig, RopeScaling
from wc_jax.shapes import Array, Float, Int


def rope_table(
    positions: Int[Array, "B T *axes"], config: PolicyConfig
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Cosine and sine of position * frequency. Always float32: at position 60,000 bfloat16 is noise.

    `positions`: one a token, or three (time, row, column) whose frequencies `config.mrope_section` shares out.
    """
    frequency, factor = frequencies(config.rope_theta, config.turning_dim, config.rope_scaling)
    if positions.ndim == 2:
        angle = positions.astype(jnp.float32)[:, :, None] * frequency[None, None, :]
    else:
        axis = np.array([_axis(i, config.mrope_section) for i in range(len(frequency))])
        angle = positions.astype(jnp.float32)[:, :, axis] * frequency[None, None, :]
    # Without the barrier the cosines are computed again for every head of every layer.
    return jax.lax.optimization_barrier((factor * jnp.cos(angle), factor * jnp.sin(angle)))


def _axis(i: int, sections: tuple[int, ...]) -> int:
    """Which of the three positions frequency i follows: they take turns, until rows and columns have their share."""
    axis = i % 3
    return axis if axis and i < 3 * sections[axis] else 0


def frequencies(theta: float, dim: int, scaling: RopeScaling | None) -> tuple[np.ndarray, np.float32]:
    """`(float32 [dim / 2]: radians a position, what multiplies cosine and sine)`.

    >>> frequencies(16.0, 4, None)[0].tolist()
    [1.0, 0.25]
    >>> frequencies(16.0, 4, RopeScaling(kind="linear", factor=2.0))[0].tolist()
    [0.5, 0.125]
    """
    base = (1.0 / theta ** (np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))).astype(np.float32)
    if scaling is None:
        return base, np.float32(1)
    stretched = base / np.float32(scaling.factor)
    if scaling.kind == "linear":
        return stretched, np.float32(1)
    if scaling.kind == "llama3":
        return _llama3(base, stretched, scaling), np.float32(1)
    keep = _yarn_kept(theta, dim, scaling)
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
    return (stretched * (1 - keep) + base * keep).astype(np.float32), np.float32(factor)


def _llama3(base: np.ndarray, stretched: np.ndarray, scaling: RopeScaling) -> np.ndarray:
    """Short waves as they are, long ones stretched, those between the two bounds in between."""
    turns = scaling.original_positions * base / (2 * np.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    keep = np.clip(share, 0.0, 1.0)
    return (keep * base + (1 - keep) * stretched).astype(np.float32)


def _yarn_kept(theta: float, dim: int, scaling: RopeScaling) -> np.ndarray:
    """YaRN (arXiv 2309.00071, section 3.2): which share of each frequency is left as it is."""

    def dimension(turns: float) -> float:
        return dim * math.log(scaling.original_positions / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    ramp = (np.arange(dim // 2, dtype=np.float32) - low) / (high - low)
    return 1 - np.clip(ramp, 0, 1).astype(np.float32)


def turn(
    x: Float[Array, "B T N H"], cos: Float[Array, "B T half"], sin: Float[Array, "B T half"]
) -> Float[Array, "B T N H"]:
    """`rotate` of a head's first dimensions; those that the table does not reach stay."""
    reach = 2 * cos.shape[-1]
    if reach == x.shape[-1]:
        return rotate(x, cos, sin)
    return jnp.concatenate([rotate(x[..., :reach], cos, sin), x[..., reach:]], axis=-1)


@jax.custom_vjp
def rotate(
    x: Float[Array, "B T N H"], cos: Float[Array, "B T half"], sin: Float[Array, "B T half"]
) -> Float[Array, "B T N H"]:
    """Turn each head's pairs by their position's angle, in float32."""
    return _turn(x, cos, sin)


def _turn(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    batch, length, heads, dim = x.shape
    halves = x.astype(jnp.float32).reshape(batch, length, heads, 2, dim // 2)
    signed = jnp.stack([-sin, sin], axis=2)[:, :, None]
    turned = halves * cos[:, :, None, None, :] + jnp.flip(halves, axis=3) * signed
    return turned.reshape(x.shape).astype(x.dtype)


def _rotate_fwd(x, cos, sin):  # type: ignore[no-untyped-def]
    return _turn(x, cos, sin), (cos, sin)


def _rotate_bwd(saved, g):  # type: ignore[no-untyped-def]
    cos, sin = saved
    # A rotation's transpose turns back. Positions carry no gradient.
    return _turn(g, cos, -sin), jnp.zeros_like(cos), jnp.zeros_like(sin)


rotate.defvjp(_rotate_fwd, _rotate_bwd)
