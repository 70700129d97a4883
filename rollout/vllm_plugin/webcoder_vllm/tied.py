"""The output head that shares the embedding's weight, after a reload on the CPU.

There vLLM multiplies by a packed copy of the head, made when the head's own weight is loaded. A tied head is
never loaded by itself, so the copy of the old embedding would stay in use, without an error.
"""

import torch
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    VocabParallelEmbedding,
)
from vllm.platforms import current_platform


def is_tied(model_config: object) -> bool:
    """Whether the head is the embedding."""
    text_config = model_config.hf_text_config  # type: ignore[attr-defined]
    return bool(getattr(text_config, "tie_word_embeddings", False))


def repack_tied_head(model: torch.nn.Module, model_config: object) -> None:
    """Point the head at the new embedding and pack it again. No-op off the CPU or when untied."""
    if not current_platform.is_cpu() or not is_tied(model_config):
        return
    heads = [module for module in model.modules() if isinstance(module, ParallelLMHead)]
    embeddings = [
        module
        for module in model.modules()
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead)
    ]
    if len(heads) > 1 or len(embeddings) != 1:
        raise RuntimeError(f"cannot re-tie: found {len(heads)} heads and {len(embeddings)} embeddings")
    for head in heads:
        head.tie_weights(embeddings[0])
        head.quant_method.process_weights_after_loading(head)
