"""Low-rank adapters as a folder in PEFT's format.

PEFT adapts whole tensors of a model's folder: it adds scale * B A to a tensor W [out, in], with A [R, in] and
B [out, R]. Where a tensor holds several of our weights (a query and its gate; the recurrent layers' q, k and v), whose
adapters are their own, A holds theirs one below the other and B holds each in the rows of its weight and zeros in the
others, so R is their number times the rank. `rank_pattern` and `alpha_pattern` say so; the scale stays the same.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.conversion import part_shapes
from wc_jax.policy import LoraConfig, PolicyConfig, hf_tensors, weight_table
from wc_jax.policy.lora import A, B
from wc_jax.policy.names import HfTensor
from wc_jax.safetensors_files import Spec, WeightsError, write_file
from wc_jax.weights import staged

ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"


def save_adapters(
    folder: Path | str,
    config: PolicyConfig,
    params: Mapping[str, jax.Array | np.ndarray],
    *,
    base: str,
    dtype: str = "float32",
) -> None:
    """Write the adapters among `params`, whole folder or none. `base`: name or path of the policy that they adapt.

    Raises `WeightsError` when the policy has none.
    """
    if config.lora is None:
        raise WeightsError("this policy has no adapters; give its config a LoraConfig, or save the policy itself")
    rank, target = config.lora.rank, jnp.dtype(dtype)
    shapes = dict[str, tuple[int, ...]]()
    ranks = dict[str, int]()
    for tensor, adapted in _adapted(config):
        dim_in, size = part_shapes(tensor, config)[0][0], sum(tensor.sizes(part_shapes(tensor, config)))
        ranks[_module(tensor).rpartition(".")[2]] = together = len(adapted) * rank
        shapes |= dict(zip(_keys(tensor), ((together, dim_in), (size, together)), strict=True))

    def made() -> Iterator[tuple[str, np.ndarray]]:
        for tensor, adapted in _adapted(config):
            for key, value in zip(_keys(tensor), _theirs(tensor, adapted, params, config), strict=True):
                yield key, np.ascontiguousarray(value.astype(target, copy=False))

    with staged(Path(folder)) as staging:
        write_file(staging / ADAPTER_FILE, {key: Spec(target, shape) for key, shape in shapes.items()}, made())
        (staging / CONFIG_FILE).write_text(json.dumps(_config_file(config.lora, ranks, base), indent=2) + "\n")


def _adapted(config: PolicyConfig) -> Iterator[tuple[HfTensor, list[str]]]:
    """Tensors and those of their parts that have adapters."""
    table = weight_table(config)
    for tensor in hf_tensors(config):
        if adapted := [part for part in tensor.parts if part + A in table]:
            yield tensor, adapted


def _module(tensor: HfTensor) -> str:
    return tensor.key.removesuffix(".weight")


def _keys(tensor: HfTensor) -> tuple[str, str]:
    return (f"base_model.model.{_module(tensor)}.lora_A.weight", f"base_model.model.{_module(tensor)}.lora_B.weight")


def _theirs(
    tensor: HfTensor, adapted: list[str], params: Mapping[str, jax.Array | np.ndarray], config: PolicyConfig
) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a whole tensor."""
    assert config.lora is not None
    rank = config.lora.rank
    a = [np.asarray(params[part + A][tensor.layer]).T for part in adapted]
    rows = []
    for part, (_, dim_out) in zip(tensor.parts, part_shapes(tensor, config), strict=True):
        row = np.zeros((len(adapted) * rank, dim_out), np.float32)
        if part in adapted:
            start = adapted.index(part) * rank
            row[start : start + rank] = np.asarray(params[part + B][tensor.layer])
        rows.append(row)
    return np.concatenate(a), tensor.join(rows)


def _config_file(lora: LoraConfig, ranks: Mapping[str, int], base: str) -> dict[str, Any]:
    fused = {module: rank for module, rank in ranks.items() if rank != lora.rank}
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": lora.rank,
        "target_modules": sorted(ranks),
        "rank_pattern": fused,
        "alpha_pattern": {module: lora.alpha * rank / lora.rank for module, rank in fused.items()},
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }
