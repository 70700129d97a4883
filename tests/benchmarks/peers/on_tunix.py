"""Tunix's side of the update benchmark: its Llama, its GRPO loss, its trainer's loop.

Rows are padded: Tunix's packing (`max_seq_token_per_tpu`) needs its splash attention, a TPU kernel; without it
its models mask by sample but not by time, so that packed rows train on what they should predict.
"""

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
        training_config=TrainingConfig(
            eval_every_n_steps=10**9,
            gradient_accumulation_steps=num_micro,
            max_inflight_computations=1,  # each computation in flight holds its buffers, 8 GiB at the full size
        ),
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


class Tunix:
    """The trainer, and what it trains on."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._works = {name: padded(load_work(path)) for name, path in settings["works"].items()}
        self._micro_rows: int = settings["micro_rows"]
        num_samples = {len(work["prompts"]) for work in self._works.values()}
        assert len(num_samples) == 1, "Tunix's trainer fixes the number of micro-batches"
        self._trainer = make_trainer(load_model(settings), num_samples.pop() // self._micro_rows)
        self._is_new = True

    def warm_up(self, work: str) -> None:
        trainer = self._trainer
        assert self._is_new, "a warm-up forgets what was trained before"
        weights = nnx.to_pure_dict(nnx.state(trainer.model))
        # Two: the first state of an optimizer differs in types from all later ones, and compiles for itself.
        rows = 2 * self._micro_rows
        trainer.train(self._scored({key: value[:rows] for key, value in self._works[work].items()}))
        nnx.replace_by_pure_dict(state := nnx.state(trainer.model), weights)
        nnx.update(trainer.model, state)
        nnx.update(trainer.optimizer, jax.tree.map(jnp.zeros_like, nnx.state(trainer.optimizer)))
        trainer._iter_steps = trainer._train_steps = 0
        trainer._buffered_train_metrics = trainer._prev_buffered_train_metrics = None

    def update(self, work: str) -> Measures:
        arrays = self._works[work]
        examples = self._scored(arrays)
        self._is_new = False
        self._trainer.train(examples)
        jax.block_until_ready(nnx.state(self._trainer.model))
        losses = self._trainer._prev_buffered_train_metrics.losses
        mask = arrays["completions"] != PAD_ID
        logp = np.concatenate([np.asarray(example.old_per_token_logps) for example in examples])
        mean_logp = float(np.mean(np.sum(logp * mask, 1) / np.sum(mask, 1)))
        return {"loss": float(np.mean(losses)), "grad_norm": found_norm(self._trainer), "logp": mean_logp}

    def _scored(self, arrays: dict[str, np.ndarray]) -> list[common.TrainExample]:
        """Micro-batches with their old log-probabilities."""
        graphdef, weights = nnx.split(self._trainer.model)
        examples = []
        for cut in range(0, len(arrays["prompts"]), self._micro_rows):
            micro = {key: jnp.asarray(value[cut : cut + self._micro_rows]) for key, value in arrays.items()}
            logp = common.compute_per_token_logps(
                graphdef,
                weights,
                prompt_tokens=micro["prompts"],
                completion_tokens=micro["completions"],
                pad_id=PAD_ID,
                eos_id=EOS_ID,
            )
            example = common.TrainExample(
                prompt_ids=micro["prompts"],
                prompt_mask=micro["prompts"] != PAD_ID,
                completion_ids=micro["completions"],
                completion_mask=micro["completions"] != PAD_ID,
                advantages=micro["advantages"],
                ref_per_token_logps=None,
                old_per_token_logps=logp.block_until_ready(),  # again: one in flight at a time
            )
            examples.append(example)
        return examples


if __name__ == "__main__":
    serve(Tunix)
