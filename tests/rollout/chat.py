"""A chat format over a tiny tokenizer in which one word has two spellings in ids."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rollout.render import END, START, VIDEO, VISION, ChatFormat


def tiny_tokenizer() -> Tokenizer:
    """Byte-level, with merges that make `hello` one token although `he` and `llo` are tokens too."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    vocab = {token: i for i, token in enumerate([*letters, *(a + b for a, b in merges)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([START, END])
    return tokenizer


def tiny_chat() -> ChatFormat:
    """ChatML over `tiny_tokenizer`."""
    return ChatFormat(tiny_tokenizer())


def seeing_chat() -> ChatFormat:
    """The same with ids for pictures."""
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens([*VISION, VIDEO])
    return ChatFormat(tokenizer)
