"""Helpers that write a spec to a test's folder and load it, or return its problems."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tfcluster.errors import Problem, SpecError
from tfcluster.spec import PlanOptions
from tfcluster.spec.load import load
from tfcluster.spec.model import ClusterSpec

LEAST: dict[str, Any] = {"cluster": {"worker": 2}, "job": {"script": "train.py"}}
HOSTS: dict[str, Any] = {
    "cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
    "job": {"script": "train.py"},
}


def spec_of(value: Any, folder: Path, *, sets: Sequence[str] = ()) -> ClusterSpec:
    path = folder / "a.json"
    path.write_text(json.dumps(value))
    return load(path, PlanOptions(tuple(sets))).spec


def problems_of(
    text: str | bytes, folder: Path, *, sets: Sequence[str] = (), name: str = "a.json"
) -> list[Problem]:
    """Return the problems of a file, with places relative to its folder; fail if there are none."""
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    try:
        load(path, PlanOptions(tuple(sets)))
    except SpecError as error:
        return [
            Problem(problem.place.removeprefix(f"{folder}/"), problem.message, problem.fix)
            for problem in error.problems
        ]
    raise AssertionError("the spec was accepted")
