"""Messages -> token ids, by appending only: what was sent or sampled once is never rendered again.

The format is ChatML (`<|im_start|>role`, newline, text, `<|im_end|>`, newline), which the shipped nano
policy and SmolLM2 both speak. A message's ids depend on nothing before it, so a child of a message-tree
node extends its parent literally.
"""

from pathlib import Path

from tokenizers import Tokenizer

from rollout.types import Message, Shown

START, END = "<|im_start|>", "<|im_end|>"
VISION = ("<|vision_start|>", "<|image_pad|>", "<|vision_end|>")
"""What a picture is in ids: the first, then as many of the second as it has tokens, then the third."""
VIDEO = "<|video_pad|>"


class ChatFormat:
    """ChatML over one tokenizer. Safe to share between threads: nothing in it changes."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        ids = {token: tokenizer.token_to_id(token) for token in (START, END)}
        for token, token_id in ids.items():
            if token_id is None:
                raise ValueError(f"the tokenizer has no token {token}; choose a model folder with a ChatML tokenizer")
        self._tokenizer = tokenizer
        self._vision = tuple(tokenizer.token_to_id(token) for token in VISION)
        markers = (START, END, *(token for token in (*VISION, VIDEO) if tokenizer.token_to_id(token) is not None))
        self._neutral = {marker: marker.replace("_", " ") for marker in markers}
        self.end_id = int(ids[END] or 0)
        """Ends every message; the policy samples it to end its answer."""
        self.answer_header: tuple[int, ...] = self._encode(f"{START}assistant\n")
        self._newline = self._encode("\n")
        self.picture_ids = frozenset(
            token_id for token in (*VISION, VIDEO) if (token_id := tokenizer.token_to_id(token)) is not None
        )
        """Ids that stand for pictures and nothing else; empty where the tokenizer has none."""
        self.image_id = None if None in self._vision else self._vision[1]
        """Stands once for each token of a picture; None: this tokenizer's policy reads text only."""

    @classmethod
    def load(cls, model_dir: str | Path) -> "ChatFormat":
        """Raises FileNotFoundError that names what is missing in the folder."""
        path = Path(model_dir) / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"no tokenizer.json in the model folder {model_dir}")
        return cls(Tokenizer.from_file(str(path)))

    def message_ids(self, message: Message) -> tuple[int, ...]:
        """A whole message that the policy did not generate, closing newline included."""
        opening = self._opening(message)
        pictures = tuple(i for picture in message.pictures for i in self._picture_ids(picture.num_tokens))
        return opening + pictures + self.text_ids(message.content) + self.closing_ids(ended=False)

    def shown(self, message: Message, *, after: int = 0) -> tuple[Shown, ...]:
        """Where the message's pictures stand when `message_ids` of it follows `after` other ids in its node."""
        found, column = [], after + len(self._opening(message))
        for picture in message.pictures:
            found.append(Shown(picture=picture, start=column + 1))
            column = found[-1].stop + 1
        return tuple(found)

    def closing_ids(self, *, ended: bool) -> tuple[int, ...]:
        """What stands between an answer and the next message; `ended`: the policy wrote `<|im_end|>` itself."""
        return self._newline if ended else (self.end_id, *self._newline)

    def text_ids(self, text: str) -> tuple[int, ...]:
        """Plain text: markers in it (a page may contain them) never become control tokens."""
        for marker, neutral in self._neutral.items():
            text = text.replace(marker, neutral)
        return self._encode(text)

    def decode(self, token_ids: tuple[int, ...]) -> str:
        """Text of sampled ids, control tokens left out."""
        return str(self._tokenizer.decode([i for i in token_ids if i != self.end_id], skip_special_tokens=False))

    def _opening(self, message: Message) -> tuple[int, ...]:
        return self._encode(f"{START}{message.role}\n")

    def _picture_ids(self, num_tokens: int) -> tuple[int, ...]:
        start, image, end = self._vision
        if start is None or image is None or end is None:
            raise ValueError(
                f"a message has pictures but the tokenizer lacks one of {', '.join(VISION)}: this policy"
                " reads text only; show it none"
            )
        return (start, *[image] * num_tokens, end)

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)
