"""One real vLLM server for the whole test session, serving a tiny random model with a tied head."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rollout.engine import Request
from rollout.vllm import VllmEngine
from rollout.vllm_server import VllmServer
from tests.rollout.tiny_model import tiny_config, tiny_weights, write_tiny_model

VOCAB = 128
MAX_MODEL_LEN = 512


@dataclass(frozen=True, kw_only=True)
class Served:
    """The running server, its client, and the checkpoint it was started with."""

    folder: Path
    server: VllmServer
    engine: VllmEngine

    def publish(self, weights: dict[str, np.ndarray], version: int) -> None:
        """Write the tensors where the server looks and push them."""
        path = self.server.weights_dir / "test.safetensors"
        save_file(weights, path)
        try:
            self.engine.publish(path, version)
        finally:
            path.unlink()


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Tests publish the weights they need before they ask: the order of tests must not matter."""
    folder = write_tiny_model(tmp_path_factory.mktemp("engine") / "model", seed=0)
    log = tmp_path_factory.mktemp("engine-log") / "vllm.log"
    with VllmServer(folder, max_model_len=MAX_MODEL_LEN, kv_cache_gib=0.125, log_path=log) as server:
        engine = VllmEngine(server.base_url, weights_dir=server.weights_dir)
        yield Served(folder=folder, server=server, engine=engine)
        engine.close()


def weights_of(seed: int) -> dict[str, np.ndarray]:
    """Another full set of tensors for the served model."""
    return tiny_weights(tiny_config(), seed)


def ask(
    prompt: tuple[int, ...],
    *,
    max_tokens: int = 16,
    seed: int = 0,
    temperature: float = 1.0,
    stop: tuple[int, ...] = (),
) -> Request:
    """A request with the fields that most tests do not care about filled in."""
    return Request(
        token_ids=prompt,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        stop_token_ids=stop,
        rollout_id="test",
        turn=0,
    )


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Random ids of the served model's vocabulary."""
    return tuple(int(token) for token in np.random.default_rng(seed).integers(3, VOCAB, length))
