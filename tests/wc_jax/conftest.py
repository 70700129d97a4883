"""What several tests of the trainer need once."""

from pathlib import Path

import pytest

from tests.wc_jax.small_runs import write_tiny_policy


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder that tests may read and not change."""
    return write_tiny_policy(tmp_path_factory.mktemp("policy") / "tiny")
