"""Paths that a spec names on this machine must exist; missing ones are reported with a place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tfcluster.discovery import planning
from tfcluster.discovery.machine_facts import addresses_to_compare
from tfcluster.errors import Problem, SpecError
from tfcluster.plans.placement import place_tasks
from tfcluster.spec import PlanOptions
from tfcluster.spec.load import load

REMOTE = {"worker": ["203.0.113.1:1", "203.0.113.2:1"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "code" / "data").mkdir(parents=True)
    for name in ("train.py", "code/train.py", "code/data/a.csv", "python"):
        (tmp_path / name).touch()
    (tmp_path / "python").chmod(0o755)
    return tmp_path


def problems(
    folder: Path,
    job: dict[str, Any],
    *,
    sets: tuple[str, ...] = (),
    python: str | None = None,
    **sections: Any,
) -> list[Problem]:
    """Return the problems of a spec that has one field per line, so that places differ."""
    spec = folder / "a.json"
    spec.write_text(json.dumps({"cluster": {"worker": 2}, "job": job} | sections, indent=1))
    loaded = load(spec, PlanOptions(tuple(sets)))
    try:
        tasks = place_tasks(loaded.spec, addresses_to_compare(loaded.spec))
        planning.require_paths(loaded, tasks, environ={"PATH": "/bin:/usr/bin"}, python=python)
    except SpecError as error:
        return [
            Problem(problem.place.removeprefix(f"{folder}/"), problem.message, problem.fix)
            for problem in error.problems
        ]
    return []


def test_a_spec_whose_files_exist_has_no_problems(folder: Path) -> None:
    job = {"workdir": "code", "script": "train.py", "include": ["no/*"], "env_file": "train.py"}
    assert problems(folder, job, runtime={"python": "python"}) == []
    assert problems(folder, {"module": "elsewhere"}, python="/no/python") == []


def test_every_missing_file_is_reported_with_its_line(folder: Path) -> None:
    job = {
        "script": "no.py",
        "workdir": "code",
        "prepare": {"script": "prepare.py"},
        "env_file": "my.env",
        "per_task": {"worker:1": {"script": "own.py"}},
    }
    found = problems(folder, job, runtime={"python": "venv/bin/python"})
    below = f"it is relative to the workdir, {folder}/code"
    beside = f"it is relative to the spec's folder, {folder}"
    assert found[:4] == [
        Problem("a.json:6:13", f"job.script: there is no script at {folder}/code/no.py", below),
        Problem(
            "a.json:9:14",
            f"job.prepare.script: there is no script at {folder}/code/prepare.py",
            below,
        ),
        Problem(
            "a.json:14:15",
            f"job.per_task.worker:1.script: there is no script at {folder}/code/own.py",
            below,
        ),
        Problem("a.json:11:15", f"job.env_file: there is no file at {folder}/my.env", beside),
    ]
    (python,) = found[4:]
    assert python.place == "a.json:19:13"
    assert python.message == f"runtime.python: there is no Python at {folder}/venv/bin/python"


def test_a_notebook_that_cannot_run_is_a_problem(folder: Path) -> None:
    cells = [{"cell_type": "code", "source": ["import tensorflow"]}]
    (folder / "good.ipynb").write_text(json.dumps({"cells": cells}))
    (folder / "bad.ipynb").write_text("import tensorflow")
    good: dict[str, Any] = {"script": "good.ipynb"}
    assert problems(folder, good) == []
    fix = f"convert it: jupyter nbconvert --to script {folder}"
    bad = f"{folder}/bad.ipynb is not a notebook as Jupyter saves it (nbformat 4)"
    for job, place, problem in [
        (good | {"hooks": "off"}, "script", 'a notebook needs the hooks, and job.hooks is "off"'),
        (good | {"prepare": good}, "prepare.script", "the prepare step is a plain script"),
        ({"script": "bad.ipynb"}, "script", bad),
        (good | {"per_task": {"worker:1": {"script": "bad.ipynb"}}}, "per_task.worker:1", bad),
    ]:
        (found,) = problems(folder, job)
        assert found.message.startswith(f"job.{place}")
        assert problem in found.message
        assert found.fix.startswith(fix)


def test_a_missing_workdir_is_the_only_problem(folder: Path) -> None:
    (found,) = problems(folder, {"workdir": "cod", "script": "train.py"})
    assert found.place == "a.json:6:14"
    assert found.message == f"job.workdir: there is no folder at {folder}/cod"
    (found,) = problems(folder, {"workdir": "train.py", "script": "train.py"})
    assert found.message == f"job.workdir: {folder}/train.py is not a folder"


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("data/*.csv", None),
        ("data", None),
        ("*.npz", "nothing in {workdir} matches *.npz"),
        ("../train.py", "../train.py leads out of the workdir, {workdir}"),
        ("/etc/hosts", "/etc/hosts leads out of the workdir, {workdir}"),
    ],
)
def test_a_glob_that_matches_nothing_to_send_is_a_problem(
    folder: Path, pattern: str, expected: str | None
) -> None:
    job = {"workdir": "code", "script": "train.py", "include": ["**/*.py", pattern]}
    found = problems(folder, job, cluster=REMOTE)
    if expected is None:
        assert found == []
    else:
        message = expected.format(workdir=folder / "code")
        assert [(problem.place, problem.message) for problem in found] == [
            ("a.json:13:4", f"job.include.1: {message}")
        ]
    assert problems(folder, job) == [], "no copy is made for tasks on this machine"


def test_paths_of_other_machines_are_not_checked(folder: Path) -> None:
    hosts = {"203.0.113.1": {"workdir": "/scratch/no", "python": "/opt/no/python"}}
    runtime = {"python": "/opt/no/python", "hosts": hosts}
    assert problems(folder, {"script": "train.py"}, cluster=REMOTE, runtime=runtime) == []
    contained = {"backend": "docker", "python": "/opt/no/python"}
    assert problems(folder, {"script": "train.py"}, runtime=contained) == []


def test_a_path_that_cannot_be_read_is_not_reported_as_missing(folder: Path) -> None:
    (found,) = problems(folder, {"script": f"{'x' * 300}.py"})
    assert "cannot be read: File name too long" in found.message
