"""What a plan is made of: two programs on one device of a topology, and the verdicts that follow."""

from dataclasses import dataclass

from wc_jax.config import Config
from wc_jax.planning.chips import Chip
from wc_jax.planning.collectives import Collective, Traffic
from wc_jax.planning.compiling import Compiled
from wc_jax.planning.estimate import Seconds
from wc_jax.planning.topology import Topology
from wc_jax.policy import PolicyConfig


@dataclass(frozen=True, kw_only=True)
class ProgramPlan:
    """One program on one device."""

    name: str
    memory: Compiled
    resident: int
    """Bytes that the run keeps on the device meanwhile, beside the program's own arguments."""
    flops: float
    """Executed on the busiest device, in one run over the whole batch."""
    model_flops: float
    """Of all devices, without what is computed again."""
    traffic: dict[Collective, Traffic]
    seconds: Seconds
    kernels: int
    """Calls of attention's hand-written kernels in the program's text; 0: its loops in JAX are what is planned."""
    runs: int
    """In one update."""

    @property
    def peak(self) -> int:
        """Bytes on the device while it runs."""
        return self.memory.peak + self.resident


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `python -m wc_jax.plan` prints."""

    topology: Topology
    config: Config
    policy: PolicyConfig
    num_params: int
    rows: int
    """Of the planned batch."""
    programs: tuple[ProgramPlan, ...]

    @property
    def chip(self) -> Chip:
        """What the topology is made of."""
        return self.topology.chip

    @property
    def peak(self) -> int:
        """Bytes on one device, at the worst moment."""
        return max(program.peak for program in self.programs)

    @property
    def fits(self) -> bool:
        """Whether that is no more than the chip has."""
        return self.peak <= self.chip.memory_bytes and all(p.memory.module is not None for p in self.programs)

    @property
    def step_seconds(self) -> float:
        """One update takes no less: scoring, then training, on the planned batch."""
        return sum(program.runs * program.seconds.least for program in self.programs)

    @property
    def mfu(self) -> float:
        """At most: the model's own FLOPs over what the devices could do in that time."""
        useful = sum(program.runs * program.model_flops for program in self.programs)
        return useful / (self.step_seconds * self.topology.num_devices * self.chip.flops)

    @property
    def binds(self) -> str:
        """What to look at first: memory size where it does not fit, else what takes longest."""
        if not self.fits:
            return "memory size"
        longest = max(self.programs, key=lambda program: program.runs * program.seconds.least)
        return {"compute": "compute", "memory": "memory traffic", "network": "network"}[longest.seconds.binds]
