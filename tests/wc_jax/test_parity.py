"""Our forward function and its gradients against `transformers`, which lives in the engine's environment."""

import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.policies import FAMILIES, loud_params
from wc_jax.logprobs import token_logprobs
from wc_jax.policy import hidden_states, unembed
from wc_jax.weights import from_hf, load_policy, save_policy

ENGINE_PYTHON = Path(__file__).parents[2] / ".venv-engine" / "bin" / "python"
PROGRAM = """
import json, sys
from pathlib import Path
import numpy as np, torch, transformers
root = Path(sys.argv[1])
tokens = torch.tensor(np.load(root / "tokens.npy"))
weight = torch.tensor(np.load(root / "weight.npy"))
for name in sys.argv[2:]:
    kind = json.loads((root / name / "config.json").read_text())["architectures"][0]
    found, report = getattr(transformers, kind).from_pretrained(
        root / name, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"], report
    out = found(tokens, output_hidden_states=True)
    logp = out.logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None])[..., 0]
    (logp * weight).sum().backward()
    grads = {k: p.grad.numpy() for k, p in found.named_parameters() if p.grad is not None}
    np.savez(root / f"{name}.npz", hidden=out.hidden_states[-1].detach().numpy(), logp=logp.detach().numpy())
    np.savez(root / f"{name}.grads.npz", **grads)
"""
LENGTH = 150  # two whole chunks of the recurrent layers and a part of a third


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """A folder with each policy, and what transformers makes of it."""
    root = tmp_path_factory.mktemp("parity")
    rng = np.random.default_rng(0)
    np.save(root / "tokens.npy", rng.integers(0, 40, (2, LENGTH)))
    np.save(root / "weight.npy", rng.random((2, LENGTH - 1)).astype(np.float32))
    for name, config in FAMILIES.items():
        save_policy(root / name, config, loud_params(config))
    done = subprocess.run(
        [ENGINE_PYTHON, "-c", PROGRAM, str(root), *FAMILIES], capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return root


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE_PYTHON.exists(), reason="the engine's environment is not installed")
@pytest.mark.parametrize("name", FAMILIES)
def test_states_logprobs_and_gradients_equal_transformers(theirs, name):
    config, params = load_policy(theirs / name)
    tokens = np.load(theirs / "tokens.npy").astype(np.int32)
    weight = np.load(theirs / "weight.npy")

    @jax.jit
    def ours(params):
        hidden = hidden_states(params, config, tokens)
        logp, _ = token_logprobs(
            hidden[:, :-1].reshape(-1, config.width), unembed(params, config), jnp.asarray(tokens[:, 1:].ravel())
        )
        logp = logp.reshape(2, -1)
        return jnp.sum(logp * weight), (hidden, logp)

    (_, (hidden, logp)), grads = jax.value_and_grad(ours, has_aux=True)(params)
    expected = np.load(theirs / f"{name}.npz")
    np.testing.assert_allclose(hidden, expected["hidden"], atol=1e-4)
    np.testing.assert_allclose(logp, expected["logp"], atol=1e-4)
    with np.load(theirs / f"{name}.grads.npz") as found:
        gradients = {key: found[key] for key in found.files}
    compare_gradients(grads, gradients, config)


def compare_gradients(ours, theirs, config):
    """Each weight's gradient to 1e-3 of its own length; what transformers does not use has none here either."""
    from wc_jax.policy import hf_tensors

    used = {part for tensor in hf_tensors(config) if tensor.key in theirs for part in tensor.parts}
    shaped = {tensor.key: tensor for tensor in hf_tensors(config)}

    def read(key):
        tensor = shaped[key]
        shapes = [ours[p].shape if tensor.layer is None else ours[p].shape[1:] for p in tensor.parts]
        return theirs.get(key, np.zeros(tensor.shape(shapes), np.float32))

    expected = from_hf(read, set(shaped), config)
    for name, gradient in ours.items():
        error = np.linalg.norm(np.asarray(gradient) - np.asarray(expected[name]))
        size = np.linalg.norm(np.asarray(expected[name]))
        assert error <= 1e-3 * size, (name, error, size)
        assert (size > 0) == (name in used), name


def test_every_family_is_among_them():
    architectures = {json.dumps(config.family) for config in FAMILIES.values()}
    assert architectures == {'"llama"', '"qwen2"', '"qwen3"', '"qwen3_5"'}
