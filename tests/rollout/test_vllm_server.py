"""What goes wrong before a server is up: one clear error, and nothing left running."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rollout.engine import EngineError
from rollout.vllm_server import VllmServer
from tests.rollout.tiny_model import tiny_config, write_tiny_model


def scratch_folders() -> set[str]:
    """Of servers that this process started."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(f"webcoder-vllm-{os.getpid()}-")}


def test_missing_model_folder(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no config.json"):
        VllmServer(tmp_path)


def test_taken_port(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", seed=0)
    before = scratch_folders()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EngineError, match=f"port {port} is taken"):
            VllmServer(folder, port=port)
    assert scratch_folders() == before


def test_head_width_without_a_kernel(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", seed=0, config=tiny_config(heads=4, kv_heads=2))
    with pytest.raises(EngineError, match="head_dim must be one of .* got 16"):
        VllmServer(folder)


def test_longer_context_than_the_model_has(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", seed=0)
    with pytest.raises(EngineError, match="made for 2 to 2048 tokens, asked for max_model_len=4096"):
        VllmServer(folder, max_model_len=4096)


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_model_that_does_not_load_shows_the_log(tmp_path: Path) -> None:
    config = tiny_config() | {"architectures": ["NoSuchModel"], "model_type": "no-such-model"}
    folder = write_tiny_model(tmp_path / "model", seed=0, config=config)
    before = scratch_folders()
    with pytest.raises(EngineError, match="no-such-model"):
        VllmServer(folder, max_model_len=256, kv_cache_gib=0.125)
    assert scratch_folders() == before


@pytest.mark.engine
def test_start_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", seed=0)
    before = scratch_folders()
    with pytest.raises(EngineError, match="did not come up in 0 s"):
        VllmServer(folder, max_model_len=256, kv_cache_gib=0.125, start_timeout_s=0.2)
    assert scratch_folders() == before


def test_missing_engine_environment_names_the_command(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", seed=0)
    environment = os.environ | {"WEBCODER_ENGINE": str(tmp_path / "nowhere")}
    result = subprocess.run(
        [sys.executable, "-m", "rollout.vllm_server", "serve", str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 3
    assert "run `python -m rollout.vllm_server install`" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
