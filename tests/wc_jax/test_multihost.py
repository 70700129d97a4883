"""Several processes: they learn as one, agree, and when one fails all of them end, soon, and say why."""

import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.wc_jax.together import TIMEOUT_S, Ended, run_together, seconds_to_end
from tests.wc_jax.together_programs import rows_of
from wc_jax.multihost import DistributedConfig
from wc_jax.processes import Processes

MARGIN_S = 10.0
"""For a busy machine, on top of what the configuration promises."""


class Memory:
    """The store, between threads."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._lock = threading.Lock()

    def key_value_set(self, key: str, value: str) -> None:
        with self._lock:
            if key in self._values:
                raise RuntimeError(f"ALREADY_EXISTS: {key}")
            self._values[key] = value

    def key_value_increment(self, key: str, increment: int) -> int:
        with self._lock:
            self._values[key] = str(int(self._values.get(key, "0")) + increment)
            return int(self._values[key])

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        with self._lock:
            return [pair for pair in self._values.items() if pair[0].startswith(key)]

    def key_value_delete(self, key: str) -> None:
        with self._lock:
            del self._values[key]

    def num_keys(self) -> int:
        return len(self._values)


def among(count: int, work: Callable[[Processes], object]) -> tuple[list[object], Memory]:
    """What `work` gives each of so many processes that are threads."""
    store = Memory()
    members = [Processes(index=i, count=count, store=store if count > 1 else None) for i in range(count)]
    with ThreadPoolExecutor(count) as pool:
        return [future.result() for future in [pool.submit(work, member) for member in members]], store


@given(items=st.lists(st.integers(), max_size=9), count=st.integers(1, 4))
def test_what_was_shared_out_comes_back_in_order(items: list[int], count: int) -> None:
    def work(processes: Processes) -> object:
        mine = processes.share(items)
        assert len(mine) in (len(items) // count, -(-len(items) // count))
        return processes.gather_shares([[item] for item in mine], what="items")

    found, _ = among(count, work)
    assert found == [[[item] for item in items]] * count


def test_all_agree_and_old_values_are_forgotten() -> None:
    def work(processes: Processes) -> object:
        seen: list[object] = []
        for turn in range(20):
            mine = (processes.index + turn) % 3
            seen.append((processes.agree_max(mine, what="max"), processes.gather(mine, what="all")))
        is_odd = processes.index % 2 == 1
        return [*seen, processes.agree_any(is_odd, what="any"), processes.agree_all(is_odd, what="all")]

    found, store = among(3, work)
    turns = [(2, [(i + turn) % 3 for i in range(3)]) for turn in range(20)]
    assert found == [[*turns, True, False]] * 3
    assert store.num_keys() <= 2 * 3


def test_processes_at_different_places_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match=r"out of step: \{0: 'rows', 1: 'metrics'\}"):
        among(2, lambda processes: processes.gather(1, what=("rows", "metrics")[processes.index]))


def at_once(*runs: Callable[[], list[Ended]]) -> list[list[Ended]]:
    """Runs that wait more than they work, at the same time."""
    with ThreadPoolExecutor(len(runs)) as pool:
        return [future.result() for future in [pool.submit(run) for run in runs]]


def test_processes_learn_as_one() -> None:
    for ended in at_once(partial(run_together, "learn", count=3), partial(run_together, "learn_on_slurm", devices=1)):
        assert all(process.code == 0 for process in ended), ended
        w = 0.0
        for _ in range(20):
            w -= 0.5 * float(np.mean([w - value for i in range(len(ended)) for value in rows_of(i)]))
        for process in ended:
            words = process.out.splitlines()[-2].split()
            # The process without samples ran as many steps as the others, on rows of padding.
            assert words[1] == "4"
            assert float.fromhex(words[3]) == pytest.approx(w, rel=1e-5)
        assert len({process.out.splitlines()[-2] for process in ended}) == 1


def test_when_one_raises_all_end_and_name_the_cause() -> None:
    cases = [(1, "store"), (0, "device")]
    found = at_once(*(partial(run_together, "fail", culprit, where) for culprit, where in cases))
    for (culprit, _), ended in zip(cases, found, strict=True):
        guilty, other = ended[culprit], ended[1 - culprit]
        assert guilty.code != 0 and other.code != 0, ended
        assert f"process {culprit} failed: ValueError: the sandbox burned down" in guilty.err
        assert f"infrastructure failure: process {culprit} failed: ValueError: the sandbox burned down;" in other.err
        # What each had opened was closed.
        assert all(process.out.endswith("closed\n") for process in ended)
        assert "Traceback" in guilty.err and "Traceback" not in other.err
        assert seconds_to_end(ended) < TIMEOUT_S + MARGIN_S


def test_when_one_is_killed_the_other_ends_and_says_which() -> None:
    *found, by_jax = at_once(
        *(partial(run_together, "die", *case) for case in ((1, "store"), (1, "device"), (0, "store")))
    )
    for ended in found:
        survivor, killed = ended
        assert killed.code == -signal.SIGKILL and survivor.code == 3, survivor
        assert f"process 1 failed: nothing was heard of it for {TIMEOUT_S:g} s; it is dead" in survivor.err
        assert survivor.out.endswith("closed\n")
        assert seconds_to_end(ended) < 2 * TIMEOUT_S + MARGIN_S
    # With the coordinator dead, JAX's own client may be first to end the process, in its own words.
    killed, survivor = by_jax
    assert killed.code == -signal.SIGKILL and survivor.code != 0
    assert "process 0" in survivor.err or "another task died" in survivor.err
    assert seconds_to_end(by_jax) < 2 * TIMEOUT_S + MARGIN_S


def test_a_signal_stops_all_and_a_process_that_does_not_close_is_ended() -> None:
    (other, stopped), (wedged, guilty) = at_once(partial(run_together, "stop"), partial(run_together, "wedge"))
    assert (other.code, stopped.code) == (3, 130)
    assert "process 1 failed: Stopped: SIGINT; run the same commands to go on" in other.err
    assert wedged.code == 3 and guilty.code != 0
    assert "process 1 failed: ValueError: boom; this process could not close in time" in wedged.err
    assert seconds_to_end([wedged, guilty]) < 2 * TIMEOUT_S + MARGIN_S


def test_nobody_waits_forever_for_those_who_do_not_come() -> None:
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        (first,), (second,), (third,) = at_once(
            partial(run_together, "alone", started=[0]),
            partial(run_together, "alone", started=[1]),
            partial(run_together, "alone", started=[0], port=port),
        )
    assert first.code == 3 and "not all processes came within distributed.start_timeout_s=2" in first.err
    assert second.code == 2 and "process 0 does not listen on distributed.coordinator=127.0.0.1:" in second.err
    assert third.code == 2 and f"port {port} of distributed.coordinator=127.0.0.1:{port} is taken" in third.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_processes": 0}, "num_processes must be above 0"),
        ({"num_processes": 2}, "write both distributed.coordinator=HOST:PORT"),
        ({"coordinator": "here:1234"}, "do not fit"),
        ({"coordinator": "here", "num_processes": 2}, "must be HOST:PORT"),
        ({"coordinator": "here:99999", "num_processes": 2}, "must be HOST:PORT"),
        ({"coordinator": "here:1234", "num_processes": 2, "process_id": 2}, "process_id must be 0 to 1, got 2"),
        ({"auto": True, "coordinator": "here:1234", "num_processes": 2}, "leave out coordinator"),
        ({"failure_timeout_s": 0.0}, "failure_timeout_s must be above 0"),
    ],
)
def test_bad_settings_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DistributedConfig(**options)  # type: ignore[arg-type]
