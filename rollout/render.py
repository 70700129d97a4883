"""Messages -> token ids, by appending only: what was sent or sampled once is never rendered again.

The format is ChatML (`<|im_start|>role`, newline, text, `<|im_end|>`, newline), which the shipped nano
policy and SmolLM2 both speak. A message's ids depend on nothing before it, so a child of a message-tree
node extends its parent literally.
"""

from pathlib import Path

from tokenizers import Tokenizer

from rollout.types import Message

START, END = "<|im_start|>", "<|im_end|>"


class ChatFormat:
    """ChatML over one tokenizer. Safe to share between threads: nothing in it changes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = {token: tokenizer.token_to_id(token) for token in (START, END)}
        for token, token_id in ids.items():
            if token_id is None:
                raise ValueError(f"the tokenizer has no token {token}; choose a model folder with a ChatML tokenizer")
        self._tokenizer = tokenizer
        self.end_id = int(ids[END] or 0)
        """Ends every message; the policy samples it to end its answer."""
        self.answer_header: tuple[int, ...] = self._encode(f"{START}assistant\n")
        self._newline = self._encode("\n")

    @classmethod
    def load(cls, model_dir: str | Path) -> "ChatFormat":
        """Raises FileNotFoundError that names what is missing in the folder."""
        path = Path(model_dir) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"no tokenizer.json in the model folder {model_dir}")
        return cls(Tokenizer.from_file(str(path)))

    def message_ids(self, message: Message) -> tuple[int, ...]:
        """A whole message that the policy did not generate, closing newline included."""
        return self._encode(f"{START}{message.role}\n") + self.text_ids(message.content) + self.closing_ids(ended=False)

    def closing_ids(self, *, ended: bool) -> tuple[int, ...]:
        """What stands between an answer and the next message; `ended`: the policy wrote `<|im_end|>` itself."""
        return self._newline if ended else (self.end_id, *self._newline)

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Plain text: markers in it (a page may contain them) never become control tokens."""
        neutral = text.replace(START, "<|im start|>").replace(END, "<|im end|>")
        return self._encode(neutral)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Text of sampled ids, control tokens left out."""
        return str(self._tokenizer.decode([i for i in token_ids if i != self.end_id], skip_special_tokens=False))

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
