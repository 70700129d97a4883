"""Small policies, samples and batches for tests of the core."""

from dataclasses import replace

import jax
import numpy as np

from rollout.types import Sample
from wc_jax.policy import Params, PolicyConfig, init_params


def small_config(**changes: object) -> PolicyConfig:
    """Two layers, grouped heads, nothing square: a swapped axis shows."""
    config = PolicyConfig(
        vocab_size=48, width=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, ff_dim=40, rope_theta=50_000.0
    )
    return replace(config, **changes)


def loud_params(config: PolicyConfig, seed: int = 0) -> Params:
    """Weights far from their quiet initialization, norms far from 1: attention is peaked, errors are visible."""
    params = init_params(config, jax.random.key(seed))
    noise = jax.random.key(seed + 1)
    return {
        name: value * (1.0 if name.endswith("norm") else 8.0) + 0.1 * jax.random.normal(noise, value.shape)
        for name, value in params.items()
    }


def sample(num_tokens: int, num_prompt: int, seed: int = 0, vocab_size: int = 48) -> Sample:
    """Random tokens; everything after the prompt is trained."""
    rng = np.random.default_rng(seed)
    mask = np.arange(num_tokens) >= num_prompt
    return Sample(
        tokens=rng.integers(0, vocab_size, num_tokens).astype(np.int32),
        loss_mask=mask,
        sampler_logp=np.where(mask, -rng.random(num_tokens), np.nan).astype(np.float32),
        node_ids=np.zeros(num_tokens, np.int32),
        segment=0,
        num_trained=int(mask.sum()),
    )
