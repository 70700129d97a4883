"""Our forward function against `transformers`, which lives in the engine's environment."""

import subprocess
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.wc_jax.policies import loud_params, small_config
from wc_jax.logprobs import token_logprobs
from wc_jax.policy import hidden_states, unembed
from wc_jax.weights import load_policy, save_policy

ENGINE_PYTHON = Path(__file__).parents[2] / ".venv-engine" / "bin" / "python"
PROGRAM = """
import sys
from pathlib import Path
import numpy as np, torch
from transformers import AutoModelForCausalLM
root = Path(sys.argv[1])
for name in sys.argv[2:]:
    model = AutoModelForCausalLM.from_pretrained(root / name, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        out = model(torch.tensor(np.load(root / "tokens.npy")), output_hidden_states=True)
    np.savez(root / f"{name}.npz", logits=out.logits.numpy(), hidden=out.hidden_states[-1].numpy())
"""
VARIANTS = {
    "tied": small_config(),
    "untied": small_config(tie_embeddings=False),
    "many_heads": small_config(num_kv_heads=4, head_dim=6, rope_theta=10_000.0, norm_eps=1e-3),
}


@pytest.mark.slow
@pytest.mark.skipif(not ENGINE_PYTHON.exists(), reason="the engine's environment is not installed")
def test_hidden_states_and_logprobs_equal_transformers(tmp_path):
    length = 300
    tokens = np.random.default_rng(0).integers(0, 48, (2, length))
    np.save(tmp_path / "tokens.npy", tokens)
    for name, config in VARIANTS.items():
        save_policy(tmp_path / name, config, loud_params(config))
    subprocess.run(
        [ENGINE_PYTHON, "-c", PROGRAM, str(tmp_path), *VARIANTS], check=True, capture_output=True, timeout=170
    )
    for name in VARIANTS:
        config, params = load_policy(tmp_path / name)
        hidden = hidden_states(params, config, tokens.astype(np.int32))
        expected = np.load(tmp_path / f"{name}.npz")
        np.testing.assert_allclose(hidden, expected["hidden"], atol=1e-4, err_msg=name)
        logits = expected["logits"].astype(np.float64)
        logp = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
        picked = np.take_along_axis(logp[:, :-1], tokens[:, 1:, None], axis=2).ravel()
        found, _ = token_logprobs(
            jnp.asarray(hidden)[:, :-1].reshape(-1, config.width),
            unembed(params, config),
            jnp.asarray(tokens[:, 1:].ravel(), jnp.int32),
            chunk=128,
        )
        np.testing.assert_allclose(found, picked, atol=1e-4, err_msg=name)
