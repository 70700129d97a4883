"""How long it takes to turn one long rollout into training rows. Run by `make bench`."""

import time

from rollout.samples import build_samples
from rollout.types import Node, Tree

NUM_SEGMENTS, TURNS_PER_SEGMENT, TOKENS_PER_MESSAGE = 8, 15, 400


def long_rollout() -> Tree:
    """About 120 turns over eight context rewrites, each of which goes back to the task."""
    nodes: list[Node] = []

    def add(parent: int | None, num_template: int, num_generated: int) -> int:
        nodes.append(
            Node(
                node_id=len(nodes),
                parent_id=parent,
                role="assistant" if num_generated else "tool",
                text="",
                token_ids=tuple(range(num_template + num_generated)),
                num_template=num_template,
                logp=(-0.5,) * num_generated,
            )
        )
        return len(nodes) - 1

    task, leaves = add(None, 2000, 0), []
    for _ in range(NUM_SEGMENTS):
        tip = add(task, 1000, 0)
        for _ in range(TURNS_PER_SEGMENT):
            tip = add(add(tip, 3, TOKENS_PER_MESSAGE), TOKENS_PER_MESSAGE, 0)
        leaves.append(tip)
    return Tree(nodes=tuple(nodes), leaves=tuple(leaves))


def main() -> None:
    tree = long_rollout()
    started = time.perf_counter()
    samples = build_samples(tree, max_paths=6, max_tokens=65_536)
    elapsed_s = time.perf_counter() - started
    num_tokens = sum(len(sample.tokens) for sample in samples)
    print(f"{len(samples)} samples, {num_tokens} tokens: {elapsed_s * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
