"""The root config of a training run: dataclasses only, each setting with its meaning and unit.

Nothing below the edge sees these: `train.py` and `assemble.py` hand plain values on.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rollout.agent import AgentConfig
from rollout.context import ContextConfig
from wc_jax.aggregation import Aggregation
from wc_jax.credit import CreditConfig
from wc_jax.mesh import MeshShape
from wc_jax.multihost import DistributedConfig
from wc_jax.optim import OptimConfig
from wc_jax.policy import LoraConfig


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def _positive(config: object, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        _require(value > 0, f"{name} must be above 0, got {value}; write a positive number")


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The policy that is trained."""

    folder: Path
    """A Hugging Face folder (config.json, tokenizer.json, *.safetensors) that holds the starting weights."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the forward pass computes in."""
    master_dtype: Literal["float32", "bfloat16"] = "float32"
    """What the weights are kept and updated in. bfloat16 loses small updates: it must be accepted by name."""
    accept_bfloat16_masters: bool = False
    """True: keep weights in bfloat16 although updates below a 256th of a weight are lost."""
    lora: LoraConfig | None = None
    """Train low-rank adapters beside named linear layers, nothing else; null trains the policy itself."""
    train_vision: bool = False
    """Train the vision tower of a multimodal policy too."""
    frozen_dtype: Literal["float32", "bfloat16"] = "float32"
    """What weights that are not trained are kept in: with adapters, most of them."""

    def __post_init__(self) -> None:
        is_low = self.master_dtype == "bfloat16"
        _require(
            self.accept_bfloat16_masters or not is_low,
            "master_dtype=bfloat16 loses small updates: a weight of 1.0 is still 1.0 after 100 updates of -0.001,"
            " with float32 it is 0.9. Write model.master_dtype=float32 (computing in bfloat16 is model.dtype), or"
            " accept the loss with model.accept_bfloat16_masters=true",
        )
        _require(
            is_low or not self.accept_bfloat16_masters,
            "accept_bfloat16_masters=true has no effect with master_dtype=float32; leave it out",
        )


