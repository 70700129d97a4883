"""A real vLLM server: ids in and out, our own log-probabilities, new weights without a restart."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from rollout.types import Completion
from rollout.vllm import VllmEngine, WeightsRefused
from tests.engine import Served, ask, prompt_of, weights_of
from tests.rollout.tiny_model import write_tiny_model
from wc_jax.logprobs import token_logprobs
from wc_jax.policy import hidden_states, unembed
from wc_jax.weights import load_policy

# A busy machine needs minutes to import vLLM, an idle one seconds.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]


def own_logp(folder: Path, prompt: tuple[int, ...], answer: tuple[int, ...], temperature: float) -> np.ndarray:
    """The answer's log-probabilities from our forward function."""
    config, params = load_policy(folder)
    tokens = jnp.asarray([*prompt, *answer])
    with jax.default_matmul_precision("highest"):
        states = hidden_states(params, config, tokens[None])[0]
        logp, _ = token_logprobs(states[:-1], unembed(params, config), tokens[1:], temperature=temperature)
    return np.asarray(logp)[len(prompt) - 1 :]


def test_log_probabilities_are_ours_under_the_sampled_distribution(served: Served) -> None:
    """Case 8: temperature on both sides."""
    served.publish(weights_of(0), 0)
    prompt = prompt_of(45)
    for temperature in (1.0, 0.5):
        answer = served.engine.generate(ask(prompt, max_tokens=40, temperature=temperature))
        assert (len(answer.token_ids), answer.finish_reason) == (40, "length")
        want = own_logp(served.folder, prompt, answer.token_ids, temperature)
        np.testing.assert_allclose(answer.logp, want, atol=1e-4)
    other = own_logp(served.folder, prompt, answer.token_ids, 1.0)
    assert np.abs(other - np.asarray(answer.logp)).max() > 0.1  # A wrong temperature would show.


def test_only_the_requests_stop_ids_end_an_answer(served: Served) -> None:
    served.publish(weights_of(0), 0)
    whole = served.engine.generate(ask(prompt_of(20), max_tokens=60, temperature=2.0))
    assert len(whole.token_ids) == 60
    stop = whole.token_ids[10]
    first = whole.token_ids.index(stop)
    cut = served.engine.generate(ask(prompt_of(20), max_tokens=60, temperature=2.0, stop=(stop,)))
    assert cut.token_ids == whole.token_ids[: first + 1]
    assert (cut.finish_reason, len(cut.logp)) == ("stop", first + 1)


def test_seeded_long_prompts_at_once_do_not_kill_the_engine_and_repeat(served: Served) -> None:
    """vLLM 0.32 on a CPU dies when a seeded request's prompt is split over two steps."""
    served.publish(weights_of(0), 0)
    requests = [ask(prompt_of(400, seed=i), max_tokens=24, seed=i) for i in range(24)]
    with ThreadPoolExecutor(24) as pool:
        first = list(pool.map(served.engine.generate, requests))
        second = list(pool.map(served.engine.generate, requests))
    assert [len(answer.token_ids) for answer in first] == [24] * 24
    assert [answer.token_ids for answer in first] == [answer.token_ids for answer in second]
    assert served.server.is_alive()


def test_cached_prefix_is_counted_and_dropped_by_a_push(served: Served) -> None:
    """Case 11: the second answer under new weights is that of an engine that never saw the prompt."""
    prompt = prompt_of(130, seed=3)
    served.publish(weights_of(0), 0)
    assert served.engine.generate(ask(prompt)).num_cached_tokens == 0
    assert served.engine.generate(ask(prompt)).num_cached_tokens == 128
    served.publish(weights_of(1), 1)
    answer = served.engine.generate(ask(prompt))
    assert (answer.num_cached_tokens, set(answer.policy_versions)) == (0, {1})


