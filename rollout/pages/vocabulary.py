"""The nano policy's tokenizer: byte-level BPE, trained on demonstrations.

Names are capitalized words and prices are digits; what stands between two of them, however long, can become
one token. So a name is the same tokens in a brief, in a component and on a page, one step apart in each:
copying is what a small model must learn, and with a token for each tag and indent it did not (see the log of
failed ideas in CONTRIBUTING.md).
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from rollout.context import fold
from rollout.pages.developer import CARELESS, script_of
from rollout.pages.draft import perfect
from rollout.pages.simulated import read_component
from rollout.pages.spec import brief, make_spec
from rollout.render import END, START
from rollout.world.prompts import load_prompt

PAD = "<|pad|>"
# Capitalized words; single digits; and whatever stands between them, tags and indent included, as one piece.
_PIECES = r" ?[A-Z][a-z]*|\d|(?:</?[a-z]+\d?>|(?! ?[A-Z])[^A-Z\d])+"


def train_tokenizer(vocab_size: int, seed: int = 0, num_pages: int = 4000) -> Tokenizer:
    """A tokenizer of at most `vocab_size` entries, all 256 bytes among them: any text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(seed, num_pages), trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes `tokenizer.json` and the configuration that vLLM and transformers read beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": END,
        "pad_token": PAD,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")


def _corpus(seed: int, num_pages: int) -> Iterator[str]:
    """Every text that an episode is made of, in about the proportions in which it occurs."""
    rng = Random(seed)
    yield load_prompt("plain")
    for _ in range(num_pages):
        spec = make_spec(rng, split="train")
        yield brief(spec)
        yield from script_of(spec, CARELESS, rng)
        yield from ("system\n", "user\n", "assistant\n", "tool\n", "wrote src/App.tsx", "edited src/App.tsx")
        page = "\n".join(read_component(perfect(spec).source())[1])
        yield f"build ok\ntext {len(page)} chars, 0 broken images, 0 console errors\n{page}"
        broken = replace(perfect(spec), broken="heading").source()
        yield f"build failed\n{read_component(broken)[0]}"
        yield fold("build ok")
