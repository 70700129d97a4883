"""System prompts, one Markdown file each, chosen by name in the config."""

from pathlib import Path

_FOLDER = Path(__file__).parent


def load_prompt(name: str) -> str:
    """The prompt's text. ValueError that lists the known names.

    >>> load_prompt("plain").startswith("You build web pages")
    True
    """
    path = _FOLDER / f"{name}.md"
    if "/" in name or not path.is_file():
        known = ", ".join(sorted(found.stem for found in _FOLDER.glob("*.md")))
        raise ValueError(f"no system prompt {name!r}; known: {known}")
    return path.read_text().strip()
