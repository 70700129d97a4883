"""The pieces of a layer with hand-written backward passes: linear, RMS norm, gated unit.

Automatic differentiation gives the same numbers; on CPU XLA then fuses slow element-wise work (an
exponential, a cosine) into transposed copies and computes it again for each consumer. Here every
backward product is written in the form that lies well, and barriers keep element-wise results in one
piece. `tests/benchmarks/bench_flops.py` measures what the whole comes to.
"""

from functools import partial

import jax
import jax.numpy as jnp

from wc_jax.shapes import Array, Float


def _dot(a: jax.Array, b: jax.Array, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> jax.Array:
    return jax.lax.dot_general(a, b, ((of_a, of_b), ((), ())), preferred_element_type=jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def linear(x: Float[Array, "B T D"], w: Float[Array, "D F"], is_spread: bool = False) -> Float[Array, "B T F"]:
    """x @ w, computed in the type of x with float32 sums; the gradient of `w` keeps the type of `w`.

    `is_spread`: rows and tokens lie on several devices. Then they are not flattened, which would move them.
    """
    return _linear_fwd(x, w, is_spread)[0]


def _linear_fwd(x, w, is_spread):  # type: ignore[no-untyped-def]
    return _dot(x, w.astype(x.dtype), (2,), (0,)).astype(x.dtype), (x, w)


def _linear_bwd(is_spread, saved, g):  # type: ignore[no-untyped-def]
    x, w = saved
    d_x = _dot(g, w.astype(x.dtype), (2,), (1,)).astype(x.dtype)
    if is_spread:
        return d_x, _dot(x, g, (0, 1), (0, 1)).astype(w.dtype)
    # Over two axes at once, XLA's CPU backend would first write out x transposed: slower than the product.
    x, g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    return d_x, _dot(x, g, (0,), (0,)).astype(w.dtype)


linear.defvjp(_linear_fwd, _linear_bwd)


@partial(jax.custom_vjp, nondiff_argnums=(2,))
def rms_norm(x: Float[Array, "*shape D"], scale: Float[Array, "D"], eps: float) -> Float[Array, "*shape D"]:
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, in float32, returned in the type of x."""
    return _rms_fwd(x, scale, eps)[0]


def _like(scale: jax.Array, x: jax.Array) -> jax.Array:
    return scale.astype(jnp.float32).reshape((1,) * (x.ndim - 1) + (-1,))


def _rms_fwd(x, scale, eps):  # type: ignore[no-untyped-def]
    x32 = x.astype(jnp.float32)
    inverse = jax.lax.rsqrt(jnp.mean(x32 * x32, axis=-1, keepdims=True) + eps)
    out = (x32 * inverse * _like(scale, x)).astype(x.dtype)
    return jax.lax.optimization_barrier(out), (x, scale, inverse)


def _rms_bwd(eps, saved, g):  # type: ignore[no-untyped-def]
    x, scale, inverse = saved
    normed = x.astype(jnp.float32) * inverse
    g32 = g.astype(jnp.float32)
    d_scale = jnp.sum(g32 * normed, axis=tuple(range(x.ndim - 1))).astype(scale.dtype)
    d_normed = g32 * _like(scale, x)
    inner = jnp.mean(d_normed * normed, axis=-1, keepdims=True)
    return (inverse * (d_normed - normed * inner)).astype(x.dtype), d_scale


rms_norm.defvjp(_rms_fwd, _rms_bwd)


@jax.custom_vjp
def gated(gate: Float[Array, "B T F"], up: Float[Array, "B T F"]) -> Float[Array, "B T F"]:
    """silu(gate) * up."""
    return _gated_fwd(gate, up)[0]


def _gated_fwd(gate, up):  # type: ignore[no-untyped-def]
    gate32 = gate.astype(jnp.float32)
    out = (gate32 * jax.nn.sigmoid(gate32) * up.astype(jnp.float32)).astype(gate.dtype)
    return jax.lax.optimization_barrier(out), (gate, up)


def _gated_bwd(saved, g):  # type: ignore[no-untyped-def]
    gate, up = saved
    gate32, up32, g32 = (a.astype(jnp.float32) for a in (gate, up, g))
    sigmoid = jax.nn.sigmoid(gate32)
    d_up = (g32 * gate32 * sigmoid).astype(up.dtype)
    d_gate = (g32 * up32 * sigmoid * (1.0 + gate32 * (1.0 - sigmoid))).astype(gate.dtype)
    return jax.lax.optimization_barrier((d_gate, d_up))


gated.defvjp(_gated_fwd, _gated_bwd)