@dataclass(frozen=True, kw_only=True)
class TasksConfig:
    """Where problems come from. `pages` is the page generator, whose two splits are disjoint by content."""

    train: str = "pages"
    """`pages`, or a .json or .jsonl file of tasks, or a folder of them."""
    heldout: str = "pages"
    """The same for evaluation."""
    num_train: int = 512
    """Distinct training tasks; an epoch is one pass over them in a shuffled order."""
    num_heldout: int = 16
    """Tasks of the evaluation, never trained on."""
    per_step: int = 4
    """P: distinct tasks per training step."""
    seed: int = 0
    """Which tasks are written. Apart from the run's seed, so that runs can be compared on the same tasks."""

    def __post_init__(self) -> None:
        _positive(self, "num_train", "num_heldout", "per_step")
        _require(
            self.per_step <= self.num_train,
            f"per_step={self.per_step} is more than num_train={self.num_train}; a step takes distinct tasks",
        )


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How many rollouts, and how they are run."""

    group_size: int = 8
    """G: rollouts per task. The advantage compares rollouts of one task, so 1 teaches nothing."""
    concurrency: int = 8
    """Rollouts at the same time; each has its own sandbox."""
    prompt: str = "plain"
    """Name of the system prompt, a file in rollout/world/prompts."""
    max_retries: int = 2
    """Further attempts at a rollout that the infrastructure (never the policy) failed."""
    top_p: float = 1.0
    """Nucleus truncation while sampling; 1 is off."""
    top_k: int = 0
    """Sample among so many tokens only; 0 is off."""
    accept_truncation_bias: bool = False
    """True: train on truncated samples although the trainer scores the untruncated distribution."""
    max_image_pixels: int = 1_048_576
    """A policy that sees is shown its screenshots, made smaller where they have more pixels than this; 0: it reads
    text only. Qwen3.5 spends a token on each 32x32 pixels, so the default is at most 1,024 tokens an image; a page of
    1440x5000 as it is would be 7,000."""

    def __post_init__(self) -> None:
        _require(
            self.group_size >= 2,
            f"group_size must be 2 or more, got {self.group_size}: a group of one has no advantage;"
            " write rollout.group_size=8",
        )
        _positive(self, "concurrency")
        _require(self.max_retries >= 0, f"max_retries must be 0 or more, got {self.max_retries}")
        _require(
            self.max_image_pixels >= 0,
            f"max_image_pixels must be 0 (no images) or more, got {self.max_image_pixels}",
        )
        _require(0.0 < self.top_p <= 1.0, f"top_p must be in (0, 1], got {self.top_p}; 1 turns it off")
        _require(self.top_k >= 0, f"top_k must be 0 or more, got {self.top_k}; 0 turns it off")
        truncated = self.top_p < 1.0 or self.top_k > 0
        _require(
            self.accept_truncation_bias or not truncated,
            f"top_p={self.top_p}, top_k={self.top_k} truncate what is sampled, but the trainer scores the whole"
            " distribution: the update would be biased. Write rollout.top_p=1 rollout.top_k=0, or accept the bias"
            " with rollout.accept_truncation_bias=true",
        )
        _require(
            truncated or not self.accept_truncation_bias,
            "accept_truncation_bias=true has no effect without top_p < 1 or top_k > 0; leave it out",
        )


@dataclass(frozen=True, kw_only=True)
class VllmConfig:
    """A vLLM server that the run starts, feeds new weights and stops."""

    kind: Literal["vllm"] = "vllm"
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What the engine computes in."""
    num_threads: int = 1
    """Cores that the engine computes on."""
    kv_cache_gib: float = 1.0
    """Memory for keys and values, in GiB."""
    port: int = 0
    """0: any free port; else exactly this one, on 127.0.0.1."""
    start_timeout_s: float = 300.0
    """Give up on a server that does not answer by then."""
    canary_tolerance: float = 1e-3
    """Largest difference between the engine's and the trainer's log-probability of the canary, in nats."""

    def __post_init__(self) -> None:
        _positive(self, "num_threads", "kv_cache_gib", "start_timeout_s", "canary_tolerance")
        _require(0 <= self.port < 65536, f"port must be 0 (any free one) to 65535, got {self.port}")


@dataclass(frozen=True, kw_only=True)
class ScriptedConfig:
    """No model server: the page generator's fallible developer answers, the same for the same seed."""

    kind: Literal["scripted"] = "scripted"


@dataclass(frozen=True, kw_only=True)
class VerifierConfig:
    """The judge of the final project."""

    max_pages: int = 2
    """Pages that Chromium renders at the same time."""
    build_timeout_s: float = 60.0
    """A build that takes longer counts as failed."""

    def __post_init__(self) -> None:
        _positive(self, "max_pages", "build_timeout_s")


@dataclass(frozen=True, kw_only=True)
class ObjectiveConfig:
    """The loss per token."""

    clip_low: float = 0.2
    """The ratio counts no lower than 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio counts no higher than 1 + clip_high."""
    tis_cap: float | None = None
    """Truncated importance weight between sampler and trainer, at most this; null is off."""
    dual_clip: float | None = None
    """With a negative advantage the term counts no more than this many times it; null is off."""
    kl_coef: float = 0.0
    """Weight of the divergence from the starting weights, in the loss; 0 is off and needs no second model."""
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"
    """How that divergence is estimated from one token."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus; 0 is off."""
    aggregation: Aggregation = "token_mean"
    """Which mean the loss is: over tokens, samples, rollouts, or Dr. GRPO's with a constant length."""
    mtp_coef: float = 0.0
    """Weight of the drafting head's own cross-entropy; it moves that head only. 0 leaves the head as it is."""
    constant_length: float | None = None
    """Tokens that dr_grpo divides each sample's sum by, for instance the longest answer; needed there only."""

    def __post_init__(self) -> None:
        _require(0.0 <= self.clip_low < 1.0, f"clip_low must be in [0, 1), got {self.clip_low}")
        for name in ("clip_high", "kl_coef", "entropy_coef", "mtp_coef"):
            _require(getattr(self, name) >= 0.0, f"{name} must be 0 or more, got {getattr(self, name)}")
        if self.tis_cap is not None:
            _positive(self, "tis_cap")
        if self.constant_length is not None:
            _positive(self, "constant_length")
        _require(self.dual_clip is None or self.dual_clip > 1.0, f"dual_clip must be above 1, got {self.dual_clip}")
        _require(
            (self.aggregation == "dr_grpo") == (self.constant_length is not None),
            "constant_length belongs to aggregation=dr_grpo: write both or neither, got"
            f" aggregation={self.aggregation}, constant_length={self.constant_length}",
        )
        _require(
            self.kl_coef > 0.0 or self.kl_estimator == "k3",
            f"kl_estimator={self.kl_estimator} has no effect without kl_coef; write objective.kl_coef=0.01",
        )


