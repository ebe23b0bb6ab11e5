"""The rules for the spec of a KerasTuner search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .writing import problems_of

TUNER = {"script": "tune.py", "kind": "tuner"}


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"worker": 2}, "several tuners need a chief"),
        ({"chief": 1}, "needs tuners: no worker"),
        ({"chief": 1, "worker": 1, "ps": 1}, "a search has no ps"),
        ({"chief": 1, "worker": 1, "evaluator": 1}, "a search has no evaluator"),
    ],
)
def test_a_search_has_a_chief_and_tuners_only(
    cluster: dict[str, int], message: str, tmp_path: Path
) -> None:
    (found,) = problems_of(json.dumps({"cluster": cluster, "job": TUNER}), tmp_path)
    assert message in found.message
    assert '{"chief": 1, "worker": 2}' in found.fix


PLACES: dict[str, dict[str, Any]] = {
    "job.env": {"job": TUNER | {"env": {"KERASTUNER_TUNER_ID": "x"}}},
    "a host's env": {"runtime": {"hosts": {"*": {"env": {"KERASTUNER_ORACLE_IP": "1.2.3.4"}}}}},
    "a task's env": {
        "cluster": {
            "chief": ["127.0.0.1:0"],
            "worker": [{"address": "127.0.0.1:0", "env": {"KERASTUNER_ORACLE_PORT": "8000"}}],
        }
    },
}


@pytest.mark.parametrize("place", PLACES)
def test_kerastuner_s_variables_cannot_be_set_in_a_search(place: str, tmp_path: Path) -> None:
    spec = {"cluster": {"chief": 1, "worker": 2}, "job": TUNER} | PLACES[place]
    (found,) = problems_of(json.dumps(spec), tmp_path)
    assert "is set by tfcluster for each task of a search" in found.message
    assert found.fix == "leave it out"
