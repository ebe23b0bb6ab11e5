"""What a spec of a KerasTuner search may say, and what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster.plan.attempt import VARIABLES
from tfcluster.spec.model import SET_BY_US

from .writing import problems_of, spec_of

TUNER = {"script": "tune.py", "kind": "tuner"}


@pytest.mark.parametrize(
    "cluster", [{"worker": 1}, {"chief": 1, "worker": 1}, {"chief": 1, "worker": 9}]
)
def test_one_tuner_alone_or_any_number_with_a_chief(
    cluster: dict[str, int], tmp_path: Path
) -> None:
    assert spec_of({"cluster": cluster, "job": TUNER}, tmp_path).task_count == sum(cluster.values())


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ({"worker": 2}, "several tuners need a chief"),
        ({"chief": 1}, "needs tuners: no worker"),
        ({"chief": 1, "worker": 1, "ps": 1}, "no use for ps"),
        ({"chief": 1, "worker": 1, "evaluator": 1}, "no use for evaluator"),
    ],
)
def test_a_search_has_a_chief_and_tuners_and_nobody_else(
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
def test_kerastuner_s_variables_are_ours_in_a_search(place: str, tmp_path: Path) -> None:
    spec = {"cluster": {"chief": 1, "worker": 2}, "job": TUNER} | PLACES[place]
    (found,) = problems_of(json.dumps(spec), tmp_path)
    assert "is set by tfcluster for each task of a search" in found.message
    assert found.fix == "leave it out"


def test_in_any_other_job_they_are_the_user_s(tmp_path: Path) -> None:
    job = {"script": "tune.py", "kind": "plain", "env": {"KERASTUNER_TUNER_ID": "chief"}}
    assert spec_of({"cluster": {"worker": 2}, "job": job}, tmp_path).job.env == job["env"]


def test_both_rooms_know_the_same_variables() -> None:
    assert SET_BY_US == VARIABLES
