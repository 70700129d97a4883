"""How long a program must take at least, and what it is that takes so long."""

from collections.abc import Mapping
from dataclasses import dataclass

from wc_jax.planning.chips import Chip
from wc_jax.planning.collectives import Collective, Traffic


@dataclass(frozen=True, kw_only=True)
class Seconds:
    """Of one device. The three go on at the same time, at best."""

    compute: float
    memory: float
    network: float

    @property
    def least(self) -> float:
        """The program takes no less."""
        return max(self.compute, self.memory, self.network)

    @property
    def binds(self) -> str:
        """What takes longest.

        >>> Seconds(compute=2.0, memory=1.0, network=2.5).binds
        'network'
        """
        return max(("compute", "memory", "network"), key=lambda name: float(getattr(self, name)))


def network_seconds(chip: Chip, found: Mapping[Collective, Traffic]) -> float:
    """One exchange after the other, each at its network's full rate.

    Of a group that spans nodes, the devices of a node share what the node sends: each one's adapter carries a part.
    """
    total = 0.0
    for what, traffic in found.items():
        near = traffic.num_bytes / chip.near_rate
        far = traffic.num_bytes / (chip.far_rate * what.near) if what.near < what.group else 0.0
        total += max(near, far)
    return total


def seconds(chip: Chip, *, flops: float, num_bytes: float, found: Mapping[Collective, Traffic]) -> Seconds:
    """`flops` and `num_bytes` of the busiest device."""
    return Seconds(
        compute=flops / chip.flops,
        memory=num_bytes / chip.memory_rate,
        network=network_seconds(chip, found),
    )
