"""Where config values come from: YAML text and `key.sub=value`, as plain nested dicts."""

import re
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from configs.schema import ConfigError


class _Loader(yaml.SafeLoader):
    """YAML as people expect it: `1e-5` is a number, a key given twice is an error."""


# YAML 1.1 wants a dot and a signed exponent in a float; without this 2e-6 would be a string.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9]+)[eE][-+]?[0-9]+$"),
    list("-+.0123456789"),
)


def _unique_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    found: dict[Hashable, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if key in found:
            line = key_node.start_mark.line + 1
            raise ConfigError(f"{key!r} is given twice (again in line {line}); keep one of them")
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_constructor("tag:yaml.org,2002:map", _unique_mapping)


def _parse(text: str, origin: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{origin} is not valid YAML: {error}") from None


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file as a dict. An empty file is an empty dict."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the config file {path}: {error}") from None
    tree = _parse(text, str(path))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}; write `key: value` lines")
    return tree


def parse_assignment(text: str) -> dict[str, Any]:
    """`"optim.lr=1e-5"` -> `{"optim": {"lr": 1e-5}}`. The value is YAML."""
    key, equals, value = text.partition("=")
    names = key.split(".")
    if not equals or not all(name.isidentifier() for name in names):
        raise ConfigError(f"can't read the argument {text!r}; write key=value or key.sub=value, such as seed=1")
    tree = _parse(value, text)
    for name in reversed(names):
        tree = {name: tree}
    return dict(tree)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` wins; mappings merge key by key, unless `kind` changes: then nothing of the old kind stays."""
    kind = above.get("kind", below.get("kind"))
    if kind != below.get("kind", kind):
        return dict(above)
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged
