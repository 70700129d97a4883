"""What a device can do at most, in its maker's published figures: the bounds that a plan measures against."""

from dataclasses import dataclass
from typing import Literal

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device, as XLA counts devices."""

    name: str
    title: str
    platform: Literal["tpu", "gpu", "cpu"]
    flops: float
    """bfloat16 matrix products with float32 sums, FLOP a second, without sparsity."""
    memory_bytes: int
    """What a program may use of the device's memory."""
    memory_rate: float
    """Bytes a second between the memory and the compute units."""
    near_rate: float
    """Bytes a second that a device sends to its neighbors in one collective."""
    far_rate: float
    """The same where the collective leaves the node."""
    near: str
    """The name of the near network."""
    far: str
    """The name of the far network; empty where there is none."""
    dimensions: int = 0
    """Numbers in a slice's name; 0 where it is counted in devices and nodes."""


def _tpu(name: str, title: str, flops: float, gib: float, memory_rate: float, link: float, dimensions: int) -> Chip:
    # A collective over one mesh axis runs on a ring along one axis of the torus, in both directions: two links.
    rate = 2 * link
    return Chip(
        name=name,
        title=title,
        platform="tpu",
        flops=flops,
        memory_bytes=int(gib * _GIB),
        memory_rate=memory_rate,
        near_rate=rate,
        far_rate=rate,
        near="ICI",
        far="",
        dimensions=dimensions,
    )


def _hopper(name: str, title: str, memory_bytes: int, memory_rate: float) -> Chip:
    # NVLink 4: 450 GB/s each way. Between nodes one 400 Gb/s adapter a GPU. 3 GiB go to CUDA's context and to NCCL.
    return Chip(
        name=name,
        title=title,
        platform="gpu",
        flops=989.4e12,
        memory_bytes=memory_bytes - 3 * _GIB,
        memory_rate=memory_rate,
        near_rate=450e9,
        far_rate=50e9,
        near="NVLink",
        far="400 Gb/s a GPU",
    )


# TPU: memory is what the compiler grants a program (95.74, 15.75, 31.25 GiB); links are one way.
CHIPS = {
    chip.name: chip
    for chip in (
        _tpu("v5p", "TPU v5p", 459e12, 95.74, 2.765e12, 90e9, 3),
        _tpu("v5e", "TPU v5e", 197e12, 15.75, 0.819e12, 45e9, 2),
        _tpu("v6e", "TPU v6e", 918e12, 31.25, 1.64e12, 90e9, 2),
        _hopper("h100", "H100 SXM", 84_942_979_072, 3.35e12),
        _hopper("h200", "H200 SXM", 150_754_820_096, 4.8e12),
        # For tests and for a look at what XLA makes of a program: a simulated device of about one server core.
        Chip(
            name="cpu",
            title="simulated CPU device",
            platform="cpu",
            flops=1e11,
            memory_bytes=16 * _GIB,
            memory_rate=2e10,
            near_rate=1e10,
            far_rate=1e10,
            near="memory",
            far="",
        ),
    )
}
"""By the name that a topology begins with."""
