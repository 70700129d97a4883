"""What the three papers publish of their recipes, and toy sizes at which a recipe runs here in seconds."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from rollout.pages.vocabulary import save_tokenizer, train_tokenizer
from rollout.render import VIDEO, VISION
from tests.wc_jax.policies import small_config, small_multimodal
from wc_jax.policy import PolicyConfig, init_params
from wc_jax.weights import save_policy

ROOT = Path(__file__).parents[2]
PICTURES = (*VISION, VIDEO)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One of `configs/*.yaml`."""

    name: str
    shape: str
    """Its policy's folder in configs/shapes."""
    published: Mapping[str, Any]
    """Settings as the paper states them."""
    toy: tuple[str, ...] = ()
    """Overrides of this recipe's own, beside `TOY`."""

    @property
    def path(self) -> Path:
        return ROOT / "configs" / f"{self.name}.yaml"


WEBCODER = Recipe(
    name="webcoder_27b",
    shape="qwen3_8_27b",
    published={
        "model.dtype": "bfloat16",
        "tasks.per_step": 16,
        "tasks.num_heldout": 28,
        "rollout.group_size": 8,
        "agent.window_tokens": 116_736,
        "credit.gamma": 0.995,
        "credit.clip_offset": 5.0,
        "credit.max_paths": 6,
        "credit.max_sample_tokens": 65_536,
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.aggregation": "token_mean",
        "optim.lr": 2e-6,
        "optim.schedule": "constant",
        "optim.warmup_steps": 0,
        "evaluation.every": 5,
    },
    # 16 tokens of 8 x 8 pixels.
    toy=("rollout.max_image_pixels=1024",),
)
WEBGRADER = Recipe(
    name="webgrader_8b",
    shape="qwen3_8b",
    published={
        "seed": 20_260_707,
        "num_steps": 100,
        "model.dtype": "bfloat16",
        "tasks.num_train": 600,
        "tasks.num_heldout": 101,
        "tasks.per_step": 4,
        "rollout.group_size": 8,
        "rollout.top_p": 0.95,
        "rollout.top_k": 20,
        "agent.max_turns": 1,
        "agent.window_tokens": 4_096 + 16_384,
        "agent.max_answer_tokens": 16_384,
        "agent.temperature": 0.7,
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.kl_coef": 0.01,
        "objective.entropy_coef": 0.0,
        "objective.aggregation": "token_mean",
        "optim.lr": 2e-6,
        "optim.schedule": "constant",
        "optim.warmup_steps": 0,
        "optim.b1": 0.9,
        "optim.b2": 0.999,
        "optim.weight_decay": 0.01,
        "optim.max_grad_norm": 1.0,
        "batch.row_tokens": 24_576,
        "batch.remat": "layer",
        "checkpoint.every": 25,
    },
    # A script is not sampled: nothing can be truncated.
    toy=("rollout.top_p=1.0", "rollout.top_k=0", "rollout.accept_truncation_bias=false"),
)
WEBGEN_R1 = Recipe(
    name="webgen_r1_7b",
    shape="qwen2_5_coder_7b",
    published={
        "num_steps": 400,
        "tasks.num_train": 6_667,
        "tasks.num_heldout": 101,
        "tasks.per_step": 256 // 16,
        "rollout.group_size": 16,
        "agent.max_turns": 1,
        "agent.window_tokens": 4_096 + 8_192,
        "agent.max_answer_tokens": 8_192,
        "objective.clip_low": 0.2,
        "objective.clip_high": 0.2,
        "objective.kl_coef": 0.01,
        "objective.aggregation": "rollout_mean",
        "optim.lr": 5e-6,
        "evaluation.temperature": 0.7,
    },
)
RECIPES = (WEBCODER, WEBGRADER, WEBGEN_R1)

TOY = (
    "num_steps=1",
    "tasks.num_train=2",
    "tasks.num_heldout=1",
    "tasks.per_step=1",
    "rollout.group_size=4",
    "rollout.concurrency=2",
    "agent.window_tokens=1024",
    "agent.max_answer_tokens=512",
    "context.fold_tokens=400",
    "engine.kind=scripted",
    "verifier.build_timeout_s=120",
    "credit.max_sample_tokens=1024",
    "batch.row_tokens=1024",
    "batch.micro_rows=2",
    "mesh.fsdp=1",
    "mesh.sequence=1",
    "track.tensorboard=false",
)


def overridden(recipe: Recipe) -> set[str]:
    """Keys that a toy run changes."""
    return {assignment.partition("=")[0] for assignment in (*TOY, *recipe.toy)}


def toy_policies(vocab_size: int, picture_ids: Sequence[int] = (1, 2, 3, 4)) -> dict[str, PolicyConfig]:
    """By recipe: a tiny policy of the family that the recipe trains. `picture_ids`: of `PICTURES`."""
    common = {"vocab_size": vocab_size, "max_positions": 2048}
    names = ("vision_start_token_id", "image_token_id", "vision_end_token_id", "video_token_id")
    seeing = {**common, **dict(zip(names, picture_ids, strict=True))}
    return {
        "webcoder_27b": small_multimodal(num_layers=2, layer_kinds=("linear", "full"), **seeing),
        "webgrader_8b": small_config(family="qwen3", has_qk_norm=True, tie_embeddings=False, **common),
        "webgen_r1_7b": small_config(family="qwen2", attention_bias=True, tie_embeddings=False, **common),
    }


def write_toy(folder: Path, recipe: Recipe) -> Path:
    """A model folder with random weights and the page generator's tokenizer, taught the marks of pictures."""
    tokenizer = train_tokenizer(512, num_pages=60)
    tokenizer.add_special_tokens(list(PICTURES))
    vocab_size = -(-tokenizer.get_vocab_size() // 64) * 64
    shape = toy_policies(vocab_size, [tokenizer.token_to_id(token) for token in PICTURES])[recipe.name]
    save_policy(folder, shape, init_params(shape, jax.random.key(0)))
    save_tokenizer(tokenizer, folder)
    if shape.vision is not None:
        gray = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        size = {"patch_size": shape.vision.patch_size, "merge_size": shape.vision.merge_size}
        limits = {"size": {"shortest_edge": 64, "longest_edge": 4096}}
        (folder / "preprocessor_config.json").write_text(json.dumps({**gray, **size, **limits}))
    return folder
