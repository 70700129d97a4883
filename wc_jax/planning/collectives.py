"""What devices send each other in a compiled program: each kind, how often, how many bytes, over which network."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from wc_jax.planning.hlo import Computation, Instruction, Module, trip_count

KINDS = (
    "all-gather",
    "all-reduce",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)


@dataclass(frozen=True, kw_only=True)
class Collective:
    """A kind of exchange among devices."""

    kind: str
    group: int
    """Devices that take part in one."""
    near: int
    """Of those, how many stand in one node; fewer than `group`: the exchange leaves the node."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """All of one `Collective` in one run of a program, for one device."""

    count: int
    num_bytes: int
    """That the device sends, by the algorithm that sends least."""


def collectives(module: Module, *, node_size: int) -> dict[Collective, Traffic]:
    """Of one run of the program; what stands in loops, as often as they run. Of branches, the one that sends most.

    Raises ValueError for a collective in a loop whose length only the data decide: it can't be counted.
    """

    @cache
    def of(name: str) -> tuple[tuple[Collective, int, int], ...]:
        total: Counter[tuple[Collective, str]] = Counter()
        computation = module.computations[name]
        for instruction in computation.values():
            for found, times in _found(module, instruction, computation, name, of, node_size):
                for what, count, num_bytes in found:
                    total[what, "count"] += count * times
                    total[what, "bytes"] += num_bytes * times
        return tuple((w, total[w, "count"], total[w, "bytes"]) for w in dict.fromkeys(w for w, _ in total))

    return {what: Traffic(count=count, num_bytes=sent) for what, count, sent in of(module.entry)}


_Found = tuple[tuple[Collective, int, int], ...]


def _found(
    module: Module,
    instruction: Instruction,
    within: Computation,
    within_name: str,
    of: Callable[[str], _Found],
    node_size: int,
) -> Iterator[tuple[_Found, int]]:
    """What an instruction sends, itself or in the computations that it runs, and how often."""
    kind = instruction.opcode.removesuffix("-start")
    if kind in KINDS:
        yield (_collective(kind, instruction, within, within_name, node_size),), 1
    elif instruction.opcode == "while":
        inside = of(instruction.attribute("body") or "") + of(instruction.attribute("condition") or "")
        trips = trip_count(module, instruction, within)
        if inside and trips is None:
            raise ValueError(f"{instruction.op_name}: exchanges in a loop whose length only the data decide")
        yield inside, trips or 0
    elif instruction.opcode == "conditional":
        yield max((of(name) for name in instruction.branches), key=lambda found: sum(sent for _, _, sent in found)), 1
    elif instruction.opcode in ("fusion", "call", "async-start"):
        yield of(instruction.attribute("calls") or instruction.attribute("to_apply") or ""), 1


def _collective(
    kind: str, instruction: Instruction, within: Computation, within_name: str, node_size: int
) -> tuple[Collective, int, int]:
    given = sum(within[name].num_bytes for name in instruction.operands)
    # TPUs fuse a sum over devices with the cut of each one's part, and keep the sum's name.
    if kind == "all-reduce" and within_name.startswith("all-reduce-scatter"):
        kind = "reduce-scatter"
    groups = _pairs(instruction.rest) if kind == "collective-permute" else replica_groups(instruction.rest)
    size = max((len(group) for group in groups), default=1)
    near = min((_in_one_node(group, node_size) for group in groups), default=1)
    return Collective(kind=kind, group=size, near=near), 1, round(given * _share_sent(kind, size))


def _in_one_node(group: Sequence[int], node_size: int) -> int:
    return min(Counter(device // node_size for device in group).values())


def _share_sent(kind: str, size: int) -> float:
    """Bytes that one of `size` devices sends for each byte that it puts in."""
    if kind == "all-gather":
        return size - 1
    if kind == "all-reduce":
        return 2 * (size - 1) / size
    if kind in ("collective-permute", "collective-broadcast"):
        return 1
    return (size - 1) / size


def _pairs(text: str) -> list[tuple[int, ...]]:
    found = re.search(r"source_target_pairs=\{(.*?)\}\}", text)
    pairs = re.findall(r"\{(\d+),(\d+)\}", found.group(1) + "}") if found else []
    return [(int(a), int(b)) for a, b in pairs if a != b]


def replica_groups(text: str) -> list[tuple[int, ...]]:
    """The devices that exchange with each other, in any of the three ways in which XLA writes them.

    >>> replica_groups("replica_groups={{0,1},{2,3}}")
    [(0, 1), (2, 3)]
    >>> replica_groups("replica_groups=[2,2]<=[2,2]T(1,0)")
    [(0, 2), (1, 3)]
    >>> replica_groups("replica_groups=mesh['a'=2,'b'=2] {'b'}")
    [(0, 1), (2, 3)]
    """
    listed = re.search(r"replica_groups=\{(\{[\d,{} ]*\})\}", text)
    if listed:
        return [tuple(map(int, group.split(","))) for group in re.findall(r"\{([\d,]+)\}", listed.group(1))]
    strided = re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", text)
    if strided:
        return _rows(_iota(strided.group(2)).reshape(_numbers(strided.group(1))))
    named = re.search(r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\((\S+)\))? \{([^}]*)\}", text)
    if named:
        axes = re.findall(r"'([^']+)'=(\d+)", named.group(1))
        sizes = [int(size) for _, size in axes]
        ids = (_iota(named.group(2)) if named.group(2) else np.arange(np.prod(sizes))).reshape(sizes)
        together = [i for i, (axis, _) in enumerate(axes) if f"'{axis}'" in named.group(3)]
        apart = [i for i in range(len(axes)) if i not in together]
        width = int(np.prod([sizes[i] for i in together]))
        return _rows(ids.transpose(apart + together).reshape(-1, width))
    return []


def _rows(groups: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(map(int, group)) for group in groups]


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in text.split(",")]


def _iota(text: str) -> np.ndarray:
    """`[4,2]T(1,0)`: 0..7 in that shape, turned around."""
    sizes, _, order = text.partition("T")
    shape = _numbers(sizes.strip("[]"))
    ids = np.arange(np.prod(shape)).reshape(shape)
    return ids.transpose(_numbers(order.strip("()"))) if order else ids
