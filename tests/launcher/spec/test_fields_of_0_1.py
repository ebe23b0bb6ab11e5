"""No field and no value of the specs of tfcluster 0.1 has gone: `fields_0_1.json` lists them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tfcluster.spec.published_schema import branches, schema


def fields_of(node: dict[str, Any], path: str, found: dict[str, set[str]]) -> dict[str, set[str]]:
    """Add the fields below `node` to `found`: path → the strings of a fixed set of values."""
    for branch in branches(node):
        values = [*branch.get("enum", ()), *([branch["const"]] if "const" in branch else ())]
        found.setdefault(path, set()).update(map(str, values))
        for name, below in branch.get("properties", {}).items():
            fields_of(below, f"{path}.{name}".lstrip("."), found)
        for below in (branch.get("items"), branch.get("additionalProperties")):
            if isinstance(below, dict):
                fields_of(below, f"{path}[]", found)
    return found


def test_the_fields_and_values_of_0_1_are_still_there() -> None:
    before = json.loads(Path(__file__).with_name("fields_0_1.json").read_text())
    now = fields_of(schema(), "", {})
    assert before.keys() - now.keys() == set()
    assert {path for path, values in before.items() if set(values) - now[path]} == set()
