"""A short causal convolution along each token's own path: how recurrent layers of hybrid policies mix neighbors."""

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Float, Int


def _before(x: jax.Array, predecessor: jax.Array) -> jax.Array:
    """[B, T, F]: at each token what `x` holds at the one before it in its path; 0 at a root."""
    at = jnp.where(predecessor < 0, x.shape[1], predecessor)  # past the end: filled; -1 would wrap around
    return jax.vmap(lambda row, at: row.at[at].get(mode="fill", fill_value=0))(x, at)


def short_conv(
    x: Float[Array, "B T F"], weight: Float[Array, "F width"], predecessor: Int[Array, "B T"]
) -> Float[Array, "B T F"]:
    """out[t, f] = sum over a < width of weight[f, width - 1 - a] x[a-th ancestor of t, f]; x's dtype, float32 sums.

    The 0-th ancestor is the token itself; those above the root count as 0. Features do not mix.

    >>> x, weight = jnp.array([1.0, 10.0, 100.0]).reshape(1, 3, 1), jnp.array([[2.0, 1.0]])
    >>> short_conv(x, weight, jnp.array([[-1, 0, 0]])).ravel().tolist()  # the second and third both follow the first
    [1.0, 12.0, 102.0]
    """
    wide, weight = x.astype(jnp.float32), weight.astype(jnp.float32)
    # As Horner's rule does with powers: one step along the path is applied to all that lies further up.
    total = wide * weight[:, 0][None, None]
    for tap in range(1, weight.shape[1]):
        total = _before(total, predecessor) + wide * weight[:, tap][None, None]
    return total.astype(x.dtype)
