"""The published schema and the reference page agree with the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tools.generated import schema, spec_page

from tfcluster.cli import init
from tfcluster.spec import published_schema
from tfcluster.spec.load import load
from tfcluster.spec.templates import templates

ROOT = Path(__file__).parents[3]
SPECS = sorted((ROOT / "cluster_specs").glob("*.json*"))
VALIDATOR = jsonschema.Draft202012Validator(published_schema.schema())


def properties(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(node, dict):
        for name, field in node.get("properties", {}).items():
            if "oneOf" not in path:
                yield f"{path}.{name}", field
        for key, inner in node.items():
            yield from properties(inner, f"{path}.{key}")
    if isinstance(node, list):
        for inner in node:
            yield from properties(inner, path)


PROPERTIES = list(properties(published_schema.schema()))


@pytest.mark.pinned
def test_the_published_schema_is_current_and_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(published_schema.schema())
    assert len(PROPERTIES) > 50
    assert published_schema.text() == schema.render(), "run: make generated"


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs/reference/spec.md").read_text()
    assert page == spec_page.render(), "run: make generated"


@pytest.mark.parametrize("field", [f for _, f in PROPERTIES], ids=[name for name, _ in PROPERTIES])
def test_every_property_has_a_description_a_default_and_an_example(field: dict[str, Any]) -> None:
    assert field["description"].endswith(".")
    assert "default" in field
    (example,) = field["examples"]
    resolver = {"$defs": published_schema.schema()["$defs"], **field}
    jsonschema.Draft202012Validator(resolver).validate(example)


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_an_example_spec_is_valid_for_the_loader_and_for_editors(path: Path) -> None:
    VALIDATOR.validate(json.loads(path.read_text()))
    spec = load(path).spec
    assert spec.name == path.stem
    assert init.about(templates()[path.stem]).endswith(".")
    assert (path.parent / str(spec.schema_file)).resolve() == Path(
        published_schema.__file__
    ).parent / published_schema.SCHEMA_FILE


@pytest.mark.parametrize(
    "wrong",
    [
        {"cluster": {"worker": 2}},
        {"cluster": {"worker": 2}, "job": {}},
        {"cluster": {"worker": 2}, "job": {"script": "a", "module": "b"}},
        {"cluster": {"workers": 2}, "job": {"script": "a"}},
        {"cluster": {"worker": []}, "job": {"script": "a"}},
        {"cluster": {"worker": 2}, "job": {"script": "a"}, "keras": {"version": 2}},
        {"cluster": {"worker": 2}, "job": {"script": "a"}, "supervision": {"grace_s": "x"}},
        {"cluster": {"worker": 2}, "job": {"script": "a"}, "y-note": 1},
    ],
    ids=json.dumps,
)
def test_editors_see_the_common_mistakes_and_accept_what_the_loader_accepts(wrong: Any) -> None:
    assert not VALIDATOR.is_valid(wrong)
    VALIDATOR.validate(
        {
            "x-note": 1,
            "cluster": {"worker": ["a:1", {"address": "b:1", "gpus": "all"}], "x-why": "so"},
            "job": {"script": "a", "module": None, "x-a": 1},
            "supervision": {"grace_s": "1.5 h", "run_deadline_s": 3},
        }
    )
