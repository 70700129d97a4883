"""Groups in order, failures told apart, and a prompt end when asked."""

import _thread
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from rollout.collect import (
    CollectionStopped,
    collect_groups,
    infra_failure_rate,
    rollout_seed,
    trainable_groups,
)
from rollout.engine import EngineError
from rollout.sandbox.protocol import SandboxError
from rollout.types import Rollout, Stop
from tests.rollout.finished import a_rollout, a_task
from verifier.types import InfrastructureError, Task

TASKS = [a_task("a"), a_task("b"), a_task("c")]


def test_results_stand_in_task_order_whatever_finishes_first() -> None:
    delays = {"a": 0.15, "b": 0.05, "c": 0.0}
    finished = []

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        time.sleep(delays[task.task_id])
        return a_rollout(rollout_id, task=task)

    groups = collect_groups(
        TASKS, group_size=2, run_one=run_one, concurrency=6, prefix="train/00003",
        on_done=lambda rollout: finished.append(rollout.rollout_id),
    )  # fmt: skip
    ids = [[rollout.rollout_id for rollout in group] for group in groups]
    assert ids == [[f"train/00003/{name}/{i}" for i in range(2)] for name in "abc"]
    assert sorted(finished) == sorted(name for group in ids for name in group)
    assert finished[-1].startswith("train/00003/a/")


def test_no_more_than_the_allowed_rollouts_run_at_once() -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return a_rollout(rollout_id, task=task)

    collect_groups(TASKS, group_size=4, run_one=run_one, concurrency=3)
    assert most == 3


def test_seeds_belong_to_rollouts_not_to_scheduling() -> None:
    def seeds(concurrency: int, seed: int) -> dict[str, int]:
        found: dict[str, int] = {}

        def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
            found[rollout_id] = seed
            return a_rollout(rollout_id, task=task)

        collect_groups(TASKS, group_size=3, run_one=run_one, concurrency=concurrency, seed=seed)
        return found

    one = seeds(1, seed=7)
    assert one == seeds(4, seed=7)
    assert len(set(one.values())) == 9
    assert not set(one.values()) & set(seeds(1, seed=8).values())
    assert all(0 <= value < 2**31 for value in one.values())
    assert one["rollouts/a/0"] == rollout_seed(7, "rollouts/a/0")


def test_task_that_comes_twice_keeps_ids_unique() -> None:
    groups = collect_groups(
        [TASKS[0], TASKS[0]], group_size=2, concurrency=2, run_one=lambda task, name, seed: a_rollout(name, task=task)
    )
    assert [[r.rollout_id for r in group] for group in groups] == [
        ["rollouts/a/0", "rollouts/a/1"],
        ["rollouts/a/2", "rollouts/a/3"],
    ]


@pytest.mark.parametrize("error", [SandboxError("died"), EngineError("reset"), InfrastructureError("no browser")])
def test_infrastructure_failure_is_retried_then_kept_without_a_reward(error: Exception) -> None:
    attempts = []

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        attempts.append(seed)
        raise error

    ((rollout,),) = collect_groups(
        TASKS[:1], group_size=1, run_one=run_one, concurrency=1, max_retries=2, backoff_s=0.01
    )
    assert len(attempts) == 3 and len(set(attempts)) == 1
    assert rollout.stop is Stop.INFRA_FAILED
    assert rollout.report is None and np.isnan(rollout.reward)
    assert str(error) in rollout.error and type(error).__name__ in rollout.error


def test_retry_that_succeeds_leaves_no_trace() -> None:
    attempts: list[float] = []

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        attempts.append(time.monotonic())
        if len(attempts) < 3:
            raise SandboxError("died")
        return a_rollout(rollout_id, task=task)

    ((rollout,),) = collect_groups(TASKS[:1], group_size=1, run_one=run_one, concurrency=1, backoff_s=0.05)
    assert rollout.stop is Stop.FINISHED and rollout.error == ""
    assert attempts[1] - attempts[0] >= 0.05 and attempts[2] - attempts[1] >= 0.1


def test_sandbox_death_is_no_zero() -> None:
    """Rewards 1, 1, a sandbox's death and a real 0: the mean over valid rollouts is 2/3 over three."""
    rewards = {0: 1.0, 1: 1.0, 3: 0.0}

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        index = int(rollout_id[-1])
        if index not in rewards:
            raise SandboxError("died")
        return a_rollout(rollout_id, task=task, reward=rewards[index])

    groups = collect_groups(TASKS[:1], group_size=4, run_one=run_one, concurrency=4, max_retries=0)
    assert len(groups[0]) == 4
    (kept,) = trainable_groups(groups)
    assert [rollout.reward for rollout in kept] == [1.0, 1.0, 0.0]
    assert np.mean([rollout.reward for rollout in kept]) == pytest.approx(2 / 3)
    assert infra_failure_rate(groups) == 0.25


