"""Weights onto their devices while they are read: the host holds one tensor at a time, never the policy."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from wc_jax.conversion import Piece
from wc_jax.policy import Params, PolicyConfig, weight_table

Source = Callable[[], Iterable[Piece]]
"""Reads all weights, each time that it is called; see `StoredPolicy.pieces`."""


def whole(params: Mapping[str, jax.Array | np.ndarray]) -> Iterable[Piece]:
    """Weights that the host holds anyway, as pieces."""
    return ((name, None, np.asarray(weight)) for name, weight in params.items())


def place(
    pieces: Iterable[Piece],
    config: PolicyConfig,
    shardings: Mapping[str, NamedSharding] | None,
    dtype: Callable[[str], np.dtype],
) -> Params:
    """The weights on a mesh, or on one device when `shardings` is None, each in the dtype that its name is given.

    The pieces must be all of the policy's, the same in every process. A stacked weight is made on its devices and
    filled layer by layer, so the devices hold it once and one layer more.

    >>> from wc_jax.policy import PolicyConfig, init_params
    >>> tiny = PolicyConfig(vocab_size=8, width=4, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=2, ff_dim=6)
    >>> params = init_params(tiny, jax.random.key(0))
    >>> placed = place(whole(params), tiny, None, lambda name: np.dtype("bfloat16"))
    >>> placed["layers.up"].shape, str(placed["layers.up"].dtype)
    ((2, 4, 6), 'bfloat16')
    """
    table, found = weight_table(config), dict[str, jax.Array]()
    for name, layer, values in pieces:
        target, sharding = dtype(name), None if shardings is None else shardings[name]
        if layer is None:
            found[name] = _put(values, target, sharding)
            continue
        if name not in found:
            found[name] = jnp.zeros(table[name].shape, target, device=sharding)
        cut = None if sharding is None else NamedSharding(sharding.mesh, PartitionSpec(*sharding.spec[1:]))
        found[name] = _writer(sharding)(found[name], layer, _put(values, target, cut))
        # Or reading would run ahead, and tensors wait in the host's memory for their transfer.
        found[name].block_until_ready()
    assert found.keys() == table.keys(), sorted(found.keys() ^ table.keys())
    return {name: found[name] for name in table}


def _put(values: np.ndarray, dtype: np.dtype, sharding: NamedSharding | None) -> jax.Array:
    if sharding is None:
        return jnp.array(values, dtype)
    return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index].astype(dtype))


@cache
def _writer(sharding: NamedSharding | None) -> Callable[[jax.Array, int, jax.Array], jax.Array]:
    def write(stack: jax.Array, layer: jax.Array, values: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(stack, values, layer, 0)

    return jax.jit(write, donate_argnums=0, out_shardings=sharding)
