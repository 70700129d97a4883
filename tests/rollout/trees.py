"""Small message trees for tests, written as a person would sketch them."""

from dataclasses import replace

from hypothesis import strategies as st

from rollout.types import Node, Role, Tree


class Sketch:
    """Grows a tree node by node; token ids are unless given the node's id times 100 plus the offset."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def add(
        self,
        parent: int | None,
        role: Role,
        *,
        template: int = 1,
        generated: int = 0,
        text: str = "",
        token_ids: tuple[int, ...] | None = None,
    ) -> int:
        node_id = len(self.nodes)
        ids = token_ids or tuple(node_id * 100 + i for i in range(template + generated))
        self.nodes.append(
            Node(
                node_id=node_id,
                parent_id=parent,
                role=role,
                text=text or f"{role} {node_id}",
                token_ids=ids,
                num_template=template,
                logp=tuple(-(node_id + i / 10) for i in range(len(ids) - template)),
                policy_versions=(3,) * (len(ids) - template),
                finish_reason="stop" if len(ids) > template else None,
            )
        )
        return node_id

    def copy(self, parent: int | None, node_id: int) -> int:
        """The message `node_id`, shown again below `parent`."""
        original = self.nodes[node_id]
        origin_id = original.identity if original.num_generated else None
        self.nodes.append(replace(original, node_id=len(self.nodes), parent_id=parent, origin_id=origin_id))
        return len(self.nodes) - 1

    def tree(self, *leaves: int) -> Tree:
        return Tree(nodes=tuple(self.nodes), leaves=leaves)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Random rollouts: a prompt, turns, and context rewrites that restart from any earlier message."""
    sketch = Sketch()
    here = sketch.add(None, "system", template=draw(st.integers(1, 4)))
    here = sketch.add(here, "user", template=draw(st.integers(1, 4)))
    leaves = []
    for _ in range(draw(st.integers(1, 8))):
        for _ in range(draw(st.integers(1, 4))):
            here = sketch.add(here, "assistant", template=draw(st.integers(0, 2)), generated=draw(st.integers(1, 5)))
            if draw(st.booleans()):
                here = sketch.add(here, "tool", template=draw(st.integers(1, 5)))
        leaves.append(here)
        # A rewrite: from some message on, the context is another one; answers after it may be copied.
        branch = [here]
        while (parent := sketch.nodes[branch[0]].parent_id) is not None:
            branch.insert(0, parent)
        cut = draw(st.integers(1, len(branch)))
        here = sketch.add(branch[cut - 1], draw(st.sampled_from(["tool", "user"])), template=draw(st.integers(1, 4)))
        if draw(st.booleans()):
            for node_id in branch[cut + 1 :]:
                here = sketch.copy(here, node_id)
    return sketch.tree(*leaves)
