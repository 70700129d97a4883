"""The client against answers that no healthy engine gives: aborts, lost numbers, failing pushes."""

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from rollout.engine import EngineError
from rollout.vllm import VllmEngine, WeightsRefused
from tests.engine import ask
from tests.rollout.stub_server import generated, stub_server


def test_aborted_answer_is_resumed_with_what_is_left_of_the_budget() -> None:
    """Case 12: 3 of 10 tokens with reason abort, twice, then the rest."""
    seen: list[tuple[list[int], int, int]] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        params = body["sampling_params"]
        seen.append((body["token_ids"], params["max_tokens"], params["seed"]))
        k = len(seen)
        if k < 3:
            return 200, generated([10 * k, 10 * k + 1, 10 * k + 2], "abort", version=f"step-{k}")
        return 200, generated([30, 31, 32, 33], "length", version="step-3")

    with stub_server(answer) as url:
        got = VllmEngine(url).generate(ask((5, 6), max_tokens=10, seed=100))
    assert seen == [
        ([5, 6], 10, 100),
        ([5, 6, 10, 11, 12], 7, 103),
        ([5, 6, 10, 11, 12, 20, 21, 22], 4, 106),
    ]
    assert got.token_ids == (10, 11, 12, 20, 21, 22, 30, 31, 32, 33)
    assert got.policy_versions == (1, 1, 1, 2, 2, 2, 3, 3, 3, 3)
    assert (len(got.logp), got.finish_reason, got.num_cached_tokens) == (10, "length", 32)


def test_abort_after_the_last_token_or_the_stop_id_is_an_end() -> None:
    with stub_server(lambda path, body: (200, generated([7, 8], "abort"))) as url:
        engine = VllmEngine(url)
        assert engine.generate(ask((5,), max_tokens=2)).finish_reason == "length"
        assert engine.generate(ask((5,), max_tokens=9, stop=(8,))).finish_reason == "stop"


def test_endless_aborts_without_progress_are_an_error() -> None:
    stub = stub_server(lambda path, body: (200, generated([], "abort")))
    with stub as url, pytest.raises(EngineError, match="aborted 5 times"):
        VllmEngine(url).generate(ask((5,)))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (generated([7, 8], "stop", logp=[-1.0, float("nan")]), "output token 1"),
        (generated([7, 8], "stop", logp=[-9999.0, -1.0]), "output token 0"),
        (generated([7, 8], "stop", logp=[-1.0, None]), "unusable"),
        (generated([7, 8], "stop", logp=[-1.0]), "1 log-probabilities for 2 tokens"),
        (generated([7], "stop") | {"choices": []}, "unusable"),
        (generated([7], "exploded"), "exploded"),
        (generated([7], "stop", version="main"), "'main'"),
    ],
)
def test_unusable_answers_are_engine_errors(answer: dict[str, Any], message: str) -> None:
    with stub_server(lambda path, body: (200, answer)) as url, pytest.raises(EngineError, match=message):
        VllmEngine(url).generate(ask((5,)))


def test_version_spans_must_cover_every_token() -> None:
    answer = generated([7, 8, 9], "stop")
    answer["choices"][0]["weight_versions"] = [
        {"version": "step-1", "start": 0, "end": 1},
        {"version": "step-2", "start": 2, "end": 3},
    ]
    with stub_server(lambda path, body: (200, answer)) as url, pytest.raises(EngineError, match="gap at token 1"):
        VllmEngine(url).generate(ask((5,)))


def test_refusals_are_not_retried() -> None:
    calls: list[str] = []

    def answer(path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        calls.append(path)
        return 400, {"error": "prompt too long"}

    with stub_server(answer) as url, pytest.raises(EngineError, match="prompt too long"):
        VllmEngine(url).generate(ask((5,)))
    assert len(calls) == 1


def test_broken_connections_are_retried() -> None:
    """A listener that hangs up once, then serves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        good = json.dumps(generated([7], "stop")).encode()

        def serve() -> None:
            first, _ = listener.accept()
            first.close()
            second, _ = listener.accept()
            with second:
                second.recv(65536)
                second.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(good) + good)

        thread = threading.Thread(target=serve)
        thread.start()
        engine = VllmEngine(f"http://127.0.0.1:{listener.getsockname()[1]}")
        assert engine.generate(ask((5,))).token_ids == (7,)
        thread.join()
        engine.close()


def test_nobody_there_is_an_engine_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(EngineError, match="no answer"):
        VllmEngine(f"http://127.0.0.1:{port}", num_retries=2).generate(ask((5,)))


class PushStub:
    """An engine's control side. `failures[path]` counts how often that path still fails."""

    def __init__(self, failures: dict[str, int], text: str = "boom") -> None:
        self.failures, self.text, self.calls, self.version = failures, text, list[str](), "default"

    def __call__(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        name = path.split("?")[0].strip("/")
        self.calls.append(path.strip("/"))
        if self.failures.get(name, 0):
            self.failures[name] -= 1
            return 500, {"error": self.text}
        if name == "finish_weight_update":
            self.version = body["weight_version"]
        return 200, {"weight_version": self.version}


ONE_PUSH = [
    "pause?mode=keep&clear_cache=true",
    "start_weight_update",
    "update_weights",
    "finish_weight_update",
]


def push(stub: PushStub, folder: Path) -> None:
    path = folder / "w.safetensors"
    path.write_bytes(b"weights")
    with stub_server(stub) as url:
        VllmEngine(url, weights_dir=folder).publish(path, 4)


def test_push_order(tmp_path: Path) -> None:
    """Case 11: pause with the cache dropped, load, finish, resume."""
    stub = PushStub({})
    push(stub, tmp_path)
    assert stub.calls == ["init_weight_transfer_engine", *ONE_PUSH, "resume", "weight_info"]
    assert stub.version == "step-4"


@pytest.mark.parametrize("step", ["update_weights", "finish_weight_update"])
def test_failed_load_is_redone_as_a_whole_and_resumed_only_then(tmp_path: Path, step: str) -> None:
    stub = PushStub({step: 1})
    push(stub, tmp_path)
    assert stub.calls.count("resume") == 1
    assert stub.calls[-6:-2] == ONE_PUSH
    assert stub.calls.index("resume") > stub.calls.index("finish_weight_update")


def test_session_left_open_is_used(tmp_path: Path) -> None:
    stub = PushStub({"start_weight_update": 1}, text="a weight update is already active")
    push(stub, tmp_path)
    assert stub.calls.count("update_weights") == 1


def test_load_that_never_works_leaves_the_engine_paused(tmp_path: Path) -> None:
    stub = PushStub({"update_weights": 99})
    with pytest.raises(EngineError, match="3 tries"):
        push(stub, tmp_path)
    assert "resume" not in stub.calls


def test_refused_file_resumes_with_the_old_weights(tmp_path: Path) -> None:
    stub = PushStub({"update_weights": 99}, text="weights refused: bad shape")
    with pytest.raises(WeightsRefused, match="bad shape"):
        push(stub, tmp_path)
    assert stub.calls[-1] == "resume"
    assert stub.calls.count("update_weights") == 1


def test_client_without_a_folder_only_generates(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weights_dir"):
        VllmEngine("http://127.0.0.1:9").publish(tmp_path / "w", 1)
