"""Token ids as text for people, piece by piece, so that a page can tell sampled tokens from template."""

from collections.abc import Sequence
from pathlib import Path

import yaml
from tokenizers import Tokenizer

_BROKEN = "\N{REPLACEMENT CHARACTER}"
_LONGEST_PIECE = 8
"""A character has at most four bytes, so tokens that still do not add up to text after eight never will."""


class TokenText:
    """Decodes ids without losing which id wrote what."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, model_dir: Path) -> "TokenText":
        """Raises FileNotFoundError when the folder has no tokenizer.json."""
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"no tokenizer.json in the model folder {model_dir}")
        return cls(Tokenizer.from_file(str(path)))

    def text(self, token_ids: Sequence[int]) -> str:
        """All of it, control tokens included."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def pieces(self, token_ids: Sequence[int]) -> list[tuple[str, int]]:
        """(text, number of tokens) in order: one token each, more where a character spans several."""
        found = []
        start = 0
        for end in range(1, len(token_ids) + 1):
            text = self.text(token_ids[start:end])
            if _BROKEN in text and end - start < _LONGEST_PIECE and end < len(token_ids):
                continue
            found.append((text, end - start))
            start = end
        return found


def token_text_of_run(run_dir: Path, model_dir: Path | None) -> TokenText | None:
    """The tokenizer of `model_dir`, else of the model that the run's config names, else none.

    Raises FileNotFoundError when `model_dir` is given and holds no tokenizer.
    """
    if model_dir is not None:
        return TokenText.load(model_dir)
    try:
        folder = Path(yaml.safe_load((run_dir / "config.yaml").read_text())["model"]["folder"])
        return TokenText.load(folder)
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None
