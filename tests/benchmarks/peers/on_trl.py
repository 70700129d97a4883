"""TRL's side of the update benchmark: a GRPOTrainer, driven through one update by its own methods.

What `GRPOTrainer.train` does around these calls (generation, rewards, logging) is left out. Kept as TRL has
them: padding to the longest of the whole update, scoring and loss in micro-batches of
`per_device_train_batch_size` rows, the chunked head, accelerate's backward, clipping, fused AdamW.
"""

import tempfile
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from tests.benchmarks.peers.turns import Measures, serve
from tests.benchmarks.peers.work import LEARNING_RATE, MAX_GRAD_NORM, PAD_ID, load_work, padded


def make_trainer(settings: dict[str, Any], num_samples: int) -> GRPOTrainer:
    words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<eos>"))
    config = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=settings["micro_rows"],
        gradient_accumulation_steps=num_samples // settings["micro_rows"],
        num_generations=2 if num_samples % 2 == 0 else num_samples,
        learning_rate=LEARNING_RATE,
        max_grad_norm=MAX_GRAD_NORM,
        weight_decay=0.0,
        beta=0.0,
        loss_type="grpo",
        bf16=False,
        gradient_checkpointing=False,  # on by default; off is faster where memory suffices
        use_cpu=True,
        report_to=[],
    )
    return GRPOTrainer(
        model=LlamaForCausalLM.from_pretrained(settings["model"], dtype=torch.float32, attn_implementation="sdpa"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["<eos>"] * num_samples}),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>"),
    )


def as_batch(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """What `_generate_and_score_completions` makes of prompts and completions."""
    prompts, completions = (torch.from_numpy(arrays[key]).long() for key in ("prompts", "completions"))
    completion_mask = (completions != PAD_ID).long()
    return {
        "prompt_ids": prompts,
        "prompt_mask": (prompts != PAD_ID).long(),
        "completion_ids": completions,
        "completion_mask": completion_mask,
        "advantages": torch.from_numpy(arrays["advantages"]),
        "num_items_in_batch": completion_mask.sum(),
    }


class Trl:
    """The trainer and its optimizer."""

    def __init__(self, settings: dict[str, Any]) -> None:
        torch.set_num_threads(settings["threads"])
        self._works = {name: padded(load_work(path)) for name, path in settings["works"].items()}
        self._micro_rows: int = settings["micro_rows"]
        self._trainer = make_trainer(settings, max(len(work["prompts"]) for work in self._works.values()))
        self._model = self._trainer.model.train()
        self._optimizer = self._trainer.create_optimizer()

    def warm_up(self, work: str) -> None:
        self._gradients(as_batch({key: value[: self._micro_rows] for key, value in self._works[work].items()}))
        self._model.zero_grad()

    def update(self, work: str) -> Measures:
        batch = as_batch(self._works[work])
        loss, logp = self._gradients(batch)
        norm = self._trainer.accelerator.clip_grad_norm_(self._model.parameters(), MAX_GRAD_NORM)
        self._optimizer.step()
        self._model.zero_grad()
        return {"loss": loss, "grad_norm": float(norm), "logp": logp}

    def _gradients(self, batch: dict[str, torch.Tensor]) -> tuple[float, float]:
        """Scores and accumulates gradients: `(loss, mean old log-probability)`."""
        with torch.no_grad():
            old_logp, _, _ = self._trainer._get_per_token_logps_and_entropies(
                self._model,
                torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                batch["completion_ids"].shape[1],
                batch_size=self._micro_rows,
            )
        num_micro = len(old_logp) // self._micro_rows
        self._trainer.current_gradient_accumulation_steps = num_micro
        loss_sum = 0.0
        for micro in split_tensor_dict({**batch, "old_per_token_logps": old_logp}, num_micro):
            loss = self._trainer.compute_loss(self._model, micro, num_items_in_batch=batch["num_items_in_batch"])
            self._trainer.accelerator.backward(loss)
            loss_sum += loss.item()
        mask = batch["completion_mask"]
        return loss_sum, float(((old_logp * mask).sum(1) / mask.sum(1)).mean())


if __name__ == "__main__":
    serve(Trl)
