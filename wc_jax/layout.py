"""Which row and which columns each token of each sample lies in; pure numpy, before any array is filled.

Samples become prefix trees (`wc_jax.prefix_tree`), trees that do not fit a row are cut into smaller ones that
repeat what stands above the cut, and the pieces are packed into rows. In its row a tree is laid out depth
first, so that each stretch of tokens is followed by all that descends from it.

Recurrent layers take `align`: the chunk they work in. Roots and branches begin at columns, and shared
prefixes end at depths, that are multiples of it; so a chunk's tokens all follow each other, and the chunk at
column c continues the state after chunk `predecessor[c] // align`, or an empty one where that is -1. What is
skipped to get there is padding. It lies within a tree's columns, so it may look at tokens; nothing sees it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from wc_jax.prefix_tree import ROOT, PrefixTree, build_prefix_tree
from wc_jax.row_packing import Packing, pack_rows


@dataclass(frozen=True, kw_only=True)
class Run:
    """Tokens that stand side by side in a row and are computed once: `start..stop-1` of sample `source`."""

    source: int
    start: int
    """Depth of the first token: how many tokens of its sample stand before it."""
    stop: int
    row: int
    column: int
    """Where the first token lies."""
    visible_until: int
    """End of the columns that descend from these tokens."""
    parent: int
    """The run whose last token stands before this one's first, or -1."""


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Samples a b c d, a b p q (of which only c, d and q are trained) and s t in one row of 10.

    >>> layout = lay_out([np.array([1, 2, 3, 4]), np.array([1, 2, 6, 7]), np.array([8, 9])],
    ...                  [np.array(x, bool) for x in ([0, 0, 1, 1], [0, 0, 0, 1], [0, 1])], row_tokens=10)
    >>> [(run.source, run.start, run.stop, run.column, run.visible_until, run.parent) for run in layout.runs]
    [(0, 0, 2, 0, 6, -1), (0, 2, 4, 2, 4, 0), (1, 2, 4, 4, 6, 0), (2, 0, 2, 6, 8, -1)]
    >>> [layout.place(i).columns.tolist() for i in range(3)]
    [[0, 1, 2, 3], [0, 1, 4, 5], [6, 7]]
    >>> layout.num_tokens, layout.num_computed, layout.share_saved, layout.share_wasted
    (10, 8, 0.2, 0.2)
    """

    runs: tuple[Run, ...]
    """Row by row, from left to right."""
    paths: tuple[tuple[int, ...], ...]
    """For each sample the runs that make it up; it may end within the last of them."""
    lengths: tuple[int, ...]
    """Tokens of each sample."""
    num_rows: int
    row_tokens: int

    @property
    def num_tokens(self) -> int:
        """Tokens of all samples, shared ones counted as often as they occur."""
        return sum(self.lengths)

    @property
    def num_computed(self) -> int:
        """Tokens in the rows: shared ones count once for each row that holds them."""
        return sum(run.stop - run.start for run in self.runs)

    @property
    def share_saved(self) -> float:
        """Part of the samples' tokens that sharing leaves out, in [0, 1)."""
        return (self.num_tokens - self.num_computed) / max(self.num_tokens, 1)

    @property
    def share_wasted(self) -> float:
        """Part of the rows that is padding, in [0, 1)."""
        held = self.num_rows * self.row_tokens
        return (held - self.num_computed) / max(held, 1)

    def place(self, i: int) -> "Place":
        """Where sample i lies."""
        runs = [self.runs[r] for r in self.paths[i]]
        columns = np.concatenate([np.arange(run.column, run.column + run.stop - run.start) for run in runs])
        return Place(row=runs[0].row, columns=columns[: self.lengths[i]])

    def predecessor(self, run: Run) -> int:
        """The column of the token before the run's first, or -1."""
        if run.parent < 0:
            return -1
        parent = self.runs[run.parent]
        return parent.column + parent.stop - parent.start - 1


@dataclass(frozen=True, kw_only=True)
class Place:
    """`array[row, columns]` is a sample's part of a batch array, in the sample's order."""

    row: int
    columns: np.ndarray


def lay_out(
    tokens: Sequence[np.ndarray],
    trained: Sequence[np.ndarray],
    *,
    row_tokens: int,
    share: bool = True,
    align: int = 1,
) -> Layout:
    """Lay samples of token ids `tokens[i]`, which train where `trained[i]`, into rows of `row_tokens`.

    Args:
        tokens, trained: integers and bools `[T_i]`; not empty, no longer than a row, first token not trained. Ids,
            or for image tokens, whose ids are all alike, numbers that tell images apart (`image_rows.share_keys`).
        share: compute what samples have in common once; False lays each sample out by itself.
        align: see above; 1 for policies that only attend.

    Raises ValueError when `row_tokens` is no multiple of `align`.
    """
    if align < 1 or row_tokens % align:
        raise ValueError(f"row_tokens must be a multiple of align, got {row_tokens} and {align}")
    tree = build_prefix_tree(tokens, trained, share=share, align=align)
    shape = _Shape.of(tree, align)
    atoms, packing = _best_packing(shape, row_tokens)
    runs: list[Run] = []
    run_of_node: dict[int, int] = {}
    contents: list[list[int]] = [[] for _ in packing.used]
    for atom, row in zip(atoms, packing.rows, strict=True):
        contents[row].append(atom)
    for row, here in enumerate(contents):
        _emit_row(shape, here, row, align, runs, run_of_node)
    lengths = tuple(len(t) for t in tokens)
    paths = tuple(_path(runs, run_of_node[tail], n) for tail, n in zip(tree.tails, lengths, strict=True))
    return Layout(runs=tuple(runs), paths=paths, lengths=lengths, num_rows=len(packing.used), row_tokens=row_tokens)


