"""Rotary positions, half-rotation form: dimension i turns with dimension i + H/2, as Hugging Face stores it."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rope_table(
    positions: Int[Array, "B T"], *, head_dim: int, theta: float
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Cosine and sine of position * theta**(-2i/H). Always float32: at position 60,000 bfloat16 is noise."""
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequency = 1.0 / theta**exponent
    angle = positions.astype(jnp.float32)[:, :, None] * frequency[None, None, :]
    return jnp.cos(angle), jnp.sin(angle)


def rotate(
    x: Float[Array, "B T N H"], cos: Float[Array, "B T half"], sin: Float[Array, "B T half"]
) -> Float[Array, "B T N H"]:
    """Turn each head's pairs by their position's angle, in float32."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cos, sin = cos[:, :, None, :], sin[:, :, None, :]
    turned = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return turned.astype(x.dtype)
