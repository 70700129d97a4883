"""Adapters in PEFT's format: what PEFT would compute from the files is what our merged policy is."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.wc_jax.policies import FAMILIES, loud_params, small_config
from wc_jax.adapters import ADAPTER_FILE, CONFIG_FILE, save_adapters
from wc_jax.policy import LoraConfig
from wc_jax.policy.lora import is_adapter
from wc_jax.weights import WeightsError, to_hf

EVERY = ("q", "k", "v", "o", "gate", "up", "down")
FUSED = (*EVERY, "q_gate", "z", "a", "b")
CASES = [
    ("llama", EVERY),
    ("llama_biased", ("q", "down")),
    ("qwen2", ("q", "k", "v", "o")),
    ("qwen3", EVERY),
    ("qwen3_5_text", FUSED),
    ("qwen3_5", ("q", "v", "down")),
    ("qwen3_5", ("z", "up")),
]


def adapted(name, modules):
    config = replace(FAMILIES[name], lora=LoraConfig(rank=3, alpha=6.0, modules=tuple(sorted(modules))))
    return config, loud_params(config)


def peft_sums(folder, base):
    """The tensors of `base` with what PEFT adds to them, by its documentation: W + alpha / r * B A."""
    raw, found = json.loads((folder / CONFIG_FILE).read_text()), load_file(folder / ADAPTER_FILE)
    sums = dict(base)
    for key, a in found.items():
        if not key.endswith(".lora_A.weight"):
            continue
        module = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        assert any(module.endswith("." + target) for target in raw["target_modules"])
        leaf = module.rpartition(".")[2]
        rank, alpha = raw["rank_pattern"].get(leaf, raw["r"]), raw["alpha_pattern"].get(leaf, raw["lora_alpha"])
        assert a.shape[0] == rank
        b = found[key.replace("lora_A", "lora_B")].astype(np.float64)
        sums[f"{module}.weight"] = base[f"{module}.weight"] + alpha / rank * b @ a
    return sums


@pytest.mark.parametrize(("name", "modules"), CASES)
def test_what_peft_adds_is_what_we_merge(tmp_path, name, modules):
    config, params = adapted(name, modules)
    save_adapters(tmp_path / "a", config, params, base="somewhere/base")
    plain = replace(config, lora=None)
    base = dict(to_hf({n: w for n, w in params.items() if not is_adapter(n)}, plain))
    ours = dict(to_hf(params, config))
    sums = peft_sums(tmp_path / "a", base)
    assert (
        sum(not np.array_equal(sums[key], base[key]) for key in base)
        == len(load_file(tmp_path / "a" / ADAPTER_FILE)) // 2
    )
    for key, value in sums.items():
        np.testing.assert_allclose(ours[key], value, rtol=1e-4, atol=1e-4, err_msg=key)


def test_keys_and_settings_are_those_of_peft(tmp_path):
    config, params = adapted("qwen3_5", FUSED)
    save_adapters(tmp_path / "a", config, params, base="somewhere/base", dtype="float16")
    found, raw = load_file(tmp_path / "a" / ADAPTER_FILE), json.loads((tmp_path / "a" / CONFIG_FILE).read_text())
    layer = "base_model.model.model.language_model.layers."
    shapes = {key.removeprefix(layer): value.shape for key, value in found.items()}
    assert shapes["1.self_attn.q_proj.lora_A.weight"] == (6, 24)  # a query and its gate
    assert shapes["1.self_attn.q_proj.lora_B.weight"] == (96, 6)
    assert shapes["0.linear_attn.in_proj_qkv.lora_A.weight"] == (9, 24)
    assert shapes["0.linear_attn.out_proj.lora_B.weight"] == (24, 3)
    assert all(
        re.fullmatch(r"base_model\.model\.model\.language_model\.layers\.\d\..*\.lora_[AB]\.weight", k) for k in found
    )
    assert {value.dtype for value in found.values()} == {np.dtype("float16")}
    assert raw["rank_pattern"] == {"q_proj": 6, "in_proj_qkv": 9}
    assert raw["alpha_pattern"] == {"q_proj": 12.0, "in_proj_qkv": 18.0}
    assert (raw["peft_type"], raw["base_model_name_or_path"], raw["r"]) == ("LORA", "somewhere/base", 3)


def test_a_policy_without_adapters_says_so(tmp_path):
    with pytest.raises(WeightsError, match="this policy has no adapters"):
        save_adapters(tmp_path / "a", small_config(), loud_params(small_config()), base="b")
    assert not list(tmp_path.iterdir())