def test_request_in_flight_goes_on_under_the_new_weights(served: Served, tmp_path: Path) -> None:
    served.publish(weights_of(0), 0)
    prompt = prompt_of(40, seed=4)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(served.engine.generate, ask(prompt, max_tokens=440))
        time.sleep(0.3)
        served.publish(weights_of(1), 1)
        answer = future.result()
    if set(answer.policy_versions) == {0}:
        pytest.fail("the answer was finished before the push: the model became faster, ask for more tokens")
    assert len(answer.token_ids) == 440
    assert list(answer.policy_versions) == sorted(answer.policy_versions)
    switch = answer.policy_versions.index(1)
    new = write_tiny_model(tmp_path / "new", seed=1)
    want = own_logp(new, prompt, answer.token_ids, 1.0)[switch + 1 :]
    np.testing.assert_allclose(answer.logp[switch + 1 :], want, atol=1e-3)


def _bad_shape(weights: dict[str, np.ndarray]) -> None:
    weights["model.norm.weight"] = weights["model.norm.weight"][:-1].copy()


def _missing(weights: dict[str, np.ndarray]) -> None:
    del weights["model.layers.0.self_attn.k_proj.weight"]


def _unknown(weights: dict[str, np.ndarray]) -> None:
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_bad_shape, r"model.norm.weight has shape \[63\]"),
        (_missing, "k_proj.weight is missing"),
        (_unknown, "lm_head.weight is not a tensor of this model"),
    ],
)
def test_refused_weights_leave_the_engine_as_it_was(served: Served, spoil, message: str) -> None:  # type: ignore[no-untyped-def]
    served.publish(weights_of(0), 5)
    before = served.engine.generate(ask(prompt_of(20)))
    weights = weights_of(1)
    spoil(weights)
    with pytest.raises(WeightsRefused, match=message):
        served.publish(weights, 6)
    assert served.engine.version() == 5
    assert served.engine.generate(ask(prompt_of(20))) == before


def test_file_outside_the_folder_is_refused(served: Served, tmp_path: Path) -> None:
    save_file(weights_of(1), tmp_path / "w.safetensors")
    with pytest.raises(WeightsRefused, match="not inside"):
        served.engine.publish(tmp_path / "w.safetensors", 9)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """A second server, started on the weights of seed 1 by a process of its own."""
    folder = write_tiny_model(tmp_path_factory.mktemp("fresh") / "model", seed=1)
    argv = [sys.executable, "-m", "tests.rollout.server_parent", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line = parent.stdout.readline()
        assert line, "the second server did not start"
        yield parent, json.loads(line)
        parent.kill()


def test_updated_server_equals_a_fresh_one(
    served: Served, fresh: tuple[subprocess.Popen[str], dict[str, object]]
) -> None:
    """Case 10, tied head included: a stale packed head shows only against a fresh engine."""
    other = VllmEngine(str(fresh[1]["url"]))
    prompt = prompt_of(100, seed=8)

    def answers(engine: VllmEngine) -> tuple[Completion, Completion]:
        return (
            engine.generate(ask(prompt, max_tokens=48, temperature=0.0)),
            engine.generate(ask(prompt, max_tokens=48, seed=5)),
        )

    served.publish(weights_of(0), 0)
    old = answers(served.engine)
    served.publish(weights_of(1), 1)
    updated, want = answers(served.engine), answers(other)
    other.close()
    for k in range(2):
        assert updated[k].token_ids == want[k].token_ids
        np.testing.assert_allclose(updated[k].logp, want[k].logp, atol=1e-5)
        assert old[k].token_ids != want[k].token_ids


def test_kill_9_of_the_parent_leaves_nothing(fresh: tuple[subprocess.Popen[str], dict[str, object]]) -> None:
    """Runs after the comparison above (same file, in order): it ends the second server for good."""
    parent, about = fresh
    group, scratch = int(str(about["pid"])), Path(str(about["weights_dir"])).parent
    assert scratch.is_dir()
    members = _group_members(group)
    assert len(members) >= 2, "the API server and the engine's process"
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    deadline = time.monotonic() + 10
    while _group_members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _group_members(group) == []
    assert not scratch.exists()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{about['url']}/health", trust_env=False)
    assert not [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in members)]


def _group_members(group: int) -> list[int]:
    """Living processes of a process group; one that is dead and only not yet reaped does not count.

    A leader looks dead while its last threads still close its files, so those count as living.
    """
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
            num_threads = len(list((stat.parent / "task").iterdir()))
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == group and (fields[0] != "Z" or num_threads > 1):
            found.append(int(stat.parent.name))
    return found
