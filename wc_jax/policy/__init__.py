"""Policies as pure functions over a flat table of weights."""

from wc_jax.policy.compute import IN_FLOAT32, Compute
from wc_jax.policy.config import DeltaConfig, LoraConfig, PolicyConfig, RopeScaling, VisionConfig
from wc_jax.policy.decoder import hidden_states, unembed
from wc_jax.policy.families import from_hf_config, hf_tensors, to_hf_config
from wc_jax.policy.table import check_params, init_adapters, init_params, num_params, trained_names, weight_table
from wc_jax.policy.weight import Params, Weight

__all__ = [
    "IN_FLOAT32",
    "Compute",
    "DeltaConfig",
    "LoraConfig",
    "Params",
    "PolicyConfig",
    "RopeScaling",
    "VisionConfig",
    "Weight",
    "check_params",
    "from_hf_config",
    "hf_tensors",
    "hidden_states",
    "init_adapters",
    "init_params",
    "num_params",
    "to_hf_config",
    "trained_names",
    "unembed",
    "weight_table",
]
