"""The command line: bad input is one message and exit code 2, and nothing is written or started."""

import os
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rollout.engine import EngineError
from tests.wc_jax.small_runs import write_config
from wc_jax.checkpoint import CheckpointError
from wc_jax.exits import run_command
from wc_jax.train import main


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rollout.group_sise=4", "unknown key rollout.group_sise; did you mean rollout.group_size?"),
        ("rollout.group_size=1", "a group of one has no advantage"),
        ("rollout.top_p=0.9", "rollout.accept_truncation_bias=true"),
        ("model.folder=nowhere", "model.folder=nowhere is no model folder (it has no config.json)"),
        ("rollout.prompt=loud", "no system prompt 'loud'; known: "),
        ("agent.window_tokens=4096", "more than the model's 2048 positions"),
        ("batch.row_tokens=512", "raise batch.row_tokens"),
        ("tasks.train=nowhere.json", "no tasks at 'nowhere.json'"),
        ("optim.lr=fast", 'optim.lr: input should be a valid number, got "fast"'),
    ],
)
def test_bad_input(
    tiny_policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], override: str, message: str
) -> None:
    path = write_config(tmp_path / "config.yaml", tiny_policy, tmp_path / "run")
    assert main([str(path), override]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and message in said and "Traceback" not in said
    assert not (tmp_path / "run").exists()


def test_a_taken_port_is_an_infrastructure_failure_and_leaves_no_run(
    tiny_policy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        path = write_config(
            tmp_path / "config.yaml", tiny_policy, tmp_path / "run", engine={"kind": "vllm", "port": port}
        )
        assert main([str(path)]) == 3
    assert f"port {port} is taken" in capsys.readouterr().err
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == [".lock"]


def test_no_arguments_print_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m wc_jax.train CONFIG" in capsys.readouterr().out
    assert main(["--help"]) == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineError("gone"), 3),
        (CheckpointError("the disk is full"), 3),
        (OSError(28, "No space left on device"), 3),
    ],
)
def test_infrastructure_failures_are_one_message(
    error: Exception, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    assert run_command(fail) == code
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_our_own_faults_keep_their_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        run_command(lambda: 1 // 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_run_what_must_be_closed_once(
    number: signal.Signals, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[str] = []
    before = signal.getsignal(number)

    def work() -> None:
        try:
            os.kill(os.getpid(), number)
            threading.Event().wait(5)
        finally:
            os.kill(os.getpid(), number)  # an impatient second Ctrl-C
            closed.append("all")

    action: Callable[[], None] = work
    assert run_command(action) == code
    assert closed == ["all"]
    assert "run the same command to go on" in capsys.readouterr().err
    assert signal.getsignal(number) == before
