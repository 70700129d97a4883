"""Conversion to and from Hugging Face folders (case 21)."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.wc_jax.policies import FAMILIES, loud_params, small_config
from wc_jax.policy import hf_tensors, init_params
from wc_jax.weights import INDEX_FILE, SINGLE_FILE, WeightsError, load_policy, save_policy, to_hf


@pytest.mark.parametrize("name", FAMILIES)
def test_round_trip_is_bitwise(tmp_path, name):
    config = FAMILIES[name]
    params = loud_params(config)
    save_policy(tmp_path / "m", config, params)
    found_config, found = load_policy(tmp_path / "m")
    assert found_config == config
    assert params.keys() == found.keys()
    for name, value in params.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_target_key_is_written_once_with_its_own_elements(name):
    config = FAMILIES[name]
    start, params = 0, {}
    for name, value in init_params(config, jax.random.key(0)).items():
        params[name] = np.arange(start, start + value.size, dtype=np.float32).reshape(value.shape)
        start += value.size
    tensors = dict(to_hf(params, config))
    assert set(tensors) == {tensor.key for tensor in hf_tensors(config)}
    assert ("lm_head.weight" in tensors) == (not config.tie_embeddings)
    every = np.concatenate([t.ravel() for t in tensors.values()])
    np.testing.assert_array_equal(np.sort(every), np.arange(start))
    root = "model." if config.vision is None else "model.language_model."
    np.testing.assert_array_equal(tensors[f"{root}layers.1.mlp.up_proj.weight"], params["layers.up"][1].T)


def test_bfloat16_folder_is_read_back_as_rounded(tmp_path):
    config = small_config()
    params = loud_params(config)
    save_policy(tmp_path / "m", config, params, "bfloat16")
    for name, value in load_policy(tmp_path / "m")[1].items():
        np.testing.assert_array_equal(value, np.asarray(params[name]).astype("bfloat16").astype(np.float32))


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


def test_sharded_folder_is_read_and_a_missing_shard_is_named(tmp_path):
    config = small_config()
    params = loud_params(config)
    folder = tmp_path / "m"
    save_policy(folder, config, params)
    tensors = load_file(folder / SINGLE_FILE)
    (folder / SINGLE_FILE).unlink()
    parts = {"a.safetensors": dict(list(tensors.items())[:5]), "b.safetensors": dict(list(tensors.items())[5:])}
    for name, part in parts.items():
        save_file(part, folder / name)
    weight_map = {key: name for name, part in parts.items() for key in part}
    (folder / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    np.testing.assert_array_equal(load_policy(folder)[1]["layers.q"], params["layers.q"])
    (folder / "b.safetensors").unlink()
    with pytest.raises(WeightsError, match="b.safetensors is missing"):
        load_policy(folder)


def test_no_folder_says_what_to_give(tmp_path):
    with pytest.raises(WeightsError, match="give the path of a Hugging Face model folder"):
        load_policy(tmp_path / "nowhere")


def test_a_failed_save_leaves_the_old_folder_and_no_litter(tmp_path):
    config = small_config()
    params = loud_params(config)
    save_policy(tmp_path / "m", config, params)
    with pytest.raises(FileNotFoundError):
        save_policy(tmp_path / "m", config, init_params(config, jax.random.key(9)), also=(tmp_path / "absent",))
    np.testing.assert_array_equal(load_policy(tmp_path / "m")[1]["embed"], params["embed"])
    assert [p.name for p in tmp_path.iterdir()] == ["m"]
