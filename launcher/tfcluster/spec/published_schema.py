"""The schema as it is shipped, and what can be looked up in it without building it anew."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

SCHEMA_FILE = "spec-v1.schema.json"

Node = dict[str, Any]
Path = tuple[str | int, ...]


def text() -> str:
    """The published schema, exactly as it lies in the package."""
    from importlib import resources  # for `init`, `schema` and what explains a mistake

    return resources.files(__package__).joinpath(SCHEMA_FILE).read_text(encoding="utf-8")


@functools.cache
def schema() -> Node:
    """The published schema as a value; not to be changed."""
    parsed: Node = json.loads(text())
    return parsed


def branches(node: Node) -> list[Node]:
    """The forms that `node` allows, with references followed."""
    if "$ref" in node:
        definition = schema()["$defs"][node["$ref"].rpartition("/")[2]]
        return branches(definition)
    if "anyOf" in node:
        return [branch for option in node["anyOf"] for branch in branches(option)]
    return [node]


def nodes_at(path: Path) -> list[Node]:
    """All nodes of the schema that a value at `path` may follow; empty for an unknown path."""
    found: list[Node] = [schema()]
    for part in path:
        found = [child for node in found for child in _children(node, part)]
    return found


def node_at(path: Path) -> Node:
    """The first of them, with its description, default and examples; {} for an unknown path."""
    return next(iter(nodes_at(path)), {})


def keys_at(path: Path) -> set[str]:
    """The keys an object at `path` may have."""
    forms = [form for node in nodes_at(path) for form in branches(node)]
    return {key for form in forms for key in form.get("properties", ())}


def is_map(path: Path) -> bool:
    """Whether an object at `path` takes keys of the user's own: hosts, variables."""
    forms = [form for node in nodes_at(path) for form in branches(node)]
    return any(isinstance(form.get("additionalProperties"), dict) for form in forms)


def choices_at(path: Path) -> list[Any]:
    """The values that a field with fixed choices takes."""
    forms = [form for node in nodes_at(path) for form in branches(node)]
    constants = [form["const"] for form in forms if "const" in form]
    return [choice for form in forms for choice in form.get("enum", ())] + constants


def types_at(path: Path) -> set[str]:
    """JSON types that a value at `path` may have; empty for an unknown path."""
    forms = [form for node in nodes_at(path) for form in branches(node)]
    return {_type(form) for form in forms}


@functools.cache
def homes_of(key: str) -> tuple[str, ...]:
    """Dotted paths of the sections in which `key` is known, the nearest two."""
    found = [path for path in dict.fromkeys(_walk(schema(), ())) if path.endswith(f".{key}")]
    return tuple(sorted(found, key=lambda path: path.count("."))[:2])


def _walk(node: Node, path: tuple[str, ...]) -> Iterator[str]:
    for form in branches(node):
        for key, child in form.get("properties", {}).items():
            yield ".".join((*path, key))
            if key not in ("chief", "ps", "evaluator"):  # as `worker`
                yield from _walk(child, (*path, key))
        if isinstance(items := form.get("additionalProperties"), dict):
            yield from _walk(items, (*path, "TASK" if path[-1:] == ("per_task",) else "HOST"))
        if isinstance(items := form.get("items"), dict):
            yield from _walk(items, (*path, "0"))


def _children(node: Node, part: str | int) -> Iterator[Node]:
    for form in branches(node):
        if isinstance(part, int):
            if isinstance(items := form.get("items"), dict):
                yield items
        elif part in form.get("properties", ()):
            yield form["properties"][part]
        elif isinstance(others := form.get("additionalProperties"), dict):
            yield others


def _type(form: Node) -> str:
    if "const" in form:
        return "string" if isinstance(form["const"], str) else "integer"
    return str(form.get("type", "string"))
