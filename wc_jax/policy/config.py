"""The shape of a policy: everything that decides a weight's shape or the forward function."""

import math
from dataclasses import dataclass
from typing import Literal

Family = Literal["llama", "qwen2", "qwen3", "qwen3_5"]
LayerKind = Literal["full", "linear"]


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary frequencies are stretched for contexts longer than those of pretraining."""

    kind: Literal["linear", "llama3", "yarn"]
    factor: float
    """How many times longer the context becomes."""
    original_positions: int = 8192
    """The context length of pretraining; `linear` does not use it."""
    low_freq_factor: float = 1.0
    """llama3: waves longer than original_positions / this are stretched whole."""
    high_freq_factor: float = 4.0
    """llama3: waves shorter than original_positions / this are left alone."""
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this within the original context are left alone."""
    beta_slow: float = 1.0
    """yarn: dimensions that turn less often than this are stretched whole."""
    attention_factor: float | None = None
    """yarn: what multiplies cosine and sine; None is 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn: the two bounds are rounded to whole dimensions."""

    def __post_init__(self) -> None:
        for name in ("factor", "original_positions", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow"):
            if not getattr(self, name) > 0:
                raise ValueError(f"rope scaling: {name} must be above 0, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """The recurrent layers of a hybrid policy (see `delta_rule`)."""

    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: value head n reads key head n // (value_heads / key_heads)."""
    key_dim: int
    """Of one head."""
    value_dim: int
    """Of one head."""
    conv_width: int = 4
    """Tokens that the short convolution sees."""

    def __post_init__(self) -> None:
        _positive(self, "key_heads", "value_heads", "key_dim", "value_dim", "conv_width")
        _whole("value_heads", self.value_heads, "key_heads", self.key_heads)


@dataclass(frozen=True, kw_only=True)
class VisionConfig:
    """The tower that turns an image's patches into token embeddings."""

    depth: int
    width: int
    num_heads: int
    ff_dim: int
    out_width: int
    """Of the features, equal to the policy's width."""
    patch_size: int = 16
    """Pixels along a patch's side."""
    temporal_patch_size: int = 2
    """Frames in a patch; a still image repeats its one."""
    merge_size: int = 2
    """merge_size x merge_size neighboring patches become one token."""
    in_channels: int = 3
    num_positions: int = 2304
    """Learned positions, of a square grid."""
    rope_theta: float = 10_000.0

    def __post_init__(self) -> None:
        _positive(self, *(name for name in self.__dataclass_fields__))
        _whole("width", self.width, "num_heads", self.num_heads)
        if (self.width // self.num_heads) % 4:
            raise ValueError(f"a vision head must be a multiple of 4 wide, got {self.width // self.num_heads}")
        if math.isqrt(self.num_positions) ** 2 != self.num_positions:
            raise ValueError(f"num_positions must be a square number, got {self.num_positions}")


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters (arXiv 2106.09685): a linear layer W becomes W + alpha / rank * A B, and only A and B learn."""

    rank: int = 16
    alpha: float = 32.0
    modules: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    """Which linear layers get one, by their last name in the weight table."""

    def __post_init__(self) -> None:
        _positive(self, "rank", "alpha")
        if not self.modules:
            raise ValueError("modules must name at least one linear layer, for instance q")

    @property
    def scale(self) -> float:
        """What multiplies A B."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """A decoder of one of the families; hashable, so static under jit."""

    family: Family = "llama"
    vocab_size: int
    width: int
    """D, of the residual stream."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Fewer than `num_heads`: grouped queries, query head n reads key head n // (num_heads / num_kv_heads)."""
    head_dim: int
    ff_dim: int
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rotary_dim: int = 0
    """Dimensions of a head that turn with the position, the first ones; 0: all."""
    mrope_section: tuple[int, ...] = ()
    """Frequencies that follow a token's time, row and column (interleaved); empty: all follow one position."""
    norm_eps: float = 1e-5
    zero_centered_norms: bool = False
    """A stored norm weight w scales by 1 + w."""
    tie_embeddings: bool = True
    """The unembedding is the transposed embedding: one weight, one gradient."""
    max_positions: int = 2048
    """The longest context that the weights were made for; engines read it, the forward function does not."""
    attention_bias: bool = False
    """q, k and v have biases."""
    output_bias: bool = False
    """o has one."""
    mlp_bias: bool = False
    has_qk_norm: bool = False
    """Each head's queries and keys are RMS-normed before they turn."""
    has_output_gate: bool = False
    """What a query head reads is multiplied by the sigmoid of a gate of its own."""
    layer_kinds: tuple[LayerKind, ...] = ()
    """Of each layer: `full` attention or `linear` recurrence; empty: all full."""
    delta: DeltaConfig | None = None
    """Of the linear layers."""
    num_mtp_layers: int = 0
    """Layers of the head that guesses a second token (multi-token prediction), for speculative decoding."""
    vision: VisionConfig | None = None
    lora: LoraConfig | None = None
    """Adapters beside the weights; None: there are none."""
    image_token_id: int = -1
    """Stands where an image's features go; -1 in policies without vision, as for the next three."""
    video_token_id: int = -1
    vision_start_token_id: int = -1
    vision_end_token_id: int = -1

    def __post_init__(self) -> None:
        _positive(self, "vocab_size", "width", "num_layers", "num_heads", "num_kv_heads", "head_dim", "ff_dim")
        _whole("num_heads", self.num_heads, "num_kv_heads", self.num_kv_heads)
        for name, size in (("head_dim", self.head_dim), ("rotary_dim", self.rotary_dim)):
            if size % 2:
                raise ValueError(f"{name} must be even for rotary positions, got {size}")
        if self.rotary_dim > self.head_dim:
            raise ValueError(f"rotary_dim must be at most head_dim={self.head_dim}, got {self.rotary_dim}")
        if self.mrope_section and (len(self.mrope_section), sum(self.mrope_section)) != (3, self.turning_dim // 2):
            raise ValueError(f"mrope_section must be 3 counts that sum to {self.turning_dim // 2}, got {self}")
        if self.layer_kinds and len(self.layer_kinds) != self.num_layers:
            raise ValueError(f"layer_kinds must name {self.num_layers} layers, got {len(self.layer_kinds)}")
        if ("linear" in self.layer_kinds) != (self.delta is not None):
            raise ValueError("linear layers and their `delta` sizes come together: give both or neither")
        if self.vision is not None and self.vision.out_width != self.width:
            raise ValueError(f"vision.out_width must be the width {self.width}, got {self.vision.out_width}")

    @property
    def turning_dim(self) -> int:
        """Dimensions of a head that turn with the position."""
        return self.rotary_dim or self.head_dim

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """Of each layer."""
        full: LayerKind = "full"
        return self.layer_kinds or (full,) * self.num_layers

    @property
    def is_hybrid(self) -> bool:
        """Whether some layers are recurrent."""
        return self.delta is not None


def _positive(config: object, *names: str) -> None:
    for name in names:
        if getattr(config, name) <= 0:
            raise ValueError(f"{name} must be above 0, got {getattr(config, name)}")


def _whole(name: str, value: int, of: str, unit: int) -> None:
    if value % unit:
        raise ValueError(f"{name} must be a multiple of {of}, got {value} and {unit}")
