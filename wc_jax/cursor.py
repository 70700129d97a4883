"""Which tasks a step gets: shuffled epochs, a pure function of (seed, position).

The order of an epoch comes from a hash and not from a generator's stream, so it is the same on every
machine and with every version of numpy. A step that crosses the border of two epochs still gets distinct
tasks: those it already holds are moved back in the new epoch's order.
"""

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class TaskCursor:
    """Deals `per_step` of `num_tasks` task indices at a time, each index once an epoch.

    >>> cursor = TaskCursor(num_tasks=3, per_step=2, seed=0)
    >>> sorted(cursor.take(0) + cursor.take(2) + cursor.take(4))
    [0, 0, 1, 1, 2, 2]
    """

    num_tasks: int
    per_step: int
    seed: int
    _orders: list[list[int]] = field(default_factory=list, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.per_step <= self.num_tasks:
            raise ValueError(f"per_step must be 1 to {self.num_tasks} (num_tasks), got {self.per_step}")

    def take(self, position: int) -> list[int]:
        """The indices for a step that starts after `position` tasks were dealt (a multiple of per_step)."""
        if position < 0 or position % self.per_step:
            raise ValueError(f"position must be a multiple of per_step={self.per_step}, got {position}")
        places = (divmod(position + i, self.num_tasks) for i in range(self.per_step))
        return [self._order(epoch)[offset] for epoch, offset in places]

    def _order(self, epoch: int) -> list[int]:
        while len(self._orders) <= epoch:
            self._orders.append(self._next_order())
        return self._orders[epoch]

    def _next_order(self) -> list[int]:
        epoch = len(self._orders)
        order = sorted(range(self.num_tasks), key=lambda index: _rank(self.seed, epoch, index))
        num_held = (epoch * self.num_tasks) % self.per_step
        if num_held == 0:
            return order
        held = set(self._orders[-1][-num_held:])
        allowed = [index for index in order if index not in held]
        head = allowed[: self.per_step - num_held]
        taken = set(head)
        return head + [index for index in order if index not in taken]


def _rank(seed: int, epoch: int, index: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{epoch}/{index}".encode(), digest_size=16).digest()
