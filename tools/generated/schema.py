"""The JSON schema of a spec, made from the model: the shipped file `spec-v1.schema.json`."""

from __future__ import annotations

import json
from typing import Any

from tfcluster.spec import JOBS
from tfcluster.spec.model import ClusterSpec

_JOB_TEXTS = {
    "chief": ("The task that coordinates, saves and evaluates; at most one.", 1),
    "worker": ("The tasks that train.", ["10.0.0.1:2222", "10.0.0.2:2222"]),
    "ps": (
        "Parameter servers; they need workers and, unless `strategy.name` is `default`, a chief.",
        1,
    ),
    "data_worker": ("The tasks that preprocess data: servers of the tf.data service.", 2),
    "data_dispatcher": ("The dispatcher of the tf.data service; at most one.", 1),
    "evaluator": ("The task that evaluates checkpoints during training; at most one.", 1),
}


def build() -> dict[str, Any]:
    """Return the schema of version 1 (JSON Schema 2020-12) for editors and `tfcluster schema`."""
    made = ClusterSpec.model_json_schema(by_alias=True, mode="validation")
    made["properties"]["cluster"] = _cluster(made["properties"]["cluster"])
    for section in ("Job", "Prepare"):
        made["$defs"][section]["oneOf"] = [
            {"required": [name], "properties": {name: {"not": {"type": "null"}}}}
            for name in ("script", "module", "command")
        ]
    _simplify(made)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tfcluster spec, version 1",
    }
    return head | {key: value for key, value in made.items() if key not in head}


def render() -> str:
    """Return the text of the published file."""
    return json.dumps(build(), indent=2, ensure_ascii=False) + "\n"


def _cluster(node: dict[str, Any]) -> dict[str, Any]:
    """Spell out the four jobs: pydantic would describe only the form of any key."""
    tasks = node.pop("additionalProperties")
    node.pop("propertyNames", None)
    properties = {
        job: {
            "anyOf": [*(tasks.get("anyOf") or tasks["oneOf"]), {"type": "null"}],
            "default": None,
            "description": _JOB_TEXTS[job][0],
            "examples": [_JOB_TEXTS[job][1]],
        }
        for job in JOBS
    }
    closed = {"additionalProperties": False, "patternProperties": {"^x-": {}}}
    return node | {"properties": properties} | closed


def _simplify(node: Any) -> None:
    """Drop pydantic's titles and turn its `oneOf` of types into `anyOf`, recursively."""
    if isinstance(node, list):
        for item in node:
            _simplify(item)
    if not isinstance(node, dict):
        return
    if isinstance(node.get("title"), str):
        del node["title"]
    if "type" in node or "$ref" in node or "anyOf" in node or "oneOf" in node or "$defs" in node:
        node.pop("discriminator", None)
    for child in node.values():
        _simplify(child)
    options = node.get("oneOf")
    if isinstance(options, list) and not any("required" in option for option in options):
        node["anyOf"] = node.pop("oneOf")
