"""Low-rank adapters as a folder in PEFT's format, written and read.

PEFT adapts whole tensors of a model's folder: it adds scale * B A to a tensor W [out, in], with A [R, in] and
B [out, R]. Where a tensor holds several of our weights (a query and its gate; the recurrent layers' q, k and v), whose
adapters are their own, A holds theirs one below the other and B holds each in the rows of its weight and zeros in the
others, so R is their number times the rank. `rank_pattern` and `alpha_pattern` say so; the scale stays the same.
"""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from wc_jax.conversion import gathered, part_shapes
from wc_jax.policy import LoraConfig, Params, PolicyConfig, hf_tensors, weight_table
from wc_jax.policy.lora import A, B, is_adapter, with_adapters
from wc_jax.policy.names import HfTensor
from wc_jax.safetensors_files import DTYPES, Spec, StoredTensor, WeightsError, listed, read_header, write_file
from wc_jax.weights import staged

ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"

_ONLY: Mapping[str, Any] = {
    "bias": "none",
    "fan_in_fan_out": False,
    "layers_to_transform": None,
    "lora_bias": False,
    "modules_to_save": None,
    "peft_type": "LORA",
    "target_parameters": None,
    "trainable_token_indices": None,
    "use_dora": False,
    "use_rslora": False,
}
"""What PEFT can do and our adapters can't; of each setting, the one value that means it is not done."""


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


def load_adapters(folder: Path | str, config: PolicyConfig) -> tuple[LoraConfig, Params]:
    """Adapters for the policy of this config, float32 on the host, by their names in the weight table.

    Where PEFT adapts a tensor of ours that holds several weights as a whole, each of them gets its part; the sum is the
    same. Raises `WeightsError` for settings, keys and shapes that our adapters can't express, by name.
    """
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise WeightsError(f"no {CONFIG_FILE} in {folder}: give the folder of a PEFT adapter")
    raw = json.loads((folder / CONFIG_FILE).read_text())
    refused = [f"{name}={raw[name]!r}" for name, only in _ONLY.items() if (raw.get(name) or only) != only]
    if refused:
        raise WeightsError(f"adapters with {', '.join(refused)} are not supported; plain LoRA is")
    stored = read_header(folder / ADAPTER_FILE)
    by_key = {key: tensor for tensor in hf_tensors(config) for key in _keys(tensor)}
    modules = {part.rpartition(".")[2] for key in stored if key in by_key for part in by_key[key].parts}
    lora = LoraConfig(rank=int(raw["r"]), alpha=float(raw["lora_alpha"]), modules=tuple(sorted(modules)) or ("q",))
    table = with_adapters(weight_table(config), lora)
    wanted = [tensor for tensor in hf_tensors(config) if any(part + A in table for part in tensor.parts)]
    _check(stored, {key for tensor in wanted for key in _keys(tensor)})

    def pieces() -> Iterator[tuple[str, int | None, np.ndarray]]:
        for tensor in wanted:
            a, b = (stored[key].read().astype(np.float32) for key in _keys(tensor))
            for name, value in _ours(tensor, a, b, raw, config).items():
                yield name, tensor.layer, value

    shapes = {name: weight.shape for name, weight in table.items() if is_adapter(name)}
    return lora, gathered(pieces(), shapes, dtype="float32")


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


def _ours(
    tensor: HfTensor, a: np.ndarray, b: np.ndarray, raw: Mapping[str, Any], config: PolicyConfig
) -> dict[str, np.ndarray]:
    """Each part's adapter out of a whole tensor's. Raises `WeightsError` when a part's rank is not the policy's."""
    rank, module, shapes = int(raw["r"]), _module(tensor), part_shapes(tensor, config)
    together, size = len(a), sum(tensor.sizes(shapes))
    if a.shape != (together, shapes[0][0]) or b.shape != (size, together) or together % rank:
        raise WeightsError(
            f"{module}: the adapter must be [{rank}, {shapes[0][0]}] and [{size}, {rank}], got {a.shape}, {b.shape}"
        )
    scale = _of_module(raw.get("alpha_pattern"), module, raw["lora_alpha"]) / together
    if not np.isclose(scale, raw["lora_alpha"] / rank):
        raise WeightsError(f"{module} has its own scale {scale:g}; all must have {raw['lora_alpha'] / rank:g}")
    found = dict[str, np.ndarray]()
    for i, (part, rows) in enumerate(zip(tensor.parts, tensor.split(b, tensor.sizes(shapes)), strict=True)):
        blocks = rows.reshape(-1, rank, rows.shape[-1])
        used = [block for block in range(len(blocks)) if blocks[block].any()]
        if len(used) > 1:
            raise WeightsError(f"{module}: {part} would need rank {len(used) * rank}, and the policy's is {rank}")
        at = used[0] if used else min(i, len(blocks) - 1)
        found |= {part + A: a[at * rank : (at + 1) * rank].T, part + B: blocks[at]}
    return found


def _of_module(pattern: Mapping[str, Any] | None, module: str, default: float) -> float:
    """PEFT's rule: a name in a pattern is the end of a module's path, or a regular expression for it."""
    found = [value for name, value in (pattern or {}).items() if re.match(rf"(.*\.)?({name})$", module)]
    return float(found[0] if found else default)


def _check(stored: Mapping[str, StoredTensor], wanted: set[str]) -> None:
    problems = [f"missing {key}" for key in sorted(wanted - stored.keys())]
    problems += [f"unknown {key}" for key in sorted(stored.keys() - wanted)]
    problems += [f"{key} is {tensor.dtype}" for key, tensor in stored.items() if tensor.dtype not in DTYPES]
    if problems or not stored:
        raise WeightsError(f"the adapters don't fit this policy: {listed(problems) or 'there are none'}")


def _config_file(lora: LoraConfig, ranks: Mapping[str, int], base: str) -> dict[str, Any]:
    fused = {module: rank for module, rank in ranks.items() if rank != lora.rank}
    return {
        **_ONLY,
        "base_model_name_or_path": base,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "r": lora.rank,
        "target_modules": sorted(ranks),
        "rank_pattern": fused,
        "alpha_pattern": {module: lora.alpha * rank / lora.rank for module, rank in fused.items()},
        "task_type": "CAUSAL_LM",
    }
