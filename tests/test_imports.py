"""The arrows at run time: each package is imported in a fresh interpreter that must stay light."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "vllm", "playwright", "docker", "transformers")

# package -> modules that must not be loaded after importing it
FORBIDDEN = {
    "wc_jax": (*HEAVY, "rollout", "verifier", "tokenizers", "httpx"),
    "rollout": (*HEAVY, "jax", "wc_jax"),
    "verifier": (*HEAVY, "jax", "wc_jax", "rollout"),
    "rollout.sandbox": (*HEAVY, "jax", "wc_jax", "verifier", "configs"),
    # All that a rollout needs, short of a training step.
    "rollout.samples": (*HEAVY, "jax", "wc_jax"),
    "rollout.agent": (*HEAVY, "jax", "wc_jax"),
    "rollout.collect": (*HEAVY, "jax", "wc_jax"),
    "rollout.vllm": (*HEAVY, "jax", "wc_jax"),
    "rollout.__main__": (*HEAVY, "jax", "wc_jax", "tokenizers", "verifier.browser"),
    "rollout.view.server": (*HEAVY, "jax", "wc_jax", "verifier.browser", "httpx"),
    "rollout.single": (*HEAVY, "jax", "wc_jax"),
    "verifier.score": (*HEAVY, "jax", "wc_jax", "rollout.types"),
    "verifier.reward": (*HEAVY, "jax", "wc_jax", "rollout"),
    # The core: arrays in, arrays out.
    "wc_jax.logprobs": (*HEAVY, "rollout", "verifier", "configs", "wc_jax.config", "yaml", "pydantic", "orbax"),
    "wc_jax.policy": (*HEAVY, "rollout", "verifier", "configs", "wc_jax.config", "yaml", "pydantic", "orbax"),
    "wc_jax.step": (*HEAVY, "rollout", "verifier", "configs", "wc_jax.config", "yaml", "pydantic", "orbax"),
}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_import_loads_nothing_that_it_must_not(package: str) -> None:
    program = f"import sys, {package}; print('\\n'.join(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(found.stdout.split())
    assert package in loaded
    assert not loaded & set(FORBIDDEN[package])
