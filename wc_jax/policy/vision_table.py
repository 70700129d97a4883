"""The vision tower's weights, and the Hugging Face tensors that hold them."""

from wc_jax.policy.config import VisionConfig
from wc_jax.policy.names import Form, HfTensor, of_layer
from wc_jax.policy.weight import STD, Weight


def vision_table(config: VisionConfig) -> dict[str, Weight]:
    """`vision.layers.*` are stacked, `[depth, ...]`. Every linear layer and every norm has a bias."""
    c = config
    D, M = c.width, c.width * c.merge_size**2
    pixels = c.in_channels * c.temporal_patch_size * c.patch_size**2
    layer = {
        **_norm("attn_norm", D, "vision_embed"),
        **{k: v for x in "qkv" for k, v in _linear(x, (D, D), ("vision_embed", "vision_heads")).items()},
        **_linear("o", (D, D), ("vision_heads", "vision_embed")),
        **_norm("mlp_norm", D, "vision_embed"),
        **_linear("up", (D, c.ff_dim), ("vision_embed", "vision_ff")),
        **_linear("down", (c.ff_dim, D), ("vision_ff", "vision_embed")),
    }
    return {
        **_linear("vision.patch_embed", (pixels, D), ("pixels", "vision_embed")),
        "vision.positions": Weight((c.num_positions, D), ("grid", "vision_embed"), STD),
        **{f"vision.layers.{name}": row.stacked(c.depth) for name, row in layer.items()},
        **_norm("vision.merger.norm", D, "vision_embed"),
        **_linear("vision.merger.up", (M, M), ("vision_embed", "vision_ff")),
        **_linear("vision.merger.down", (M, c.out_width), ("vision_ff", "embed")),
    }


def _linear(name: str, shape: tuple[int, int], axes: tuple[str, str]) -> dict[str, Weight]:
    return {name: Weight(shape, axes, STD), f"{name}_bias": Weight(shape[1:], axes[1:], "zeros")}


def _norm(name: str, width: int, axis: str) -> dict[str, Weight]:
    return {name: Weight((width,), (axis,), "ones"), f"{name}_bias": Weight((width,), (axis,), "zeros")}


def vision_tensors(config: VisionConfig, root: str) -> list[HfTensor]:
    """Every tensor of the tower; `root`: the start of its keys."""
    c = config
    kernel = (c.in_channels, c.temporal_patch_size, c.patch_size, c.patch_size)
    patches = HfTensor(
        key=f"{root}patch_embed.proj.weight", parts=("vision.patch_embed",), form="patches", kernel=kernel
    )
    found = [
        patches,
        HfTensor(key=f"{root}patch_embed.proj.bias", parts=("vision.patch_embed_bias",)),
        HfTensor(key=f"{root}pos_embed.weight", parts=("vision.positions",)),
    ]
    rows = {**_both("attn_norm", "norm1", "same"), **_both("mlp_norm", "norm2", "same")}
    rows |= {**_both("o", "attn.proj"), **_both("up", "mlp.linear_fc1"), **_both("down", "mlp.linear_fc2")}
    for i in range(c.depth):
        key, ours = f"{root}blocks.{i}.", "vision.layers"
        found += of_layer(rows, key, ours, i)
        weights, biases = (tuple(f"{ours}.{x}{end}" for x in "qkv") for end in ("", "_bias"))
        found.append(HfTensor(key=f"{key}attn.qkv.weight", parts=weights, layer=i, form="linear"))
        found.append(HfTensor(key=f"{key}attn.qkv.bias", parts=biases, layer=i))
    merger = {**_both("norm", "norm", "same"), **_both("up", "linear_fc1"), **_both("down", "linear_fc2")}
    for name, (theirs, form) in merger.items():
        found.append(HfTensor(key=f"{root}merger.{theirs}", parts=(f"vision.merger.{name}",), form=form))
    return found


def _both(ours: str, theirs: str, form: Form = "linear") -> dict[str, tuple[str, Form]]:
    return {ours: (f"{theirs}.weight", form), f"{ours}_bias": (f"{theirs}.bias", "same")}
