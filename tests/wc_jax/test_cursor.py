"""The data cursor: every task once an epoch, distinct within a step, the same from any position."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wc_jax.cursor import TaskCursor


@given(num_tasks=st.integers(1, 9), data=st.data(), seed=st.integers(0, 5), num_steps=st.integers(1, 12))
def test_epochs_are_complete_and_steps_distinct(num_tasks: int, data: st.DataObject, seed: int, num_steps: int) -> None:
    per_step = data.draw(st.integers(1, num_tasks))
    cursor = TaskCursor(num_tasks=num_tasks, per_step=per_step, seed=seed)
    steps = [cursor.take(step * per_step) for step in range(num_steps)]
    assert all(len(set(step)) == per_step for step in steps)
    flat = [index for step in steps for index in step]
    for start in range(0, len(flat) - num_tasks + 1, num_tasks):
        assert Counter(flat[start : start + num_tasks]) == Counter(range(num_tasks))
    resumed = TaskCursor(num_tasks=num_tasks, per_step=per_step, seed=seed)
    assert resumed.take((num_steps - 1) * per_step) == steps[-1]


def test_epochs_and_seeds_differ() -> None:
    cursor = TaskCursor(num_tasks=50, per_step=50, seed=0)
    assert cursor.take(0) != cursor.take(50)
    assert cursor.take(0) != TaskCursor(num_tasks=50, per_step=50, seed=1).take(0)


def test_a_position_between_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of per_step=2, got 3"):
        TaskCursor(num_tasks=4, per_step=2, seed=0).take(3)
    with pytest.raises(ValueError, match=r"1 to 4 \(num_tasks\), got 5"):
        TaskCursor(num_tasks=4, per_step=5, seed=0)
