"""The JSON schema as shipped, and look-ups in it: keys, types, choices and examples by path.

Reading the file is much faster than building the schema from the model.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tfcluster import kinds
from tfcluster.spec import JOBS, FieldPath

SCHEMA_FILE = "spec-v1.schema.json"
Node = dict[str, Any]
PLACEHOLDERS = {"job.per_task": "TASK", "runtime.roles": "ROLE"}
"""Object → the word for its keys; for those of other objects it is HOST."""


def text() -> str:
    """Return the text of the published schema file."""
    return (Path(__file__).parent / SCHEMA_FILE).read_text(encoding="utf-8")


@functools.cache
def schema() -> Node:
    """Return the published schema as a value; do not change it."""
    parsed: Node = json.loads(text())
    return parsed


def branches(node: Node) -> list[Node]:
    """Return the forms that `node` allows, with references followed."""
    if "$ref" in node:
        return branches(schema()["$defs"][node["$ref"].rpartition("/")[2]])
    if "anyOf" in node:
        return [branch for option in node["anyOf"] for branch in branches(option)]
    return [node]


def nodes_at(path: FieldPath) -> list[Node]:
    """Return all schema nodes that apply to a value at `path`; empty for an unknown path."""
    nodes = [schema()]
    for part in path:
        nodes = [child for node in nodes for child in _children(node, part)]
    return nodes


def example_at(path: FieldPath) -> Any:
    """Return the example value of the field at `path`, or None."""
    node = next(iter(nodes_at(path)), {})
    return next(iter(node.get("examples", ())), None)


def keys_at(path: FieldPath) -> set[str]:
    """Return the keys that an object at `path` may have."""
    forms = _forms_at(path)
    names = {name for form in forms for name in form.get("propertyNames", {}).get("enum", ())}
    return names.union(*(form.get("properties", ()) for form in forms))


def has_key(path: FieldPath, key: str) -> bool:
    """Return whether an object at `path` may have `key`: also a section of another package."""
    if key in keys_at(path):
        return True
    return path == ("runtime",) and _package_section(key) is not None


def is_map(path: FieldPath) -> bool:
    """Return whether the user chooses the keys of an object at `path`: hosts, variables."""
    return any(isinstance(form.get("additionalProperties"), dict) for form in _forms_at(path))


def choices_at(path: FieldPath) -> list[Any]:
    """Return the values of a field with fixed choices."""
    forms = _forms_at(path)
    constants = [form["const"] for form in forms if "const" in form]
    return [choice for form in forms for choice in form.get("enum", ())] + constants


def types_at(path: FieldPath) -> set[str]:
    """Return the JSON types that a value at `path` may have; empty for an unknown path."""
    return {_type(form) for form in _forms_at(path)}


@functools.cache
def find_key(key: str) -> tuple[str, ...]:
    """Return the dotted paths at which `key` is known: at most two, the shortest first."""
    paths = [path for path in dict.fromkeys(_walk(schema(), ())) if path.endswith(f".{key}")]
    return tuple(sorted(paths, key=lambda path: path.count("."))[:2])


def _forms_at(path: FieldPath) -> list[Node]:
    return [form for node in nodes_at(path) for form in branches(node)]


def _walk(node: Node, path: tuple[str, ...]) -> Iterator[str]:
    for form in branches(node):
        for key, child in form.get("properties", {}).items():
            yield ".".join((*path, key))
            if key == "worker" or key not in JOBS:  # they have the keys of `worker`
                yield from _walk(child, (*path, key))
        if isinstance(items := form.get("additionalProperties"), dict):
            yield from _walk(items, (*path, PLACEHOLDERS.get(".".join(path), "HOST")))
        if isinstance(items := form.get("items"), dict):
            yield from _walk(items, (*path, "0"))


def _children(node: Node, part: str | int) -> Iterator[Node]:
    for form in branches(node):
        if isinstance(part, int):
            if isinstance(items := form.get("items"), dict):
                yield items
        elif part in form.get("properties", ()):
            yield form["properties"][part]
        elif form is _runtime() and (section := _package_section(part)) is not None:
            yield section
        elif isinstance(others := form.get("additionalProperties"), dict):
            yield others


def _runtime() -> Node:
    section: Node = schema()["$defs"]["Runtime"]
    return section


@functools.cache
def _package_section(name: str) -> Node | None:
    """Return the schema of ``runtime.NAME``, the section of another package's backend, or None."""
    if (model := kinds.section_model(name)) is None:
        return None
    section: Node = model.model_json_schema(ref_template=f"#/$defs/{name}.{{model}}")
    schema()["$defs"] |= {f"{name}.{key}": each for key, each in section.pop("$defs", {}).items()}
    return section


def _type(form: Node) -> str:
    if "const" in form:
        return "string" if isinstance(form["const"], str) else "integer"
    return str(form.get("type", "string"))
