"""Small policies of every family, samples and batches for tests of the core."""

from dataclasses import replace

import jax
import numpy as np

from rollout.types import Sample
from wc_jax.policy import DeltaConfig, Params, PolicyConfig, RopeScaling, VisionConfig, init_params
from wc_jax.policy.weight import is_decayed


def small_config(**changes: object) -> PolicyConfig:
    """Two layers, grouped heads, nothing square: a swapped axis shows."""
    config = PolicyConfig(
        vocab_size=48, width=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, ff_dim=40, rope_theta=50_000.0
    )
    return replace(config, **changes)


def small_hybrid(**changes: object) -> PolicyConfig:
    """Qwen3.5's text policy: two groups of one recurrent and one gated attention layer."""
    config = small_config(
        family="qwen3_5",
        num_layers=4,
        head_dim=12,
        rotary_dim=6,
        mrope_section=(1, 1, 1),
        has_qk_norm=True,
        has_output_gate=True,
        zero_centered_norms=True,
        layer_kinds=("linear", "full") * 2,
        delta=DeltaConfig(key_heads=2, value_heads=4, key_dim=6, value_dim=10),
        norm_eps=1e-6,
        tie_embeddings=False,
    )
    return replace(config, **changes)


def small_multimodal(**changes: object) -> PolicyConfig:
    """The same with a vision tower and a head that guesses a second token."""
    vision = VisionConfig(depth=2, width=24, num_heads=2, ff_dim=36, out_width=24, patch_size=4, num_positions=16)
    tokens = {"image_token_id": 40, "video_token_id": 41, "vision_start_token_id": 42, "vision_end_token_id": 43}
    return replace(small_hybrid(), **{"num_mtp_layers": 1, "vision": vision, **tokens, **changes})


_YARN = RopeScaling(kind="yarn", factor=4.0, original_positions=64)
_LLAMA3 = RopeScaling(kind="llama3", factor=8.0, original_positions=64)

FAMILIES: dict[str, PolicyConfig] = {
    "llama": small_config(),
    "llama_untied": small_config(tie_embeddings=False, rope_scaling=_LLAMA3),
    "llama_biased": small_config(attention_bias=True, output_bias=True, mlp_bias=True, num_kv_heads=4, head_dim=6),
    "llama_linear": small_config(rope_scaling=RopeScaling(kind="linear", factor=2.0), norm_eps=1e-3),
    "qwen2": small_config(family="qwen2", attention_bias=True, norm_eps=1e-6),
    "qwen2_untied": small_config(family="qwen2", attention_bias=True, tie_embeddings=False, rope_scaling=_YARN),
    "qwen3": small_config(family="qwen3", has_qk_norm=True, head_dim=16),
    "qwen3_untied": small_config(family="qwen3", has_qk_norm=True, num_kv_heads=1, tie_embeddings=False),
    "qwen3_5_text": small_hybrid(),
    "qwen3_5_tied": small_hybrid(tie_embeddings=True, num_layers=3, layer_kinds=("linear", "linear", "full")),
    "qwen3_5": small_multimodal(),
}
"""By a name that begins with the family's."""


def loud_params(config: PolicyConfig, seed: int = 0) -> Params:
    """Weights far from their quiet initialization, norms far from 1: attention is peaked, errors are visible.

    Less so in hybrid policies: their recurrences amplify the rounding of float32 itself.
    """
    gain = 4.0 if config.is_hybrid else 8.0
    params = init_params(config, jax.random.key(seed))
    noise = jax.random.key(seed + 1)
    return {
        name: value * (gain if is_decayed(name) else 1.0) + 0.1 * jax.random.normal(noise, value.shape)
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
