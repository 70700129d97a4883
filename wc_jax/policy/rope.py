"""Rotary positions, half-rotation form: dimension i turns with dimension i + H/2, as Hugging Face stores it."""

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Float, Int


def rope_table(
    positions: Int[Array, "B T"], *, head_dim: int, theta: float
) -> tuple[Float[Array, "B T half"], Float[Array, "B T half"]]:
    """Cosine and sine of position * theta**(-2i/H). Always float32: at position 60,000 bfloat16 is noise."""
    exponent = jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim
    frequency = 1.0 / theta**exponent
    angle = positions.astype(jnp.float32)[:, :, None] * frequency[None, None, :]
    # Without the barrier the cosines are computed again for every head of every layer.
    return jax.lax.optimization_barrier((jnp.cos(angle), jnp.sin(angle)))


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