def test_group_with_fewer_than_two_valid_rollouts_is_dropped() -> None:
    dead = a_rollout(stop=Stop.INFRA_FAILED)
    groups = [[a_rollout("one"), dead], [dead, dead], [a_rollout("two"), dead, a_rollout("three")]]
    assert [[r.rollout_id for r in group] for group in trainable_groups(groups)] == [["two", "three"]]


def test_outcomes_of_the_task_are_not_retried() -> None:
    attempts = []

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        attempts.append(rollout_id)
        return a_rollout(rollout_id, task=task, reward=0.0, stop=list(Stop)[len(attempts) - 1])

    collect_groups(TASKS[:1], group_size=4, run_one=run_one, concurrency=1, max_retries=3, backoff_s=0.01)
    assert len(attempts) == 4


def test_aborted_answer_is_never_taken_for_one() -> None:
    attempts = []

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        attempts.append(rollout_id)
        rollout = a_rollout(rollout_id, task=task)
        nodes = (*rollout.tree.nodes[:-1], replace(rollout.tree.nodes[-1], finish_reason="abort"))
        return replace(rollout, tree=replace(rollout.tree, nodes=nodes))

    ((rollout,),) = collect_groups(
        TASKS[:1], group_size=1, run_one=run_one, concurrency=1, max_retries=1, backoff_s=0.01
    )
    assert len(attempts) == 2
    assert rollout.stop is Stop.INFRA_FAILED and "aborted" in rollout.error


def test_lost_logprobs_drop_the_rollout() -> None:
    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        rollout = a_rollout(rollout_id, task=task)
        nodes = (*rollout.tree.nodes[:-1], replace(rollout.tree.nodes[-1], logp=(-1.0,)))
        return replace(rollout, tree=replace(rollout.tree, nodes=nodes))

    ((rollout,),) = collect_groups(TASKS[:1], group_size=1, run_one=run_one, concurrency=1, max_retries=0)
    assert rollout.stop is Stop.INFRA_FAILED and "log-prob" in rollout.error


def test_programming_error_reaches_the_caller_and_ends_the_rest() -> None:
    started = []

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        started.append(rollout_id)
        if task.task_id == "a":
            raise KeyError("a mistake of ours")
        time.sleep(0.05)
        return a_rollout(rollout_id, task=task)

    with pytest.raises(KeyError, match="a mistake of ours"):
        collect_groups([TASKS[0], *TASKS[1:] * 20], group_size=1, run_one=run_one, concurrency=2)
    time.sleep(0.3)
    assert len(started) < 20


def test_stop_event_ends_it_promptly_even_during_a_long_pause() -> None:
    stop = threading.Event()

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        stop.set()
        raise SandboxError("died")

    began = time.monotonic()
    with pytest.raises(CollectionStopped, match="unfinished"):
        collect_groups(TASKS, group_size=2, run_one=run_one, concurrency=2, backoff_s=30.0, stop=stop)
    assert time.monotonic() - began < 5
    wait_for_no_rollout_threads()


def test_keyboard_interrupt_ends_it_promptly_and_leaves_no_thread() -> None:
    closed = threading.Event()

    def run_one(task: Task, rollout_id: str, seed: int) -> Rollout:
        """As real parts do: what it uses is closed under it, and it fails with a typed error."""
        closed.wait(30)
        raise EngineError("closed")

    threading.Timer(0.3, _thread.interrupt_main).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        collect_groups(TASKS, group_size=4, run_one=run_one, concurrency=2, backoff_s=30.0)
    assert time.monotonic() - began < 5
    closed.set()
    wait_for_no_rollout_threads()


def wait_for_no_rollout_threads() -> None:
    deadline = time.monotonic() + 5
    while any(thread.name.startswith("rollout") for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "a rollout thread is left"
        time.sleep(0.02)


@pytest.mark.parametrize(("name", "value"), [("group_size", 0), ("concurrency", 0), ("max_retries", -1)])
def test_bad_sizes_are_refused(name: str, value: int) -> None:
    sizes = {"group_size": 1, "concurrency": 1, "max_retries": 0, name: value}
    with pytest.raises(ValueError, match=name):
        collect_groups(TASKS, run_one=lambda *_: a_rollout(), **sizes)
