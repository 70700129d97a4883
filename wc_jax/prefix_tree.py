"""Which tokens samples share: a compressed prefix tree over their token ids, in numpy.

Two samples share the tokens in which they agree from the start, as long as at most one of them trains each.
Tokens that are trained must also stand right after the token before them (see `wc_jax.types.Batch`), which a
new branch's first token does not: a sample that would begin its branch with a token it trains branches earlier
and repeats its branch point. Nothing here is a loop over tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

ROOT = 0
"""The node above all first tokens; it holds no tokens itself."""


@dataclass(frozen=True, kw_only=True)
class PrefixNode:
    """The tokens `start..stop-1` of sample `source` and of every sample below."""

    source: int
    start: int
    stop: int
    parent: int
    children: tuple[int, ...]
    """The first one goes on where this node stops; only later ones are branches. Below `ROOT`, all are alike."""


@dataclass(frozen=True, kw_only=True)
class PrefixTree:
    """Samples a b c d (index 0), a b (1) and a b p q (2); a trained token of theirs is an upper-case letter.

    >>> a, b, c, d, p, q = range(6)
    >>> tree = build_prefix_tree([np.array(x) for x in ([a, b, c, d], [a, b], [a, b, p, q])],
    ...                          [np.array(x, bool) for x in ([0, 0, 1, 1], [0, 0], [0, 0, 0, 1])])
    >>> for node in tree.nodes[1:]:
    ...     print(node.source, node.start, node.stop, node.parent, node.children)
    0 2 4 2 ()
    0 0 2 0 (1, 3)
    2 2 4 2 ()
    >>> tree.tails
    (1, 1, 3)
    """

    nodes: tuple[PrefixNode, ...]
    """`nodes[ROOT]` is the root."""
    tails: tuple[int, ...]
    """For each sample a node on whose path from the root it lies; the sample may end before that node does."""


@dataclass(kw_only=True)
class _Node:
    source: int
    start: int
    stop: int
    parent: int
    taken: np.ndarray
    """bool: nobody who comes later may train this token: it is trained already, or begins a branch."""
    children: list[int] = field(default_factory=list)
    by_token: dict[int, list[int]] = field(default_factory=dict)
    """Children by their first token. Two with the same one exist where both train what follows."""


def build_prefix_tree(
    tokens: Sequence[np.ndarray], trained: Sequence[np.ndarray], *, share: bool = True, align: int = 1
) -> PrefixTree:
    """The prefix tree of samples with token ids `tokens[i]` (not empty) that train where `trained[i]`.

    Args:
        tokens, trained: integers and bools, `[T_i]` each; no sample trains its first token.
        share: False makes each sample a tree of its own.
        align: branches leave at multiples of this many tokens only (see `wc_jax.layout`).

    Which samples share does not depend on their order in the list.
    """
    assert all(len(t) == len(m) > 0 and not m[0] for t, m in zip(tokens, trained, strict=True))
    builder = _Builder(tokens, trained, align)
    if share:
        # Whoever trains a trunk comes before those that only show it; the rest of the key makes the order total.
        first = [int(mask.argmax()) if mask.any() else len(mask) for mask in trained]
        contents = [np.ascontiguousarray(t, np.int32).tobytes() for t in tokens]
        order = sorted(range(len(tokens)), key=lambda i: (first[i], contents[i], trained[i].tobytes()))
    else:
        order = list(range(len(tokens)))
    for i in order:
        builder.add(i, share)
    nodes = tuple(
        PrefixNode(source=n.source, start=n.start, stop=n.stop, parent=n.parent, children=tuple(n.children))
        for n in builder.nodes
    )
    return PrefixTree(nodes=nodes, tails=tuple(builder.tails))


class _Builder:
    """Adds one sample after another."""

    def __init__(self, tokens: Sequence[np.ndarray], trained: Sequence[np.ndarray], align: int) -> None:
        self.tokens, self.trained, self.align = tokens, trained, align
        self.tails = [ROOT] * len(tokens)
        self.nodes = [_Node(source=-1, start=0, stop=0, parent=-1, taken=np.zeros(0, bool))]

    def add(self, i: int, share: bool) -> None:
        node_id, depth = self._deepest(i) if share else (ROOT, 0)
        while node_id != ROOT and self.nodes[node_id].start >= depth:
            node_id = self.nodes[node_id].parent
        length, above = len(self.tokens[i]), node_id
        while above != ROOT:
            node = self.nodes[above]
            end = min(node.stop, depth)
            node.taken[: end - node.start] |= self.trained[i][node.start : end]
            above = node.parent
        node = self.nodes[node_id]
        if depth == length:
            self.tails[i] = node_id
        elif node_id != ROOT and depth == node.stop and not node.children:
            node.source, node.stop = i, length
            node.taken = np.concatenate([node.taken, self.trained[i][depth:]])
            self.tails[i] = node_id
        else:
            self.tails[i] = self._branch(node_id, depth, i)

    def _deepest(self, i: int) -> tuple[int, int]:
        """`(node, depth)`: sample i can share the tokens before `depth`, the last of which lies at or above `node`."""
        tokens, trained = self.tokens[i], self.trained[i]
        best, best_depth = ROOT, 0
        waiting = [ROOT]
        while waiting:
            passed = self.nodes[waiting.pop()]
            for child_id in passed.by_token.get(int(tokens[passed.stop]), ()):
                child = self.nodes[child_id]
                agreed = self._agreed(child, i)
                if agreed == len(tokens):
                    return child_id, agreed
                if agreed == child.stop and not child.children:
                    depth = agreed
                else:
                    depth = self._branch_depth(trained, agreed)
                    if agreed == child.stop:
                        waiting.append(child_id)
                if depth > best_depth:
                    best, best_depth = child_id, depth
        return best, best_depth

    def _agreed(self, node: _Node, i: int) -> int:
        """The first depth within the node that sample i cannot share, or the lesser of both ends."""
        end = min(node.stop, len(self.tokens[i]))
        start = node.start
        # Most candidates differ soon: a short look before the long one.
        for stop in (min(start + 512, end), end):
            differs = self.tokens[node.source][start:stop] != self.tokens[i][start:stop]
            differs |= node.taken[start - node.start : stop - node.start] & self.trained[i][start:stop]
            first = int(differs.argmax()) if len(differs) else 0
            if len(differs) and differs[first]:
                return start + first
            start = stop
        return end

    def _branch_depth(self, trained: np.ndarray, agreed: int) -> int:
        """The deepest aligned depth, not past `agreed`, where a branch of this sample may begin."""
        begins = ~trained[: agreed + 1 : self.align]
        return self.align * (len(begins) - 1 - int(begins[::-1].argmax()))

    def _branch(self, node_id: int, depth: int, i: int) -> int:
        """A new node for what is left of sample i, below the tokens of `node_id` before `depth`."""
        if depth < self.nodes[node_id].stop:
            node_id = self._split(node_id, depth)
        taken = self.trained[i][depth:].copy()
        taken[0] = True
        self.nodes.append(_Node(source=i, start=depth, stop=len(self.tokens[i]), parent=node_id, taken=taken))
        self._attach(node_id, len(self.nodes) - 1)
        return len(self.nodes) - 1

    def _split(self, node_id: int, depth: int) -> int:
        """Cuts a node in two at `depth`. The lower part keeps the id, so that tails stay true; returns the upper."""
        lower, upper_id = self.nodes[node_id], len(self.nodes)
        cut = depth - lower.start
        upper = _Node(source=lower.source, start=lower.start, stop=depth, parent=lower.parent, taken=lower.taken[:cut])
        self.nodes.append(upper)
        above = self.nodes[lower.parent]
        above.children[above.children.index(node_id)] = upper_id
        alike = above.by_token[int(self.tokens[lower.source][lower.start])]
        alike[alike.index(node_id)] = upper_id
        lower.start, lower.parent, lower.taken = depth, upper_id, lower.taken[cut:]
        self._attach(upper_id, node_id)
        return upper_id

    def _attach(self, parent_id: int, child_id: int) -> None:
        child, parent = self.nodes[child_id], self.nodes[parent_id]
        parent.children.append(child_id)
        parent.by_token.setdefault(int(self.tokens[child.source][child.start]), []).append(child_id)
