"""When one process imports for several tasks, and which tasks it may become."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfcluster.plan.imports import Code
from tfcluster.plan.plan import Plan
from tfcluster.plan.preloading import Preload, preload_on

Planner = Callable[..., Plan]
KERAS_JOB = Code(frozenset({"tensorflow", "numpy", "os"}), frozenset({"keras"}))
PLAIN_JOB = Code(frozenset({"json", "numpy"}))


def on(plan: Plan, node: str = "local") -> Preload:
    ahead = preload_on(plan, node)
    assert ahead is not None
    return ahead


@pytest.mark.parametrize(
    ("code", "wish", "names"),
    [
        (KERAS_JOB, "auto", ("tensorflow", "tensorflow:keras.Model", "numpy")),
        (KERAS_JOB, "on", ("tensorflow", "tensorflow:keras.Model", "numpy")),
        (KERAS_JOB, "off", ()),
        (PLAIN_JOB, "auto", ()),
        (PLAIN_JOB, "on", ("numpy",)),
        (Code(frozenset({"tensorflow.keras"})), "auto", ("tensorflow",)),
        (None, "auto", ()),
    ],
)
def test_what_is_imported_ahead(
    plan_of: Planner, code: Code | None, wish: str, names: tuple[str, ...]
) -> None:
    assert plan_of({"runtime": {"preload": wish}}, code=code).preload == names


def test_a_job_that_sets_what_is_read_at_the_import_imports_by_itself(plan_of: Planner) -> None:
    code = Code(frozenset({"tensorflow"}), sets=frozenset({"TF_CPP_MIN_LOG_LEVEL"}))
    plan = plan_of(code=code, imports=code.imports)
    assert plan.preload == ()
    (note,) = [note for note in plan.notes if "job.env" in note]
    assert "TF_CPP_MIN_LOG_LEVEL" in note
    assert note.endswith("set them in job.env instead, and not in the files")


@pytest.mark.parametrize(
    ("wish", "code", "words"),
    [
        ("on", Code(frozenset({"json"})), "import none of"),
        ("on", Code(frozenset({"numpy"}), sets=frozenset({"?"})), "only it knows"),
        ("auto", Code(frozenset({"json"}), sets=frozenset({"PATH"})), None),
        ("off", KERAS_JOB, None),
    ],
)
def test_a_wish_that_comes_to_nothing_is_told(
    plan_of: Planner, wish: str, code: Code, words: str | None
) -> None:
    plan = plan_of({"runtime": {"preload": wish}}, code=code, imports=code.imports)
    notes = [note for note in plan.notes if "import" in note]
    assert (words is None and not notes) or (words is not None and words in notes[0])


def test_a_job_may_set_what_is_read_later(plan_of: Planner) -> None:
    names = {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MY_OWN", "XLA_FLAGS"}
    names |= {"GRPC_FAIL_FAST", "TF_DETERMINISTIC_OPS", "DNNL_VERBOSE", "PYTHONHASHSEED"}
    for name in names:
        code = Code(frozenset({"tensorflow"}), sets=frozenset({name}))
        assert plan_of(code=code).preload == ("tensorflow",), name


def test_without_hooks_no_task_is_a_fork(plan_of: Planner) -> None:
    plan = plan_of({"job": {"hooks": "off"}, "runtime": {"preload": "on"}}, code=KERAS_JOB)
    assert plan.preload == ()
    assert any("without hooks" in note for note in plan.notes)


def test_the_importer_gets_what_all_tasks_share(plan_of: Planner) -> None:
    plan = plan_of({"job": {"env": {"TF_CPP_MIN_LOG_LEVEL": "1"}}}, code=KERAS_JOB)
    ahead = on(plan)
    assert ahead.tasks == {"worker:0", "worker:1"}
    assert ahead.command.argv[:3] == (*plan.tasks[0].command.argv[:2], "preload")
    env = {var.name: var.value for var in ahead.command.env}
    assert env["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert env["OPENBLAS_NUM_THREADS"] == "1", "OpenBLAS would start threads at the import"
    assert "TF_NUM_INTRAOP_THREADS" not in env
    assert "CUDA_VISIBLE_DEVICES" not in env


@pytest.mark.parametrize(
    ("variable", "forks"),
    [("TF_ENABLE_ONEDNN_OPTS", {"worker:1", "worker:2"}),
     ("PYTHONHASHSEED", {"worker:1", "worker:2"}),
     ("MY_OWN", {"worker:0", "worker:1", "worker:2"}),
     ("CUDA_VISIBLE_DEVICES", {"worker:0", "worker:1", "worker:2"})],
)  # fmt: skip
def test_a_task_that_differs_in_what_is_read_at_the_import_starts_cold(
    plan_of: Planner, variable: str, forks: set[str]
) -> None:
    first = {"address": "127.0.0.1:0", "env": {variable: "x"}}
    workers = [first, "127.0.0.1:0", "127.0.0.1:0"]
    plan = plan_of({"cluster": {"worker": workers}}, code=KERAS_JOB)
    assert on(plan).tasks == forks
    cold = {"worker:0", "worker:1", "worker:2"} - forks
    assert [note.partition(" ")[0] for note in plan.notes if "by itself" in note] == sorted(cold)


def test_the_importer_is_told_no_secret(plan_of: Planner) -> None:
    job = {"env": {"MY_TOKEN": "s3cret"}}
    plan = plan_of({"job": job}, code=KERAS_JOB)
    assert any(var.secret for var in plan.tasks[0].command.env)
    assert not any(var.secret for var in on(plan).command.env)


@pytest.mark.parametrize(
    ("workers", "restarts", "is_worth_it"), [(2, 0, True), (1, 3, True), (1, 0, False)]
)
def test_it_is_worth_it_for_several_tasks_or_restarts(
    plan_of: Planner, workers: int, restarts: int, is_worth_it: bool
) -> None:
    sections: dict[str, Any] = {"cluster": {"worker": workers}}
    plan = plan_of({**sections, "supervision": {"max_restarts": restarts}}, code=KERAS_JOB)
    assert (preload_on(plan, "local") is not None) == is_worth_it


def test_each_node_has_its_own(plan_of: Planner) -> None:
    addresses = ["10.0.0.1:2222", "10.0.0.1:2223", "10.0.0.2:2222"]
    plan = plan_of({"cluster": {"worker": addresses}}, code=KERAS_JOB)
    assert on(plan, "10.0.0.1").tasks == {"worker:0", "worker:1"}
    assert on(plan, "10.0.0.2").tasks == {"worker:2"}


def test_a_container_imports_for_itself(plan_of: Planner) -> None:
    plan = plan_of({"runtime": {"backend": "docker"}}, code=KERAS_JOB)
    assert [preload_on(plan, node.name) for node in plan.nodes] == [None, None]
