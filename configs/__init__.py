"""The config loader: YAML files and `key.sub=value`, merged left to right, checked against dataclasses.

    config = load("configs/quickstart.yaml", ["seed=2", "optim.lr=1e-5"], Config)

The schema is a tree of frozen keyword-only dataclasses; a field may also be a union of dataclasses
told apart by a `kind: Literal["..."]` field. Pydantic checks single values and nothing else: unknown
keys, paths and messages are ours, so that a typo is answered with the key that was probably meant.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from configs.merge import merge, parse_assignment, read_yaml
from configs.schema import ConfigError, build, to_plain

__all__ = ["ConfigError", "load", "to_plain"]

Schema = TypeVar("Schema")


def load(path: str | Path, overrides: Sequence[str], schema: type[Schema]) -> Schema:
    """The config that `path` and `overrides` (more YAML files, or `key.sub=value`) describe.

    Raises `ConfigError` (a ValueError) with one message that says what was wrong, what was got and
    what to type instead.
    """
    tree: dict[str, Any] = read_yaml(path)
    for override in overrides:
        if "=" not in override and override.endswith((".yaml", ".yml")):
            tree = merge(tree, read_yaml(override))
        else:
            tree = merge(tree, parse_assignment(override))
    return build(schema, tree)
