"""A message tree as training rows: every generated token is trained once, in the context that made it.

A worked example. The policy wrote A (2 tokens), saw a result, wrote B; then the context was rewritten,
and it wrote C after a summary. Two paths share the prompt P and A:

    path 0   P A A o B        trains A A B
    path 1   P A A s C        trains C; A is context here

Four trained tokens in all. Were A's owner cut off at the front by `max_tokens`, path 1 would train it.
"""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from rollout.selection import select_paths
from rollout.types import Node, Sample, Shown, Tree


def build_samples(
    tree: Tree,
    *,
    potentials: Sequence[float] | None = None,
    max_paths: int = 6,
    max_tokens: int = 65536,
) -> list[Sample]:
    """The training rows of one rollout, in time order (method.md section 4).

    Args:
        tree: the finished rollout's messages.
        potentials: Φ at the boundary that opens each segment, then at the end; decides which interior
            paths are kept. None or NaN anywhere: evenly spaced paths.
        max_paths: most paths retained.
        max_tokens: a longer path keeps its most recent `max_tokens` tokens. A picture that this would cut
            in two is left out whole, so that such a sample is shorter.

    A generated message belongs to the first retained path that shows it (itself or a copy below a
    rewritten context), offset by offset: what truncation cut off there is offered to the next retained
    path. A path that owns nothing yields no sample.

    Raises:
        ValueError: limits below 1, a number of potentials that does not fit the tree, or a node whose
            log-probabilities do not match its generated tokens.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    first_trained: dict[int, int] = {}
    arrays: dict[int, tuple[np.ndarray, np.ndarray]] = {}
    samples = []
    for k in select_paths(len(tree.leaves), potentials, max_paths):
        sample = _sample(tree.path(k), k, max_tokens, first_trained, arrays)
        if sample.num_trained:
            samples.append(sample)
    return samples


def segment_token_counts(samples: Sequence[Sample], num_segments: int) -> list[int]:
    """Trained tokens n_k of each of the rollout's segments; 0 for one that is not trained.

    Raises:
        ValueError: a sample speaks of a segment that is not there.
    """
    counts = [0] * num_segments
    for sample in samples:
        if not 0 <= sample.segment < num_segments:
            raise ValueError(f"sample of segment {sample.segment} in a rollout of {num_segments} segments")
        counts[sample.segment] += sample.num_trained
    return counts


def _sample(
    path: Sequence[Node],
    segment: int,
    max_tokens: int,
    first_trained: dict[int, int],
    arrays: dict[int, tuple[np.ndarray, np.ndarray]],
) -> Sample:
    """One path, cut to its last `max_tokens`; claims in `first_trained` what it trains.

    `arrays` holds the ids and log-probabilities of the nodes that an earlier path has shown.

    Truncation always leaves a suffix of a message, so the part of it that has an owner is a suffix too,
    and one number a message describes it: the first owned token, counted from its first generated one.
    """
    starts = [0, *accumulate(len(node.token_ids) for node in path)]
    pictures = [shown.moved(at) for at, node in zip(starts, path, strict=False) for shown in node.pictures]
    num_cut = _outside_pictures(max(0, starts[-1] - max_tokens), pictures)
    mask, tokens, logp = [], [], []
    start = -num_cut
    for node in path:
        length = len(node.token_ids)
        first_shown = min(max(0, -start), length)
        owned_from = max(first_shown, node.num_template)
        owned_to = node.num_template + first_trained.get(node.identity, node.num_generated)
        offsets = np.arange(first_shown, length)
        mask.append((offsets >= owned_from) & (offsets < owned_to))
        if node.node_id not in arrays:
            arrays[node.node_id] = (np.array(node.token_ids, np.int32), _logp_by_offset(node))
        tokens.append(arrays[node.node_id][0][first_shown:])
        logp.append(arrays[node.node_id][1][first_shown:])
        if owned_from < owned_to:
            first_trained[node.identity] = owned_from - node.num_template
        start += length
    loss_mask = np.concatenate(mask)
    node_ids = np.repeat([node.identity for node in path], [len(node.token_ids) for node in path])
    return Sample(
        tokens=np.concatenate(tokens),
        loss_mask=loss_mask,
        sampler_logp=np.concatenate(logp),
        node_ids=node_ids.astype(np.int32)[num_cut:],
        segment=segment,
        num_trained=int(loss_mask.sum()),
        pictures=tuple(shown.moved(-num_cut) for shown in pictures if shown.start >= num_cut),
    )


def _outside_pictures(num_cut: int, pictures: Sequence[Shown]) -> int:
    """`num_cut`, or where the picture ends that it would cut in two: half an image has no features."""
    return next((shown.stop for shown in pictures if shown.start < num_cut < shown.stop), num_cut)


def _logp_by_offset(node: Node) -> np.ndarray:
    """float32, one value a token of the node; NaN where nothing was sampled: template tokens, and copies, whose
    recorded values belong to another context.
    """
    if len(node.logp) not in (0, node.num_generated):
        raise ValueError(
            f"node {node.node_id} has {node.num_generated} generated tokens and {len(node.logp)} log-probabilities"
        )
    logp = np.full(len(node.token_ids), np.nan, np.float32)
    if node.logp and node.origin_id is None:
        logp[node.num_template :] = node.logp
    return logp
