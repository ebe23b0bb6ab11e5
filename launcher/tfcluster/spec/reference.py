"""Makes the reference page of the spec, ``docs/spec.md``, from the published schema."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from tfcluster.spec import published_schema
from tfcluster.spec.published_schema import Node

_HEAD = """\
# The spec, field by field

Made from the model by `python -m tfcluster.spec.reference docs/spec.md`; do not edit it by hand.

A spec is JSON, or JSONC (comments, commas after the last item) in a file that ends in `.jsonc`.
Unknown keys are errors; keys that begin with `x-` are ignored. Durations end in `_s`, are seconds,
and take `"500ms"`, `"90s"`, `"5m"`, `"12h"`, `"2d"` too. `--set a.b=c` overrides any field:
`--set supervision.grace_s=2m --set cluster.worker.0=10.0.0.7:2222`.

What a spec names on this machine must be there: workdir, scripts, `env_file`, Python, and for other
hosts something that each glob of `include` matches. `validate`, `plan`, `doctor` and `up` show each
thing that is missing with its line, and exit with 2.
"""
_KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "array": "list",
    "object": "object",
}


def render() -> str:
    """The whole page."""
    return "\n".join([_HEAD, *_table("", published_schema.schema())]) + "\n"


def _table(path: str, node: Node) -> Iterator[str]:
    """The section of the object `node`, then those of the objects in it."""
    title = f"`{path}`" if path else "Top level"
    yield f"## {title}\n"
    if path and node.get("description"):
        yield f"{node['description']}\n"
    yield "| field | takes | default | example | |"
    yield "|---|---|---|---|---|"
    required = node.get("required", ())
    for key, field in node["properties"].items():
        default = "required" if key in required else _code(field["default"])
        text = _one_line(field["description"].removeprefix("Required. "))
        example = _code(field["examples"][0])
        yield f"| `{key}` | {_takes(field)} | {default} | {example} | {text} |"
    yield ""
    for key, field in node["properties"].items():
        for deeper, inside in _objects(f"{path}.{key}".lstrip("."), field):
            yield from _table(deeper, inside)


def _objects(path: str, field: Node) -> Iterator[tuple[str, Node]]:
    if path in ("cluster.chief", "cluster.ps", "cluster.evaluator"):
        return  # as cluster.worker
    for form in published_schema.branches(field):
        if "properties" in form:
            yield path, form
        if isinstance(form.get("items"), dict):
            yield from _objects(f"{path}.N", form["items"])
        if isinstance(form.get("additionalProperties"), dict):
            key = "TASK" if path == "job.per_task" else "HOST"
            yield from _objects(f"{path}.{key}", form["additionalProperties"])


def _takes(field: Node) -> str:
    return ", ".join(dict.fromkeys(_form(form) for form in published_schema.branches(field)))


def _form(form: Node) -> str:
    if "const" in form:
        return _code(form["const"])
    if "enum" in form:
        return ", ".join(_code(choice) for choice in form["enum"])
    return _KINDS[form["type"]]


def _code(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return f"`{'{…}' if len(text) > 70 else text}`".replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