def _path(runs: Sequence[Run], last: int, length: int) -> tuple[int, ...]:
    path = []
    while last >= 0:
        if runs[last].start < length:
            path.append(last)
        last = runs[last].parent
    return tuple(reversed(path))


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """A prefix tree in columns: sizes are rounded up to the alignment."""

    tree: PrefixTree
    own: list[int]
    below: list[int]
    """Columns of a node and all its descendants."""

    @classmethod
    def of(cls, tree: PrefixTree, align: int) -> "_Shape":
        own = [-(-(node.stop - node.start) // align) * align for node in tree.nodes]
        below = list(own)
        # A node starts deeper than its parent, but for the root's children: deepest first, and never the root.
        for n in sorted(range(1, len(own)), key=lambda n: -tree.nodes[n].start):
            below[tree.nodes[n].parent] += below[n]
        return cls(tree=tree, own=own, below=below)

    def atoms(self, limit: int) -> list[int]:
        """The largest subtrees that take no more than `limit` columns with what stands above them, or single leaves."""
        found, waiting = [], list(reversed(self.tree.nodes[ROOT].children))
        while waiting:
            n = waiting.pop()
            node = self.tree.nodes[n]
            if not node.children or node.start + self.below[n] <= limit:
                found.append(n)
            else:
                waiting += reversed(node.children)
        return found

    def above(self, n: int) -> list[int]:
        """The nodes between the root and node n."""
        found = []
        while (n := self.tree.nodes[n].parent) != ROOT:
            found.append(n)
        return found


def _best_packing(shape: _Shape, row_tokens: int) -> tuple[list[int], Packing]:
    """`(subtrees, the row of each)`: the fewest rows, then the fewest tokens, of some ways to cut the trees.

    Large pieces repeat little, small ones fill rows better; the last way is each leaf by itself.
    """
    least = (-(-shape.below[ROOT] // row_tokens), shape.below[ROOT])
    found: dict[tuple[int, ...], tuple[tuple[int, int], Packing]] = {}
    for part in (1.0, 7 / 8, 3 / 4, 2 / 3, 1 / 2, 0.0):
        atoms = tuple(shape.atoms(int(part * row_tokens)))
        if atoms not in found:
            packing = _pack(shape, atoms, row_tokens)
            found[atoms] = ((len(packing.used), sum(packing.used)), packing)
            if found[atoms][0] == least:
                break
    atoms, (_, packing) = min(found.items(), key=lambda item: item[1][0])
    return list(atoms), packing


def _pack(shape: _Shape, atoms: Sequence[int], row_tokens: int) -> Packing:
    above = [shape.above(n) for n in atoms]
    number = {n: k for k, n in enumerate(dict.fromkeys(n for path in above for n in path))}
    return pack_rows(
        [shape.below[n] for n in atoms],
        row_tokens,
        above=[[number[n] for n in path] for path in above],
        above_sizes=[shape.own[n] for n in number],
    )


def _emit_row(
    shape: _Shape, atoms: Sequence[int], row: int, align: int, runs: list[Run], run_of_node: dict[int, int]
) -> None:
    """Appends the row's runs, depth first; a node's first child, where the row holds it, follows it at once."""
    nodes = shape.tree.nodes
    whole = set(atoms)
    shown = whole.union(*(shape.above(n) for n in atoms))
    order: list[tuple[int, int]] = []  # (node, its parent's place in this list)
    roots = (n for n in shown if nodes[n].parent == ROOT)
    waiting = [(n, -1) for n in sorted(roots, key=lambda n: (shape.below[n], -n))]  # the largest tree is popped first
    while waiting:
        n, parent = waiting.pop()
        order.append((n, parent))
        inside = n in whole
        if inside:
            whole.update(nodes[n].children)
        place = len(order) - 1
        waiting += [(c, place) for c in reversed(nodes[n].children) if inside or c in shown]
    sizes = [nodes[n].stop - nodes[n].start for n, _ in order]
    columns = [0, *accumulate(-(-size // align) * align for size in sizes)]
    ends = [column + size for column, size in zip(columns, sizes, strict=False)]
    until = list(ends)
    for k in range(len(order) - 1, -1, -1):
        parent = order[k][1]
        if parent >= 0:
            until[parent] = max(until[parent], until[k])
    first = len(runs)
    for k, (n, parent) in enumerate(order):
        run_of_node.setdefault(n, len(runs))
        runs.append(
            Run(
                source=nodes[n].source,
                start=nodes[n].start,
                stop=nodes[n].stop,
                row=row,
                column=columns[k],
                visible_until=until[k],
                parent=-1 if parent < 0 else first + parent,
            )
        )
