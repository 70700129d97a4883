"""Plain nested dicts -> dataclasses, and back. Every complaint names the full path of the key."""

import dataclasses
import difflib
import functools
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic

Schema = TypeVar("Schema")


class ConfigError(ValueError):
    """Bad input by a person: the text says what was wrong, what was got, and what to type instead."""


def build(schema: type[Schema], tree: Mapping[str, Any]) -> Schema:
    """An instance of the dataclass `schema` from plain data. Raises `ConfigError`."""
    built: Schema = _build(schema, tree, "", tuple(dict.fromkeys(keys(schema))))
    return built


def _build(schema: Any, tree: Mapping[str, Any], path: str, known: Sequence[str]) -> Any:
    hints = _hints(schema)
    fields = {field.name: field for field in dataclasses.fields(schema)}
    for key in tree:
        if key not in fields:
            raise ConfigError(_unknown(_join(path, str(key)), known))
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in tree and not has_default:
            where = _join(path, name)
            raise ConfigError(f"{where} is missing and has no default; {_example(hints[name], where)}")
    values = {name: _value(hints[name], value, _join(path, name), known) for name, value in tree.items()}
    try:
        return schema(**values)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from None


def to_plain(config: Any) -> dict[str, Any]:
    """The resolved config as data that YAML and JSON can hold; `build` is its inverse."""

    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        if isinstance(value, tuple | list):
            return [plain(item) for item in value]
        if isinstance(value, Mapping):
            return {str(key): plain(item) for key, item in value.items()}
        return str(value) if isinstance(value, Path) else value

    return dict(plain(config))


@functools.lru_cache(maxsize=256)
def _hints(schema: Any) -> dict[str, Any]:
    return get_type_hints(schema)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _variants(hint: Any) -> list[Any]:
    """The dataclasses that a field may hold: none, one, or the members of a union."""
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [member for member in members if dataclasses.is_dataclass(member)]


def _allows_none(hint: Any) -> bool:
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def _kind_of(variant: Any) -> str:
    kind = _hints(variant).get("kind")
    return str(get_args(kind)[0]) if get_origin(kind) is Literal else ""


def _value(hint: Any, value: Any, path: str, known: Sequence[str]) -> Any:
    variants = _variants(hint)
    if not variants or (value is None and _allows_none(hint)):
        return _leaf(hint, value, path)
    if not isinstance(value, Mapping):
        names = ", ".join(field.name for field in dataclasses.fields(variants[0]))
        raise ConfigError(f"{path} is a group of settings, got {_shown(value)}; set one of {path}.<{names}>")
    if len(variants) == 1:
        return _build(variants[0], value, path, known)
    kinds = {_kind_of(variant): variant for variant in variants}
    kind = value.get("kind", next(iter(kinds)))
    if kind not in kinds:
        raise ConfigError(f"{path}.kind must be one of {', '.join(kinds)}, got {_shown(kind)}")
    return _build(kinds[kind], value, path, known)


def _leaf(hint: Any, value: Any, path: str) -> Any:
    """One value, checked strictly: no string becomes a number, no number becomes a bool."""
    try:
        # JSON mode is what makes strict checking accept a list for a tuple and a string for a path.
        return _adapter(hint).validate_json(json.dumps(value, default=str), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        reason = first["msg"][0].lower() + first["msg"][1:]
        raise ConfigError(f"{path}: {reason}, got {_shown(value)}; {_example(hint, path)}") from None


@functools.lru_cache(maxsize=256)
def _adapter(hint: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(hint)


def _shown(value: Any) -> str:
    return f"{json.dumps(value, default=str)} ({type(value).__name__})"


def _example(hint: Any, path: str) -> str:
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    first = members[0]
    if get_origin(first) is Literal:
        return "write " + " or ".join(f"{path}={option}" for option in get_args(first))
    if dataclasses.is_dataclass(first):
        return f"give the settings of {path}"
    origin = get_origin(first) or first
    samples = {int: "1", float: "0.5", bool: "true", str: "text", Path: "some/folder", tuple: "[...]", list: "[...]"}
    text = f"write {path}={samples.get(origin, '...')} (a {getattr(origin, '__name__', origin)})"
    return text + (f" or {path}=null" if type(None) in members else "")


def _unknown(path: str, known: Sequence[str]) -> str:
    if path in known:
        group = path.rpartition(".")[0]
        return f"{path} has no effect with this {group}.kind; leave it out, or choose the {group}.kind that knows it"
    return f"unknown key {path}; did you mean {_nearest(path, known)}?"


def _nearest(path: str, known: Sequence[str]) -> str:
    """The key that was probably meant: the same name elsewhere, else the most similar full path."""
    name = path.rpartition(".")[2]
    same_name = [key for key in known if key.rpartition(".")[2] == name]

    def likeness(key: str) -> float:
        whole = difflib.SequenceMatcher(None, key, path).ratio()
        return max(whole, 0.9 * difflib.SequenceMatcher(None, key.rpartition(".")[2], name).ratio())

    return max(same_name or known, key=likeness)


def keys(schema: Any, path: str = "") -> Iterator[str]:
    """Every key of a schema with its full path, groups before their members, in order."""
    for name, hint in _hints(schema).items():
        yield _join(path, name)
        for variant in _variants(hint):
            yield from keys(variant, _join(path, name))
