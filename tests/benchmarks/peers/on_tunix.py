"""Tunix's side of the update benchmark: its Llama, its GRPO loss, its trainer's loop.

Rows are padded: Tunix's packing (`max_seq_token_per_tpu`) needs its splash attention, a TPU kernel; without it
its models mask by sample but not by time, so that packed rows train on what they should predict.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.models.llama3.model import ModelConfig, RematConfig
from tunix.models.llama3.params import create_model_from_safe_tensors
from tunix.rl import algo_core, common
from tunix.rl.grpo.grpo_learner import GRPOConfig
from tunix.rl.trainer import Trainer
from tunix.sft.peft_trainer import TrainingConfig

from tests.benchmarks.peers.turns import Measures, serve
from tests.benchmarks.peers.work import (
    LEARNING_RATE,
    MAX_GRAD_NORM,
    PAD_ID,
    ROPE_THETA,
    SMOLLM2_135M,
    load_work,
    padded,
)

EOS_ID = 1


def load_model(settings: dict[str, Any]) -> nnx.Module:
    shape = SMOLLM2_135M
    config = ModelConfig(
        num_layers=settings["layers"],
        vocab_size=shape["vocab_size"],
        embed_dim=shape["width"],
        hidden_dim=shape["ff_dim"],
        num_heads=shape["num_heads"],
        head_dim=shape["head_dim"],
        num_kv_heads=shape["num_kv_heads"],
        rope_theta=int(ROPE_THETA),
        norm_eps=1e-5,
        weight_tying=True,
        remat_config=RematConfig[settings["remat"].upper()],
    )
    return create_model_from_safe_tensors(settings["model"], config, dtype=jnp.float32)


def remember_norm() -> optax.GradientTransformation:
    """Keeps the norm of the whole update's gradient: Tunix itself reports those of micro-batches."""
    return optax.GradientTransformation(
        lambda params: jnp.zeros(()), lambda updates, state, params=None: (updates, optax.global_norm(updates))
    )


def make_trainer(model: nnx.Module, num_micro: int) -> Trainer:
    adam = optax.adamw(LEARNING_RATE, weight_decay=0.0)
    trainer = Trainer(
        model=model,
        optimizer=optax.chain(remember_norm(), optax.clip_by_global_norm(MAX_GRAD_NORM), adam),
        training_config=TrainingConfig(eval_every_n_steps=10**9, gradient_accumulation_steps=num_micro),
        custom_checkpoint_metadata_fn=dict,
    )
    trainer.is_managed_externally = True
    algorithm = GRPOConfig(num_generations=2, num_iterations=2, beta=0.0)
    algorithm.temperature = 1.0

    # As GRPOLearner wires it.
    def loss_fn(model: nnx.Module, train_example: common.TrainExample, algo_config: object) -> tuple[jax.Array, Any]:
        return algo_core.grpo_loss_fn(model, train_example, algo_config=algorithm, pad_id=PAD_ID, eos_id=EOS_ID)

    trainer.with_loss_fn(loss_fn, has_aux=True)
    trainer.with_gen_model_input_fn(lambda x: {"train_example": x, "algo_config": algorithm})
    trainer.with_rl_metrics_to_log({"kl": np.mean, "pg_clipfrac": np.mean, "pg_loss": np.mean})
    return trainer


def found_norm(trainer: Trainer) -> float:
    chain = nnx.to_pure_dict(nnx.state(trainer.optimizer, nnx.optimizer.OptState))
    return float(chain["opt_state"]["inner_opt_state"][0])


def prepare(settings: dict[str, Any]) -> Callable[[str], Measures]:
    works = {name: load_work(path) for name, path in settings["works"].items()}
    micro_rows = settings["micro_rows"]
    num_samples = {len(work.tokens) for work in works.values()}
    assert len(num_samples) == 1, "Tunix's trainer fixes the number of micro-batches"
    model = load_model(settings)
    trainer = make_trainer(model, num_samples.pop() // micro_rows)

    def update(name: str) -> Measures:
        arrays = padded(works[name])
        cuts = range(0, len(arrays["prompts"]), micro_rows)
        micros = [{key: jnp.asarray(value[cut : cut + micro_rows]) for key, value in arrays.items()} for cut in cuts]
        graphdef, weights = nnx.split(trainer.model)
        old = [
            common.compute_per_token_logps(
                graphdef,
                weights,
                prompt_tokens=micro["prompts"],
                completion_tokens=micro["completions"],
                pad_id=PAD_ID,
                eos_id=EOS_ID,
            )
            for micro in micros
        ]
        examples = [
            common.TrainExample(
                prompt_ids=micro["prompts"],
                prompt_mask=micro["prompts"] != PAD_ID,
                completion_ids=micro["completions"],
                completion_mask=micro["completions"] != PAD_ID,
                advantages=micro["advantages"],
                ref_per_token_logps=None,
                old_per_token_logps=logp,
            )
            for micro, logp in zip(micros, old, strict=True)
        ]
        trainer.train(examples)
        jax.block_until_ready(nnx.state(trainer.model))
        losses = trainer._prev_buffered_train_metrics.losses
        mask, logp = arrays["completions"] != PAD_ID, np.concatenate([np.asarray(x) for x in old])
        mean_logp = float(np.mean(np.sum(logp * mask, 1) / np.sum(mask, 1)))
        return {"loss": float(np.mean(losses)), "grad_norm": found_norm(trainer), "logp": mean_logp}

    return update


if __name__ == "__main__":
    serve(prepare)
