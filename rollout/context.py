"""Keeping a conversation inside the window: truncate each tool result, then fold old ones.

Project files are untouched by both. A folded result has lost its pictures too. Folding rewrites the context, so it
opens a new branch of the tree; truncation happens before a result enters the tree and is no rewrite.
"""

from dataclasses import dataclass

from rollout.render import ChatFormat
from rollout.tree import TreeBuilder
from rollout.types import Message, Node


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """When and how a context is shortened."""

    max_result_chars: int = 4000
    """A longer tool result keeps its head and its tail."""
    fold_tokens: int = 32_000
    """Old tool results are folded when the prompt, image tokens included, is longer than this."""
    keep_results: int = 1
    """So many of the newest tool results are never folded."""

    def __post_init__(self) -> None:
        if self.max_result_chars < 64:
            raise ValueError(f"max_result_chars must be 64 or more, got {self.max_result_chars}")
        if self.fold_tokens < 1:
            raise ValueError(f"fold_tokens must be 1 or more, got {self.fold_tokens}")
        if self.keep_results < 1:
            raise ValueError(
                f"keep_results must be 1 or more (the newest result is being answered), got {self.keep_results}"
            )


FOLDED = "(folded)"
"""What is left of a folded result: its first line and this mark."""


def truncate(text: str, max_chars: int) -> str:
    """Head and tail of a long text, with a note in the middle that says how much is missing.

    >>> truncate("a" * 50 + "b" * 50, 64)
    'aaaaaaaaaaaaaaaa\\n[68 characters left out]\\nbbbbbbbbbbbbbbbb'
    """
    if len(text) <= max_chars:
        return text
    half = (max_chars - 32) // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def fold(text: str) -> str:
    """One line in place of a tool result.

    >>> fold("build ok\\ntext 20 chars")
    'build ok (folded)'
    """
    return f"{text.splitlines()[0] if text else ''} {FOLDED}".strip()


def fold_if_needed(tree: TreeBuilder, chat: ChatFormat, config: ContextConfig) -> bool:
    """Folds old tool results when the open branch is longer than `config.fold_tokens`.

    Returns True when the context was rewritten, that is, when a new segment has begun. A branch in which
    nothing is left to fold stays as it is, however long.
    """
    branch = tree.branch()
    if sum(len(node.token_ids) for node in branch) <= config.fold_tokens:
        return False
    results = [i for i, node in enumerate(branch) if node.role == "tool"]
    foldable = [i for i in results[: -config.keep_results] if _is_worth_folding(branch[i])]
    if not foldable:
        return False
    tree.rewrite(branch[foldable[0] - 1])
    for i in range(foldable[0], len(branch)):
        node = branch[i]
        if i in foldable:
            text = fold(node.text)
            closing = node.token_ids[: _num_leading(branch, i, chat)]
            tree.add_message("tool", text, closing + chat.message_ids(Message(role="tool", content=text)))
        else:
            tree.add_copy(node)
    return True


def _is_worth_folding(node: Node) -> bool:
    return bool(node.pictures) or len(fold(node.text)) < len(node.text)


def _num_leading(branch: list[Node], i: int, chat: ChatFormat) -> int:
    """How many ids at the front of message `i` close the answer before it."""
    before = branch[i - 1]
    if before.role != "assistant":
        return 0
    return len(chat.closing_ids(ended=before.token_ids[-1] == chat.end_id))
