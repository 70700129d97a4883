"""Conversion to and from Hugging Face folders (case 21): bitwise, each key once, or refused by name."""

import collections
import json
from dataclasses import replace

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tests.wc_jax.policies import FAMILIES, loud_params, small_config, small_multimodal
from wc_jax.conversion import hf_specs
from wc_jax.policy import LoraConfig, hf_tensors, init_params, to_hf_config
from wc_jax.policy.lora import merged
from wc_jax.weights import SINGLE_FILE, WeightsError, companions, from_hf, load_policy, open_policy, save_policy, to_hf


def random_folder(folder, config, dtype="float32", seed=0):
    """A folder of random tensors that the safetensors library wrote, not we."""
    rng = np.random.default_rng(seed)
    tensors = {k: rng.standard_normal(s.shape).astype(s.dtype) for k, s in hf_specs(config, dtype=dtype).items()}
    folder.mkdir(parents=True)
    save_file(tensors, folder / SINGLE_FILE)
    named = dtype if isinstance(dtype, str) else "bfloat16"
    (folder / "config.json").write_text(json.dumps(to_hf_config(config, dtype=named)))
    return tensors


def stored(folder):
    """What the safetensors library reads there."""
    with safe_open(folder / SINGLE_FILE, framework="flax") as file:
        return {key: np.asarray(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_folder_to_params_to_folder_is_bitwise(tmp_path, name, dtype):
    config = FAMILIES[name]
    tensors = random_folder(tmp_path / "theirs", config, dtype)
    found_config, params = load_policy(tmp_path / "theirs", dtype=dtype)
    assert found_config == config
    save_policy(tmp_path / "ours", config, params, dtype)
    again = stored(tmp_path / "ours")
    assert again.keys() == tensors.keys()
    for key, value in tensors.items():
        assert again[key].dtype == value.dtype and again[key].tobytes() == value.tobytes(), key


@pytest.mark.parametrize("name", ["qwen2", "qwen3_5"])
def test_folders_of_several_dtypes_keep_them(tmp_path, name):
    config = FAMILIES[name]
    dtypes = {key: "float32" if key.endswith(("norm.weight", "A_log")) else "bfloat16" for key in hf_specs(config)}
    tensors = random_folder(tmp_path / "theirs", config, dtypes)
    policy = open_policy(tmp_path / "theirs")
    assert policy.dtypes == dtypes
    save_policy(tmp_path / "ours", config, policy.load("float32"), policy.dtypes)
    again = stored(tmp_path / "ours")
    assert all(again[key].tobytes() == value.tobytes() for key, value in tensors.items())
    assert len(again) == len(tensors)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_source_key_is_read_once(name):
    config = FAMILIES[name]
    tensors, reads = dict(to_hf(loud_params(config), config)), collections.Counter()

    def read(key):
        reads[key] += 1
        return tensors[key]

    from_hf(read, set(tensors), config)
    assert reads == dict.fromkeys(tensors, 1)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_target_key_is_written_once_with_its_own_elements(name):
    config = FAMILIES[name]
    start, params = 0, {}
    for name, value in init_params(config, jax.random.key(0)).items():
        params[name] = np.arange(start, start + value.size, dtype=np.float32).reshape(value.shape)
        start += value.size
    written = list(to_hf(params, config))
    tensors = dict(written)
    assert len(written) == len(tensors) and set(tensors) == {tensor.key for tensor in hf_tensors(config)}
    assert ("lm_head.weight" in tensors) == (not config.tie_embeddings)
    every = np.concatenate([t.ravel() for t in tensors.values()])
    np.testing.assert_array_equal(np.sort(every), np.arange(start))
    root = "model." if config.vision is None else "model.language_model."
    np.testing.assert_array_equal(tensors[f"{root}layers.1.mlp.up_proj.weight"], params["layers.up"][1].T)


def test_params_of_another_policy_are_refused_before_anything_is_written():
    config = small_config()
    params = {**loud_params(config), "final_norm": np.ones(3, np.float32)}
    with pytest.raises(WeightsError, match=r"final_norm must be \(24,\), got \(3,\)"):
        to_hf(params, config)
    with pytest.raises(WeightsError, match="dtype must be float32, bfloat16 or float16, got int8"):
        to_hf(loud_params(config), config, dtype="int8")
    with pytest.raises(WeightsError, match="keys must be this policy's, once each: model.norm.weight"):
        to_hf(loud_params(config), config, keys=list(hf_specs(config))[:1] + list(hf_specs(config))[2:])


def test_bfloat16_folder_is_read_back_as_rounded(tmp_path):
    config = small_config()
    params = loud_params(config)
    save_policy(tmp_path / "m", config, params, "bfloat16")
    for name, value in load_policy(tmp_path / "m")[1].items():
        np.testing.assert_array_equal(value, np.asarray(params[name]).astype("bfloat16").astype(np.float32))


@pytest.mark.parametrize("name", ["qwen3", "qwen3_5_text"])
def test_adapters_are_merged_into_what_is_written(name):
    config = replace(FAMILIES[name], lora=LoraConfig(rank=2, alpha=6.0, modules=("q", "down")))
    params = loud_params(config)
    whole = to_hf(merged(params, config.lora), replace(config, lora=None))
    for (key, value), (same_key, expected) in zip(to_hf(params, config), whole, strict=True):
        assert key == same_key
        np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-6)


def edit(folder, change):
    tensors = load_file(folder / SINGLE_FILE)
    change(tensors)
    save_file(tensors, folder / SINGLE_FILE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), "missing model.norm.weight"),
        (lambda t: t.update({"model.extra": t["model.norm.weight"]}), "unknown model.extra"),
        (lambda t: t.update({"model.norm.weight": np.ones(3, np.float32)}), r"model.norm.weight must be \(24,\)"),
        (lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}), "lm_head.weight differs"),
        (lambda t: t.update({"model.norm.weight": np.ones(24, np.int8)}), "F32, BF16, F16: model.norm.weight is I8"),
        (lambda t: t.update({"model.norm.weight": np.ones(24)}), "model.norm.weight is F64"),
        (
            lambda t: t.update({"model.norm.weight": np.ones(24, ml_dtypes.float8_e4m3fn)}),
            "model.norm.weight is F8_E4M3",
        ),
        (lambda t: [t.pop(key) for key in list(t)[:12]], r"(missing [^;]*; ){8}and 4 more"),
    ],
)
def test_a_wrong_tensor_is_named(tmp_path, change, message):
    config = small_config()
    save_policy(tmp_path / "m", config, loud_params(config))
    edit(tmp_path / "m", change)
    with pytest.raises(WeightsError, match=message):
        load_policy(tmp_path / "m")


