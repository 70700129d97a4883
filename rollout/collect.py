"""Many rollouts at once: groups, bounded concurrency, retries, and what is dropped and why.

Infrastructure failures are retried with growing pauses, then kept as `Stop.INFRA_FAILED` rollouts without
a report, so that nobody can take them for a reward of 0. Any other exception is a programming error:
it ends the collection and reaches the caller.
"""

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from rollout.engine import EngineError
from rollout.sandbox.protocol import SandboxError
from rollout.types import Rollout, Stop, Tree
from verifier.types import InfrastructureError, Task

RunOne = Callable[[Task, str, int], Rollout]
"""(task, rollout_id, seed) -> the finished rollout. Called from many threads at once."""

INFRASTRUCTURE_ERRORS = (SandboxError, EngineError, InfrastructureError)
_LONGEST_PAUSE_S = 60.0
_POLL_S = 0.2


class CollectionStopped(RuntimeError):
    """The stop event was set before every rollout was done; what was running is abandoned."""


def collect_groups(
    tasks: Sequence[Task],
    *,
    group_size: int,
    run_one: RunOne,
    concurrency: int,
    max_retries: int = 2,
    seed: int = 0,
    prefix: str = "rollouts",
    backoff_s: float = 1.0,
    on_done: Callable[[Rollout], None] | None = None,
    stop: threading.Event | None = None,
) -> list[list[Rollout]]:
    """`group_size` rollouts of each task, in task order and index order whatever finished first.

    Args:
        tasks: one group each.
        group_size: attempts at each task.
        run_one: makes one rollout; may raise one of `INFRASTRUCTURE_ERRORS`.
        concurrency: most rollouts at once.
        max_retries: further attempts after an infrastructure failure.
        seed: with the rollout's id it determines the rollout's seed, the same in every attempt.
        prefix: opening of each rollout's id, `<phase>/<step>`.
        backoff_s: pause in seconds before the first retry, doubled before each further one.
        on_done: told of each rollout as it finishes, from the calling thread.
        stop: set it, from any thread, to give up promptly.

    Raises:
        CollectionStopped: `stop` was set. Rollouts still running end by themselves when the caller
            closes what they use; their results are ignored.
        ValueError: a size below 1.
    """
    for name, value, least in (
        ("group_size", group_size, 1),
        ("concurrency", concurrency, 1),
        ("max_retries", max_retries, 0),
    ):
        if value < least:
            raise ValueError(f"{name} must be at least {least}, got {value}")
    halt = threading.Event()
    pool = ThreadPoolExecutor(max_workers=concurrency, thread_name_prefix="rollout")

    def attempt(task: Task, index: int) -> Rollout:
        rollout_id = f"{prefix}/{task.task_id}/{index}"
        return _with_retries(run_one, task, rollout_id, rollout_seed(seed, rollout_id), max_retries, backoff_s, halt)

    try:
        futures = []
        num_started: Counter[str] = Counter()
        for task in tasks:
            # A task that comes twice (an epoch's border) counts on, so that ids stay unique.
            first = num_started[task.task_id]
            num_started[task.task_id] += group_size
            futures.append([pool.submit(attempt, task, first + i) for i in range(group_size)])
        _await_all([future for group in futures for future in group], on_done, stop)
        return [[future.result() for future in group] for group in futures]
    finally:
        halt.set()
        pool.shutdown(wait=False, cancel_futures=True)


def rollout_seed(seed: int, rollout_id: str) -> int:
    """A 31-bit seed that is the same after a resume and differs between rollouts.

    >>> rollout_seed(0, "train/3/shop/0") == rollout_seed(0, "train/3/shop/0")
    True
    >>> rollout_seed(0, "train/3/shop/0") == rollout_seed(0, "train/3/shop/1")
    False
    """
    return int.from_bytes(hashlib.blake2b(f"{seed}:{rollout_id}".encode(), digest_size=4).digest()) >> 1


def trainable_groups(groups: Sequence[Sequence[Rollout]]) -> list[list[Rollout]]:
    """The valid rollouts of each group that has two of them or more; smaller groups teach nothing."""
    valid = [[rollout for rollout in group if rollout.stop.is_valid] for group in groups]
    return [group for group in valid if len(group) >= 2]


def infra_failure_rate(groups: Sequence[Sequence[Rollout]]) -> float:
    """Share of rollouts that infrastructure failed for good; 0 when there are none at all."""
    stops = [rollout.stop for group in groups for rollout in group]
    return sum(not stop.is_valid for stop in stops) / max(1, len(stops))


def _await_all(
    futures: Sequence[Future[Rollout]], on_done: Callable[[Rollout], None] | None, stop: threading.Event | None
) -> None:
    """Waits in short steps, so that Ctrl-C and `stop` are seen; raises the first error of a worker."""
    pending = set(futures)
    while pending:
        done, pending = wait(pending, timeout=_POLL_S, return_when=FIRST_COMPLETED)
        for future in done:
            rollout = future.result()
            if on_done is not None:
                on_done(rollout)
        if stop is not None and stop.is_set() and pending:
            raise CollectionStopped(f"stopped with {len(pending)} of {len(futures)} rollouts unfinished")


def _with_retries(
    run_one: RunOne,
    task: Task,
    rollout_id: str,
    seed: int,
    max_retries: int,
    backoff_s: float,
    halt: threading.Event,
) -> Rollout:
    """One rollout, tried until it is valid, no attempt is left, or the collection has ended."""
    for attempt in range(max_retries + 1):
        if attempt and halt.wait(min(backoff_s * 2 ** (attempt - 1), _LONGEST_PAUSE_S)):
            break
        try:
            rollout = _checked(run_one(task, rollout_id, seed))
        except INFRASTRUCTURE_ERRORS as error:
            rollout = _failed(task, rollout_id, f"{type(error).__name__}: {error}")
        if rollout.stop.is_valid:
            break
    return rollout


def _checked(rollout: Rollout) -> Rollout:
    """The rollout, or a failure where its tokens cannot be trusted: cut off by an abort, or without logp."""
    for node in rollout.tree.nodes:
        if node.finish_reason == "abort":
            raise EngineError(f"the answer of message {node.node_id} was aborted and is no answer")
        if len(node.logp) != node.num_generated:
            raise EngineError(f"message {node.node_id}: log-probabilities were lost")
    return rollout


def _failed(task: Task, rollout_id: str, error: str) -> Rollout:
    return Rollout(
        rollout_id=rollout_id,
        task=task,
        tree=Tree(nodes=(), leaves=()),
        stop=Stop.INFRA_FAILED,
        potentials=(float("nan"),),
        turns=(),
        report=None,
        error=error,
    )
