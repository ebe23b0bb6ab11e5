"""Dataclasses are the same after they are written and read; damaged values are named."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Annotated, Any, Literal

import pytest

from tfcluster.plans.plan import CheckpointPlan, Resources, Supervision
from tfcluster.spec import sections
from tfcluster.typed_json import ONLY_IF_SET, from_json, to_json


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Part:
    size: float
    kind: Literal["a", "b"] = "a"


def double(value: int) -> int:
    return 2 * value


@dataclass(frozen=True, slots=True)
class Whole:
    name: str
    parts: tuple[Part, ...] = ()
    by_name: Mapping[str, Part] = field(default_factory=dict)
    pairs: Sequence[tuple[int, str]] = ()
    gpus: int | tuple[int, ...] | Literal["all"] | None = None
    colour: Colour = Colour.RED
    is_new: bool = field(default=False, metadata=ONLY_IF_SET)
    doubled: Annotated[int, double] = 0
    other: Any = None


@pytest.mark.parametrize("gpus", [None, 2, (0, 1), "all"])
def test_a_value_is_the_same_after_it_is_written_and_read(gpus: Any) -> None:
    whole = Whole("w", (Part(1.5), Part(2, "b")), {"x": Part(0)}, ((1, "a"),), gpus, is_new=True)
    assert from_json(Whole, json.loads(json.dumps(to_json(whole)))) == whole


def test_missing_fields_get_their_defaults_and_unknown_ones_are_ignored() -> None:
    assert from_json(Whole, {"name": "w", "of a newer version": 1}) == Whole("w")


def test_a_field_may_be_left_out_while_it_is_not_set() -> None:
    assert "is_new" not in to_json(Whole("w"))
    assert to_json(Whole("w", is_new=True))["is_new"] is True


def test_a_callable_of_an_annotated_type_reads_the_value() -> None:
    assert from_json(Whole, {"name": "w", "doubled": 4}).doubled == 8


DAMAGES: dict[str, tuple[object, str]] = {
    "no object": ([1], r"not valid: \[1\]"),
    "a missing field": ({}, "a field is missing: name"),
    "another type": ({"name": 5}, "name cannot be 5"),
    "a boolean as a number": ({"name": "w", "parts": [{"size": True}]}, "size cannot be True"),
    "NaN": ({"name": "w", "parts": [{"size": float("nan")}]}, "size cannot be nan"),
    "an item of another type": ({"name": "w", "parts": [3]}, r"parts cannot be \[3\]"),
    "a pair of three": (
        {"name": "w", "pairs": [[1, "a", 2]]},
        r"pairs cannot be \[\[1, 'a', 2\]\]",
    ),
    "a number for an object": ({"name": "w", "by_name": 3}, "by_name cannot be 3"),
    "an unknown choice": ({"name": "w", "parts": [{"size": 1, "kind": "c"}]}, "kind cannot be 'c'"),
    "an unknown state": ({"name": "w", "colour": "blue"}, "colour cannot be 'blue'"),
    "none of the types": ({"name": "w", "gpus": ["x"]}, r"gpus cannot be \['x'\]"),
    "a huge integer": ({"name": "w", "gpus": 1 << 64}, "gpus cannot be"),
}


@pytest.mark.parametrize(("data", "message"), DAMAGES.values(), ids=DAMAGES)
def test_damage_is_a_value_error_that_names_the_field(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(Whole, data)


@pytest.mark.parametrize(
    ("of_plan", "of_spec"),
    [
        (Supervision, sections.Supervision),
        (CheckpointPlan, sections.Checkpoints),
        (Resources, sections.Resources),
    ],
)
def test_a_section_of_the_plan_has_the_defaults_of_the_spec(of_plan: Any, of_spec: Any) -> None:
    """A plan is read without pydantic, so the plan's values are defined apart from the spec's."""
    plan, spec = of_plan(), of_spec.model_construct()
    assert [getattr(spec, f.name) for f in fields(plan)] == [
        getattr(plan, f.name) for f in fields(plan)
    ]
