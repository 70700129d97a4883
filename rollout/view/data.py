"""What the pages show, as plain data. Nothing here is HTML: the browser's side writes text nodes only."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollout.store import list_rollouts, load_advantages, load_rollout
from rollout.types import Node, Rollout
from rollout.view.tokens import TokenText

_MAX_FILE_CHARS = 100_000


def run_overview(run_dir: Path) -> dict[str, Any]:
    """The run's name and one line a rollout, in order of step, phase, task, index."""
    return {
        "name": run_dir.resolve().name,
        "rollouts": [asdict(summary) for summary in list_rollouts(run_dir)],
    }


def rollout_detail(folder: Path, token_text: TokenText | None) -> dict[str, Any]:
    """One rollout: its task, judgement, segments and messages. Raises what `load_rollout` raises."""
    rollout = load_rollout(folder)
    advantages = load_advantages(folder)
    return {
        "rollout_id": rollout.rollout_id,
        "stop": rollout.stop.value,
        "error": rollout.error,
        "brief": rollout.task.brief,
        "template": rollout.task.template,
        "potentials": [value if math.isfinite(value) else None for value in rollout.potentials],
        "advantages": advantages,
        "num_tool_errors": rollout.num_tool_errors,
        "turns": [vars(turn) for turn in rollout.turns],
        "report": _report(rollout),
        "nodes": [_message(node, token_text) for node in rollout.tree.nodes],
        "segments": _segments(rollout),
        "files": [_file(name, content) for name, content in sorted(rollout.files.items())],
    }


def _report(rollout: Rollout) -> dict[str, Any] | None:
    report = rollout.report
    if report is None:
        return None
    weights = {requirement.requirement_id: requirement.weight for requirement in rollout.task.requirements}
    wanted = {r.requirement_id: [*r.keywords, *_counts(r.counts)] for r in rollout.task.requirements}
    return {
        "reward": report.reward,
        "f_det": report.f_det,
        "f_vlm": report.f_vlm,
        "penalty": report.penalty,
        "gates": [vars(gate) for gate in report.gates],
        "requirements": [
            {"id": name, "value": value, "weight": weights.get(name), "wanted": wanted.get(name, [])}
            for name, value in report.requirement_values.items()
        ],
        "seconds": dict(report.seconds),
        "has_screenshot": bool(report.screenshot),
    }


def _counts(counts: Mapping[Any, int]) -> list[str]:
    return [f"{kind} ≥ {wanted}" for kind, wanted in counts.items()]


def _segments(rollout: Rollout) -> list[list[int]]:
    """Node ids of each path, root to leaf."""
    tree = rollout.tree
    return [[node.node_id for node in tree.path(k)] for k in range(len(tree.leaves))]


def _message(node: Node, token_text: TokenText | None) -> dict[str, Any]:
    """A node; `generated` is a list of [text, log-probability or null], `template` the text before it.

    Without a tokenizer the template of an answer is not known as text (null), and its sampled text is
    one piece.
    """
    template_ids = node.token_ids[: node.num_template]
    generated: list[tuple[str, float | None]] = []
    template: str | None
    if node.num_generated == 0:
        template = node.text if token_text is None else token_text.text(template_ids)
    elif token_text is None:
        template = None
        generated = [(node.text, None)]
    else:
        template = token_text.text(template_ids)
        start = 0
        for text, length in token_text.pieces(node.token_ids[node.num_template :]):
            logp = sum(node.logp[start : start + length]) if node.logp else math.nan
            generated.append((text, round(logp, 4) if math.isfinite(logp) else None))
            start += length
    return {
        "id": node.node_id,
        "origin": node.origin_id,
        "role": node.role,
        "template": template,
        "generated": generated,
        "num_template": node.num_template,
        "num_generated": node.num_generated,
        "finish_reason": node.finish_reason,
        "versions": sorted(set(node.policy_versions)),
    }


def _file(name: str, content: bytes) -> dict[str, Any]:
    try:
        text: str | None = content.decode()
    except UnicodeDecodeError:
        text = None
    return {"path": name, "num_bytes": len(content), "text": text if text is None else text[:_MAX_FILE_CHARS]}
