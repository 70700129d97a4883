"""Hugging Face / vLLM tensors <-> weights: one name table, read in both directions, one tensor at a time.

Every source key is used exactly once and every target key is written exactly once, or it is an error.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.policy import Params, PolicyConfig, check_params, hf_tensors, weight_table
from wc_jax.policy.lora import A, B, is_adapter, merged
from wc_jax.policy.names import HfTensor
from wc_jax.safetensors_files import DTYPES, Spec, WeightsError, listed

Piece = tuple[str, int | None, np.ndarray]
"""(a weight's name, which of its stacked layers or None, the values): what one tensor gives to one weight."""

Dtypes = str | Mapping[str, str]
"""Of all tensors, or of each by its Hugging Face name."""

HEAD = "lm_head.weight"


def hf_specs(config: PolicyConfig, *, dtype: Dtypes = "float32") -> dict[str, Spec]:
    """Every tensor of a folder of this policy, and what it looks like. Raises `WeightsError` for other dtypes.

    >>> from wc_jax.policy import PolicyConfig
    >>> tiny = PolicyConfig(vocab_size=8, width=4, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=2, ff_dim=6)
    >>> hf_specs(tiny)["model.layers.0.self_attn.k_proj.weight"]
    Spec(dtype=dtype('float32'), shape=(2, 4))
    """
    found = {}
    for tensor in hf_tensors(config):
        named = dtype if isinstance(dtype, str) else dtype[tensor.key]
        if (of := jnp.dtype(named)) not in DTYPES.values():
            raise WeightsError(f"{tensor.key}: dtype must be float32, bfloat16 or float16, got {named}")
        found[tensor.key] = Spec(of, tensor.shape(part_shapes(tensor, config)))
    return found


def part_shapes(tensor: HfTensor, config: PolicyConfig) -> list[tuple[int, ...]]:
    """Of our weights in the tensor, without the axis of layers."""
    table = weight_table(config)
    return [table[part].shape[0 if tensor.layer is None else 1 :] for part in tensor.parts]


def shapes(config: PolicyConfig) -> dict[str, tuple[int, ...]]:
    """Of the weights that a folder of this policy holds; adapters are not among them."""
    return {name: weight.shape for name, weight in weight_table(config).items() if not is_adapter(name)}


def to_hf(
    params: Mapping[str, jax.Array | np.ndarray],
    config: PolicyConfig,
    *,
    dtype: Dtypes = "float32",
    keys: Sequence[str] | None = None,
) -> Iterator[tuple[str, np.ndarray]]:
    """Contiguous host tensors under Hugging Face's names, adapters merged in, each made when it is asked for.

    Of weights on devices, one layer at a time comes to the host. `keys`: the order, of all of them; None for the
    table's. Raises `WeightsError` for params of another policy, before the first tensor.
    """
    try:
        check_params(params, config)
    except ValueError as error:
        raise WeightsError(str(error)) from error
    specs = hf_specs(config, dtype=dtype)
    tensors = {tensor.key: tensor for tensor in hf_tensors(config)}
    if keys is not None and (len(keys) != len(tensors) or set(keys) != set(tensors)):
        raise WeightsError(f"keys must be this policy's, once each: {listed(sorted(set(keys) ^ set(tensors)))}")

    def made() -> Iterator[tuple[str, np.ndarray]]:
        for key in tensors if keys is None else keys:
            tensor, target = tensors[key], specs[key].dtype
            parts = [_on_host(params, config, part, tensor.layer) for part in tensor.parts]
            yield key, tensor.join([part.astype(target, copy=False) for part in parts])

    return made()


def _on_host(
    params: Mapping[str, jax.Array | np.ndarray], config: PolicyConfig, name: str, layer: int | None
) -> np.ndarray:
    """One layer of a weight, its adapter merged in."""
    names = [name, *(name + end for end in (A, B) if name + end in params)]
    found = {name: params[name] if layer is None else params[name][layer] for name in names}
    value = merged(found, config.lora)[name]
    if isinstance(value, jax.Array) and layer is None and value.devices() != {jax.devices("cpu")[0]}:
        # JAX keeps the host's copy of an array for as long as the array lives; that of a copy goes at once.
        value = jnp.copy(value)
    return np.asarray(value)


def from_hf(
    read: Callable[[str], np.ndarray], present: Collection[str], config: PolicyConfig, *, dtype: str = "float32"
) -> Params:
    """Weights on the host, by asking `read` for each key once.

    Raises `WeightsError` when keys are missing or unknown, or a tensor has another shape.
    """
    check_keys(present, config, read)
    return gathered(pieces(read, [t.key for t in hf_tensors(config)], config), shapes(config), dtype=dtype)


def check_keys(present: Collection[str], config: PolicyConfig, read: Callable[[str], np.ndarray]) -> None:
    """Raises `WeightsError` naming keys that are missing or unknown."""
    wanted = {tensor.key: tensor for tensor in hf_tensors(config)}
    unknown = set(present) - wanted.keys()
    if config.tie_embeddings and HEAD in unknown:
        # Some writers store the tied head too. Equal, it says nothing new; different, the config is wrong.
        embed = next(key for key, tensor in wanted.items() if tensor.parts == ("embed",))
        if embed in present and not np.array_equal(read(HEAD), read(embed)):
            raise WeightsError(f"{HEAD} differs from the embedding although tie_word_embeddings is true")
        unknown.discard(HEAD)
    missing = sorted(wanted.keys() - set(present))
    if missing or unknown:
        raise WeightsError(
            listed([*(f"missing {key}" for key in missing), *(f"unknown {key}" for key in sorted(unknown))])
        )


def pieces(read: Callable[[str], np.ndarray], keys: Sequence[str], config: PolicyConfig) -> Iterator[Piece]:
    """What each tensor gives to each weight, in the order of `keys`; views where possible.

    Raises `WeightsError` for a tensor of another shape.
    """
    tensors = {tensor.key: tensor for tensor in hf_tensors(config)}
    for key in keys:
        tensor, value = tensors[key], read(key)
        within = part_shapes(tensor, config)
        if value.shape != (wanted := tensor.shape(within)):
            raise WeightsError(f"{key} must be {wanted}, got {value.shape}")
        for part, ours in zip(tensor.parts, tensor.split(value, tensor.sizes(within)), strict=True):
            yield part, tensor.layer, ours


def gathered(found: Iterator[Piece], sizes: Mapping[str, tuple[int, ...]], *, dtype: str) -> Params:
    """Whole weights on the host. The pieces must be those of every weight that has a size."""
    host = {name: _aligned(shape, jnp.dtype(dtype)) for name, shape in sizes.items()}
    for name, layer, values in found:
        host[name][... if layer is None else layer] = values
    # On a CPU these are the arrays themselves: nobody else knows of them, so nobody else writes to them.
    return {name: jax.device_put(host.pop(name), may_alias=True) for name in sizes}


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Memory that JAX on a CPU takes as it is; what begins elsewhere than at a multiple of 64 bytes it copies."""
    num_bytes = Spec(dtype, shape).num_bytes
    memory = np.empty(num_bytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + num_bytes].view(dtype).reshape(shape)