@dataclass(frozen=True, kw_only=True)
class BatchConfig:
    """The packed arrays that the compiled step sees; their shape never changes within a run."""

    row_tokens: int = 2048
    """Tokens of a packed row; no sample may be longer."""
    micro_rows: int = 4
    """Rows whose activations are in memory at once; gradients add up over all of a step's rows."""
    rows: int = 0
    """Rows of a step's batch, a multiple of micro_rows; 0: what the first step needs and a quarter more.

    A step that needs more gets more, at the price of compiling again.
    """
    share_prefixes: bool = True
    """Compute what samples have in common from the start, a prompt or a trunk, once a row. Rows longer than the
    longest sample share more."""
    remat: Literal["none", "dots", "layer"] = "none"
    """What the backward pass computes again instead of keeping: nothing; all but products; whole layers."""

    def __post_init__(self) -> None:
        _positive(self, "row_tokens", "micro_rows")
        _require(
            self.rows >= 0 and self.rows % self.micro_rows == 0,
            f"rows must be 0 or a multiple of micro_rows={self.micro_rows}, got {self.rows}",
        )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """The fixed held-out set."""

    every: int = 5
    """Steps between evaluations; the first and the last weights are always evaluated."""
    rollouts_per_task: int = 1
    """Attempts at each held-out task; their mean is the score."""
    temperature: float = 1.0
    """Of sampling in evaluation."""

    def __post_init__(self) -> None:
        _positive(self, "every", "rollouts_per_task", "temperature")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """What survives a kill."""

    every: int = 1
    """Steps between checkpoints; the last step always has one."""
    keep: int = 2
    """So many of the newest stay."""

    def __post_init__(self) -> None:
        _positive(self, "every", "keep")


@dataclass(frozen=True, kw_only=True)
class TrackConfig:
    """Where numbers go besides metrics.jsonl and the console."""

    tensorboard: bool = True
    """Event files in RUN_DIR/tensorboard."""
    wandb_project: str = ""
    """A Weights & Biases project; empty is off."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Everything that a run is made of."""

    run_dir: Path
    """The run's folder: metrics.jsonl, report.html, config.yaml, checkpoints/, rollouts/."""
    seed: int
    """Order of tasks and all sampling."""
    num_steps: int
    """Updates until the run is done; may be raised later to go on."""
    fresh: bool = False
    """True: throw away what the run folder holds and start over."""
    model: ModelConfig
    tasks: TasksConfig = field(default_factory=TasksConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    engine: VllmConfig | ScriptedConfig = field(default_factory=VllmConfig)
    verifier: VerifierConfig = field(default_factory=VerifierConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    track: TrackConfig = field(default_factory=TrackConfig)
    mesh: MeshShape = field(default_factory=MeshShape)
    """How the devices of all processes share the work; all 1 is one device."""
    distributed: DistributedConfig = field(default_factory=DistributedConfig)

    def __post_init__(self) -> None:
        _positive(self, "num_steps")
        _require(self.seed >= 0, f"seed must be 0 or more, got {self.seed}")
        longest = min(self.credit.max_sample_tokens, self.agent.window_tokens)
        _require(
            longest <= self.batch.row_tokens,
            f"a sample can be {longest} tokens long (credit.max_sample_tokens and agent.window_tokens, the lesser)"
            f" but batch.row_tokens={self.batch.row_tokens}; raise batch.row_tokens or lower one of the two",
        )
