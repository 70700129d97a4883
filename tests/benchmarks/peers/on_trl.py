"""TRL's side of the update benchmark: a GRPOTrainer, driven through one update by its own methods.

What `GRPOTrainer.train` does around these calls (generation, rewards, logging) is left out. Kept as TRL has
them: padding to the longest of the whole update, scoring and loss in micro-batches of
`per_device_train_batch_size` rows, the chunked head, accelerate's backward, clipping, fused AdamW.
"""

import tempfile
from collections.abc import Callable
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from tests.benchmarks.peers.turns import Measures, serve
from tests.benchmarks.peers.work import LEARNING_RATE, MAX_GRAD_NORM, load_work, padded


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


def prepare(settings: dict[str, Any]) -> Callable[[str], Measures]:
    torch.set_num_threads(settings["threads"])
    works = {name: load_work(path) for name, path in settings["works"].items()}
    trainer = make_trainer(settings, max(len(work.tokens) for work in works.values()))
    model = trainer.model.train()
    optimizer = trainer.create_optimizer()
    micro_rows = settings["micro_rows"]

    def update(name: str) -> Measures:
        arrays = {key: torch.from_numpy(value) for key, value in padded(works[name]).items()}
        prompts, completions = arrays["prompts"].long(), arrays["completions"].long()
        batch = {
            "prompt_ids": prompts,
            "prompt_mask": (prompts != 0).long(),
            "completion_ids": completions,
            "completion_mask": (completions != 0).long(),
            "advantages": arrays["advantages"],
        }
        with torch.no_grad():
            batch["old_per_token_logps"], _, _ = trainer._get_per_token_logps_and_entropies(
                model,
                torch.cat([prompts, completions], dim=1),
                torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1),
                completions.shape[1],
                batch_size=micro_rows,
            )
        num_micro = len(prompts) // micro_rows
        trainer.current_gradient_accumulation_steps = num_micro
        batch["num_items_in_batch"] = batch["completion_mask"].sum()
        loss_sum = 0.0
        for micro in split_tensor_dict(batch, num_micro):
            loss = trainer.compute_loss(model, micro, num_items_in_batch=batch["num_items_in_batch"])
            trainer.accelerator.backward(loss)
            loss_sum += loss.item()
        norm = trainer.accelerator.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        model.zero_grad()
        mask = batch["completion_mask"]
        logp = ((batch["old_per_token_logps"] * mask).sum(1) / mask.sum(1)).mean()
        return {"loss": loss_sum, "grad_norm": float(norm), "logp": float(logp)}

    return update


if __name__ == "__main__":
    serve(prepare)
