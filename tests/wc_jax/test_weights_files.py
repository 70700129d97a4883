"""Files of tensors: shards, their index, and every kind of damage, found before a tensor is read."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.wc_jax.policies import loud_params, small_config
from wc_jax.safetensors_files import INDEX_FILE, SINGLE_FILE, Spec, WeightsError, find_tensors, write_file
from wc_jax.weights import load_policy, open_policy, save_policy

CONFIG = small_config()
SHARD = 8_000
"""Bytes: the policy becomes four or more files."""


@pytest.fixture
def folder(tmp_path):
    save_policy(tmp_path / "m", CONFIG, loud_params(CONFIG), shard_bytes=SHARD)
    return tmp_path / "m"


def test_shards_are_no_larger_than_stated_and_hold_what_one_file_holds(folder, tmp_path):
    save_policy(tmp_path / "one", CONFIG, loud_params(CONFIG))
    assert [path.name for path in (tmp_path / "one").glob("*.safetensors*")] == [SINGLE_FILE]
    whole, names = load_file(tmp_path / "one" / SINGLE_FILE), sorted(path.name for path in folder.glob("*.safetensors"))
    count = len(names)
    assert count >= 4 and names == [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    parts = {name: load_file(folder / name) for name in names}
    assert all(sum(x.nbytes for x in part.values()) <= SHARD for part in parts.values())
    found = [(key, name) for name, part in parts.items() for key in part]
    index = json.loads((folder / INDEX_FILE).read_text())
    assert dict(found) == index["weight_map"] and len(found) == len(whole)
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in whole.values())
    for name, part in parts.items():
        for key, value in part.items():
            np.testing.assert_array_equal(value, whole[key], err_msg=name)
    np.testing.assert_array_equal(load_policy(folder)[1]["layers.q"], loud_params(CONFIG)["layers.q"])


def test_a_tensor_larger_than_a_shard_has_one_to_itself(tmp_path):
    save_policy(tmp_path / "m", CONFIG, loud_params(CONFIG), shard_bytes=1)
    assert len(list((tmp_path / "m").glob("*.safetensors"))) == len(find_tensors(tmp_path / "m"))


def test_values_lie_aligned_in_files_of_several_dtypes(tmp_path):
    """A reader that takes bytes as they lie needs each tensor at a multiple of its width."""
    keys = {key: "float32" if key == "model.norm.weight" else "float16" for key in find_tensors_of_whole(tmp_path)}
    save_policy(tmp_path / "mixed", CONFIG, loud_params(CONFIG), keys)
    for tensor in find_tensors(tmp_path / "mixed").values():
        assert tensor.start % {"F32": 4, "F16": 2}[tensor.dtype] == 0


def find_tensors_of_whole(tmp_path):
    save_policy(tmp_path / "whole", CONFIG, loud_params(CONFIG))
    return find_tensors(tmp_path / "whole")


def reindexed(folder, change):
    index = json.loads((folder / INDEX_FILE).read_text())
    change(index["weight_map"])
    (folder / INDEX_FILE).write_text(json.dumps(index))


def shard(folder, number):
    return sorted(folder.glob("*.safetensors"))[number]


def test_a_missing_shard(folder):
    shard(folder, 1).unlink()
    with pytest.raises(WeightsError, match="model-00002-of-0.*is missing"):
        open_policy(folder)


def test_a_truncated_shard(folder):
    path = shard(folder, 1)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(WeightsError, match="model-00002.*is truncated or has bytes too many"):
        open_policy(folder)
    path.write_bytes(path.read_bytes()[:5])
    with pytest.raises(WeightsError, match="is truncated, or no safetensors file"):
        open_policy(folder)
    path.write_bytes((20).to_bytes(8, "little") + b"not json at all.....")
    with pytest.raises(WeightsError, match="no readable safetensors header"):
        open_policy(folder)


def test_a_file_that_became_shorter_after_it_was_opened(folder):
    policy = open_policy(folder)
    path = shard(folder, 0)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(WeightsError, match="model-00001.*is truncated"):
        policy.load()


def test_overlapping_tensors(folder):
    header = {name: {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} for name in "ab"}
    text = json.dumps(header).encode()
    shard(folder, 0).write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(WeightsError, match=r"the bytes of b are not where its shape \(2,\) and its neighbors say"):
        open_policy(folder)


def test_a_tensor_in_two_shards(folder):
    tensors, more = load_file(shard(folder, 0)), load_file(shard(folder, 1))
    key = next(iter(tensors))
    save_file({**more, key: tensors[key]}, shard(folder, 1))
    with pytest.raises(WeightsError, match=f"{key} is stored twice, in model-00001-.* and model-00002-"):
        open_policy(folder)


def test_an_index_that_names_another_shard(folder):
    key, other = next(iter(load_file(shard(folder, 0)))), shard(folder, 1).name
    reindexed(folder, lambda where: where.update({key: other}))
    with pytest.raises(WeightsError, match=f"{key} is in model-00001-.*, not in {other}"):
        open_policy(folder)


def test_an_index_that_forgets_a_tensor_or_promises_one(folder):
    key = next(iter(load_file(shard(folder, 0))))
    reindexed(folder, lambda where: where.pop(key))
    with pytest.raises(WeightsError, match=f"says otherwise: {key} is in model-00001-"):
        open_policy(folder)
    reindexed(folder, lambda where: where.update({key: shard(folder, 0).name, "model.more": shard(folder, 0).name}))
    with pytest.raises(WeightsError, match="model.more is missing from model-00001-"):
        open_policy(folder)


@pytest.mark.parametrize("name", ["../x.safetensors", "/etc/passwd", "a/../../x"])
def test_an_index_that_leaves_the_folder(folder, name):
    reindexed(folder, lambda where: where.update({"model.norm.weight": name}))
    with pytest.raises(WeightsError, match="names files that are not in the folder: "):
        open_policy(folder)


@pytest.mark.parametrize("text", ["{", "{}", '{"weight_map": {"a": 3}}', "[]"])
def test_an_index_that_is_none(folder, text):
    (folder / INDEX_FILE).write_text(text)
    with pytest.raises(WeightsError, match="is no index of shards"):
        open_policy(folder)


def test_a_single_file_beside_shards_is_ambiguous(folder):
    (folder / SINGLE_FILE).write_bytes(shard(folder, 0).read_bytes())
    with pytest.raises(WeightsError, match="remove what is stale"):
        open_policy(folder)


def test_a_file_is_written_as_the_library_reads_it_and_only_as_announced(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {"b": rng.random((3, 2)).astype(np.float32), "a": rng.random(5).astype(np.float16)}
    specs = {key: Spec(value.dtype, value.shape) for key, value in tensors.items()}
    write_file(tmp_path / "w", specs, iter(tensors.items()))
    found = load_file(tmp_path / "w")
    assert all(found[key].tobytes() == value.tobytes() for key, value in tensors.items()) and len(found) == 2
    with pytest.raises(AssertionError):
        write_file(tmp_path / "w", specs, iter([("b", tensors["b"].T), ("a", tensors["a"])]))
