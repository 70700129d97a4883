"""Growing a message tree while a rollout runs (method.md section 4).

Nodes are only ever added. A context rewrite does not change a node: it opens a new branch at the first
message that differs, whose nodes are new, although their text may look the same.
"""

from collections.abc import Sequence
from dataclasses import replace

from rollout.types import Completion, Node, Role, Shown, Tree


class TreeBuilder:
    """The tree so far and the branch that is being extended."""

    def __init__(self) -> None:
        self._nodes: list[Node] = []
        self._leaves: list[int] = []
        self._tip: int | None = None

    @property
    def nodes(self) -> Sequence[Node]:
        return self._nodes

    @property
    def num_segments(self) -> int:
        return len(self._leaves) + 1

    def branch(self) -> list[Node]:
        """Root to tip of the open branch."""
        found: list[Node] = []
        node_id = self._tip
        while node_id is not None:
            found.append(self._nodes[node_id])
            node_id = self._nodes[node_id].parent_id
        return found[::-1]

    def prompt(self) -> tuple[int, ...]:
        """The ids of the open branch: what the engine is sent next, before the answer's header."""
        return tuple(token for node in self.branch() for token in node.token_ids)

    def pictures(self) -> tuple[Shown, ...]:
        """Where in `prompt()` images stand, from left to right."""
        found: list[Shown] = []
        start = 0
        for node in self.branch():
            found += [shown.moved(start) for shown in node.pictures]
            start += len(node.token_ids)
        return tuple(found)

    def add_message(self, role: Role, text: str, token_ids: Sequence[int], pictures: Sequence[Shown] = ()) -> Node:
        """A message nobody sampled: all of it is template. `pictures`: where in `token_ids` images stand."""
        return self._add(
            Node(
                node_id=len(self._nodes),
                parent_id=self._tip,
                role=role,
                text=text,
                token_ids=tuple(token_ids),
                num_template=len(token_ids),
                pictures=tuple(pictures),
            )
        )

    def add_answer(self, text: str, header: Sequence[int], completion: Completion) -> Node:
        """What the policy sampled after `header`."""
        return self._add(
            Node(
                node_id=len(self._nodes),
                parent_id=self._tip,
                role="assistant",
                text=text,
                token_ids=(*header, *completion.token_ids),
                num_template=len(header),
                logp=completion.logp,
                policy_versions=completion.policy_versions,
                finish_reason=completion.finish_reason,
            )
        )

    def add_copy(self, node: Node) -> Node:
        """A message of the branch that was left, shown again unchanged below a rewritten one."""
        generated = node.num_generated > 0
        origin_id = node.identity if generated else None
        return self._add(replace(node, node_id=len(self._nodes), parent_id=self._tip, origin_id=origin_id))

    def rewrite(self, kept: Node) -> None:
        """Closes the open branch as a path and continues below `kept`, the last message left as it was."""
        if self._tip is None:
            raise ValueError("an empty tree has no context to rewrite")
        self._leaves.append(self._end_of_path(self._tip))
        self._tip = kept.node_id

    def build(self) -> Tree:
        """The finished tree; the open branch is its last path."""
        leaves = self._leaves if self._tip is None else [*self._leaves, self._end_of_path(self._tip)]
        return Tree(nodes=tuple(self._nodes), leaves=tuple(leaves))

    def _end_of_path(self, tip: int) -> int:
        """The last answer above `tip`: a path is what some request held plus its answer.

        Results that nobody answered belong to no path. In one, they would push the answer's own context out
        of a training row that is cut at the front.
        """
        node_id: int | None = tip
        while node_id is not None:
            node = self._nodes[node_id]
            if node.num_generated:
                return node_id
            node_id = node.parent_id
        return tip

    def _add(self, node: Node) -> Node:
        self._nodes.append(node)
        self._tip = node.node_id
        return node