def test_a_stored_copy_of_the_tied_head_is_fine(tmp_path):
    config = small_config()
    save_policy(tmp_path / "m", config, loud_params(config))
    edit(tmp_path / "m", lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].copy()}))
    assert "head" not in load_policy(tmp_path / "m")[1]


def test_a_promised_head_that_is_not_there_is_none(tmp_path):
    """transformers keeps the setting and drops the tensors when it saves."""
    config = small_multimodal()
    save_policy(tmp_path / "m", config, loud_params(config))
    edit(tmp_path / "m", lambda t: [t.pop(key) for key in list(t) if key.startswith("mtp.")])
    policy = open_policy(tmp_path / "m")
    assert policy.config == replace(config, num_mtp_layers=0)
    save_policy(tmp_path / "again", policy.config, policy.load(), source=policy.raw)
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written["text_config"]["mtp_num_hidden_layers"] == 0
    assert load_policy(tmp_path / "again")[0] == policy.config
    edit(tmp_path / "m", lambda t: t.update({"mtp.norm.weight": np.ones(24, np.float32)}))
    with pytest.raises(WeightsError, match="missing mtp.fc.weight"):
        open_policy(tmp_path / "m")


def test_settings_that_mean_nothing_to_us_are_kept(tmp_path):
    config = small_multimodal()
    ours = to_hf_config(config, dtype="bfloat16")
    raw = {**ours, "torch_dtype": "bfloat16", "transformers_version": "5", "pad_token_id": None}
    raw["text_config"] = {**ours["text_config"], "eos_token_id": [7, 9], "mamba_ssm_dtype": "float32"}
    raw["vision_config"] = {**ours["vision_config"], "dtype": "bfloat16", "initializer_range": 0.5}
    save_policy(tmp_path / "m", config, loud_params(config), "float32", source=raw)
    written = json.loads((tmp_path / "m" / "config.json").read_text())
    assert (written["transformers_version"], written["pad_token_id"]) == ("5", None)
    assert written["text_config"]["eos_token_id"] == [7, 9]
    assert written["text_config"]["mamba_ssm_dtype"] == "float32"
    assert written["vision_config"]["initializer_range"] == 0.5
    # No part of the file still speaks of the source's dtype.
    assert "bfloat16" not in json.dumps(written)
    assert load_policy(tmp_path / "m")[0] == config


def test_a_source_that_would_change_the_policy_is_refused(tmp_path):
    config = small_config()
    with pytest.raises(WeightsError, match="source's config.json does not go with this policy: num_experts=4"):
        save_policy(tmp_path / "m", config, loud_params(config), source={"num_experts": 4})
    with pytest.raises(WeightsError, match="source's config.json is another policy's"):
        save_policy(tmp_path / "m", config, loud_params(config), source={"partial_rotary_factor": 0.5})
    assert not list(tmp_path.iterdir())


def test_what_stands_beside_the_weights_can_be_copied(tmp_path):
    config = small_config()
    save_policy(tmp_path / "m", config, loud_params(config))
    beside = {
        "tokenizer.json",
        "generation_config.json",
        "chat_template.jinja",
        "merges.txt",
        "preprocessor_config.json",
    }
    for name in [*beside, "README.md", "model.safetensors.index.json.old"]:
        (tmp_path / "m" / name).write_text(name)
    save_policy(tmp_path / "again", config, loud_params(config), also=companions(tmp_path / "m"))
    assert {path.name for path in (tmp_path / "again").iterdir()} == beside | {"config.json", SINGLE_FILE}
    assert (tmp_path / "again" / "tokenizer.json").read_text() == "tokenizer.json"


def test_no_folder_no_json_and_quantized_weights_say_what_to_give(tmp_path):
    with pytest.raises(WeightsError, match="give the path of a Hugging Face model folder"):
        load_policy(tmp_path / "nowhere")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WeightsError, match="config.json is not JSON"):
        load_policy(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(WeightsError, match="holds quantized weights"):
        load_policy(tmp_path)


def test_a_failed_save_leaves_the_old_folder_and_no_litter(tmp_path):
    config = small_config()
    params = loud_params(config)
    save_policy(tmp_path / "m", config, params)
    with pytest.raises(FileNotFoundError):
        save_policy(tmp_path / "m", config, init_params(config, jax.random.key(9)), also=(tmp_path / "absent",))
    np.testing.assert_array_equal(load_policy(tmp_path / "m")[1]["embed"], params["embed"])
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
