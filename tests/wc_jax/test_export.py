"""A run's weights as a folder that the next run opens."""

import json

import jax
import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file

from configs import ConfigError, load
from tests.wc_jax.small_runs import write_config
from wc_jax.adapters import ADAPTER_FILE, CONFIG_FILE
from wc_jax.assemble import read_inputs
from wc_jax.checkpoint import Checkpoints, Position
from wc_jax.config import Config
from wc_jax.export import export, main
from wc_jax.learner import Learner
from wc_jax.policy import LoraConfig
from wc_jax.policy.lora import merged
from wc_jax.run_folder import check_run_folder, record_start
from wc_jax.weights import load_policy


@pytest.fixture(params=[None, {"rank": 2, "alpha": 4.0, "modules": ["q", "down"]}], ids=["whole", "adapters"])
def run(request, tmp_path, tiny_policy):
    """(config file, config, the weights of its two checkpoints); noise was added instead of learning."""
    path = write_config(tmp_path / "config.yaml", tiny_policy, tmp_path / "run")
    if request.param is not None:
        plain = yaml.safe_load(path.read_text())
        plain["model"]["lora"] = request.param
        path.write_text(yaml.safe_dump(plain))
    config = load(str(path), [], Config)
    inputs = read_inputs(config)
    state = Learner(config, inputs.policy).init(inputs.params)
    stored = {}
    folder = check_run_folder(config)
    folder.path.mkdir()
    record_start(folder, config)
    for step in (1, 2):
        noise = jax.random.key(step)
        state = state._replace(params={n: w + jax.random.normal(noise, w.shape) for n, w in state.params.items()})
        position = Position(step=step, seed=0, num_tasks_dealt=0, policy_version=step)
        Checkpoints(folder=folder.checkpoints).save(state, position)
        stored[step] = {name: np.asarray(w) for name, w in state.params.items()}
    return path, config, stored


@pytest.mark.parametrize(("step", "found_step"), [(None, 2), (1, 1)])
def test_the_folder_holds_the_checkpoints_weights_and_the_tokenizer(run, tmp_path, tiny_policy, step, found_step):
    _, config, stored = run
    assert export(config, tmp_path / "out", step=step) == found_step
    policy, params = load_policy(tmp_path / "out")
    lora = None if config.model.lora is None else LoraConfig(rank=2, alpha=4.0, modules=("q", "down"))
    expected = merged(stored[found_step], lora)
    assert params.keys() == expected.keys() and policy == load_policy(tiny_policy)[0]
    for name, weight in expected.items():
        np.testing.assert_array_equal(params[name], weight, err_msg=name)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (tiny_policy / "tokenizer.json").read_bytes()


def test_adapters_alone(run, tmp_path, capsys):
    path, config, stored = run
    code = main([str(path), "--to", str(tmp_path / "out"), "--step", "1", "--adapters"])
    if config.model.lora is None:
        assert code == 2 and "trains the whole policy" in capsys.readouterr().err and not (tmp_path / "out").exists()
        return
    assert code == 0 and "the adapters of step 1, float32" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [CONFIG_FILE, ADAPTER_FILE]
    found = load_file(tmp_path / "out" / ADAPTER_FILE)
    a = found["base_model.model.model.layers.0.mlp.down_proj.lora_A.weight"]
    np.testing.assert_array_equal(a, stored[1]["layers.down.lora_a"][0].T)


def test_the_command_line(run, tmp_path, capsys):
    path, _, stored = run
    assert main([str(path), "--to", str(tmp_path / "out"), "--dtype", "bfloat16"]) == 0
    assert "the weights of step 2, bfloat16" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "config.json").read_text())["torch_dtype"] == "bfloat16"
    before = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert main([str(path), "--to", str(tmp_path / "out")]) == 2
    assert "nothing is overwritten" in capsys.readouterr().err
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == before
    assert main([str(path), "--to", str(tmp_path / "other"), "--step", "7"]) == 3
    assert "no checkpoint of step 7" in capsys.readouterr().err and not (tmp_path / "other").exists()
    assert stored


def test_a_run_without_a_checkpoint_says_what_to_do(tmp_path, tiny_policy):
    path = write_config(tmp_path / "config.yaml", tiny_policy, tmp_path / "run")
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        export(load(str(path), [], Config), tmp_path / "out")
    assert not (tmp_path / "out").exists()
