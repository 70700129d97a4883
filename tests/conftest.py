"""Fixtures that more than one package's tests share, and the strictness that all of them run under."""

import jax
from hypothesis import settings

pytest_plugins = ["tests.engine"]

# No deadlines: the machine may be busy. Derandomized: a run that was green stays green.
settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")

# A missing axis or a silent cast is a mistake of ours, in tests of the core and of its users alike.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
