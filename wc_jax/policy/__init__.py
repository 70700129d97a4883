"""Policies as pure functions over a flat table of weights."""

from wc_jax.policy.config import PolicyConfig, from_hf_config, to_hf_config
from wc_jax.policy.llama import IN_FLOAT32, Compute, hidden_states, unembed
from wc_jax.policy.table import Params, Weight, check_params, init_params, num_params, weight_table

__all__ = [
    "IN_FLOAT32",
    "Compute",
    "Params",
    "PolicyConfig",
    "Weight",
    "check_params",
    "from_hf_config",
    "hidden_states",
    "init_params",
    "num_params",
    "to_hf_config",
    "unembed",
    "weight_table",
]
