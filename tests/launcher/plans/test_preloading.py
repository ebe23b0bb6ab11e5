"""The plan chooses the modules to preload, and the tasks that may fork from the preloader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tfcluster.plans.plan import Plan
from tfcluster.plans.preloading import PreloadPlan, preload_on
from tfcluster.plans.script_analysis import Code

Planner = Callable[..., Plan]
KERAS_JOB = Code(frozenset({"tensorflow", "numpy", "os"}), frozenset({"keras"}))
PLAIN_JOB = Code(frozenset({"json", "numpy"}))


def on(plan: Plan, node: str = "local") -> PreloadPlan:
    preload = preload_on(plan, node)
    assert preload is not None
    return preload


@pytest.mark.parametrize(
    ("code", "setting", "names"),
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
def test_the_modules_to_preload_follow_from_imports_and_setting(
    plan_of: Planner, code: Code | None, setting: str, names: tuple[str, ...]
) -> None:
    assert plan_of({"runtime": {"preload": setting}}, code=code).preload == names


def test_jax_is_preloaded_for_its_strategy(plan_of: Planner) -> None:
    code, strategy = Code(frozenset({"keras", "numpy"})), {"strategy": {"name": "jax"}}
    assert plan_of(strategy, code=code).preload == ("jax", "keras", "numpy")
    assert plan_of(strategy, code=Code(frozenset({"json"}))).preload == ()


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ("on", Code(frozenset({"json"})), "import no module that can be preloaded"),
        ("on", Code(frozenset({"numpy"}), sets=frozenset({"?"})), "names are computed"),
        ("auto", Code(frozenset({"json"}), sets=frozenset({"PATH"})), None),
        ("off", KERAS_JOB, None),
    ],
)
def test_a_preload_setting_without_effect_gives_a_note(
    plan_of: Planner, setting: str, code: Code, words: str | None
) -> None:
    plan = plan_of({"runtime": {"preload": setting}}, code=code, imports=code.imports)
    notes = [note for note in plan.notes if "no preloading" in note]
    assert (words is None and not notes) or (words is not None and words in notes[0])


def test_torch_which_is_never_preloaded_gives_no_note(plan_of: Planner) -> None:
    code = Code(frozenset({"torch"}), sets=frozenset({"MPLBACKEND"}))
    plan = plan_of({"strategy": {"name": "torch"}}, code=code, imports=code.imports)
    assert not [note for note in plan.notes if "no preloading" in note]


READ_AT_IMPORT = ("TF_CPP_MIN_LOG_LEVEL", "MPLBACKEND", "PANDAS_COPY_ON_WRITE", "OPENCV_LOG_LEVEL")


@pytest.mark.parametrize("name", READ_AT_IMPORT)
def test_a_job_that_sets_a_variable_read_at_the_import_is_not_preloaded(
    plan_of: Planner, name: str
) -> None:
    code = Code(frozenset({"tensorflow"}), sets=frozenset({name}))
    plan = plan_of(code=code, imports=code.imports)
    assert plan.preload == ()
    (note,) = [note for note in plan.notes if "job.env" in note]
    assert name in note
    assert note.endswith("set them in job.env instead, and not in the files")
    alone = {"cluster": {"worker": 1}, "supervision": {"max_restarts": 0}}
    notes = plan_of(alone, code=code, imports=code.imports).notes
    assert not [note for note in notes if "preload" in note], "it would save nothing"


def test_a_job_may_set_variables_that_are_read_after_the_import(plan_of: Planner) -> None:
    names = {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "MY_OWN", "XLA_FLAGS"}
    names |= {"GRPC_FAIL_FAST", "TF_DETERMINISTIC_OPS", "DNNL_VERBOSE", "PYTHONHASHSEED"}
    for name in names:
        code = Code(frozenset({"tensorflow"}), sets=frozenset({name}))
        assert plan_of(code=code).preload == ("tensorflow",), name


def test_a_job_without_hooks_is_not_preloaded(plan_of: Planner) -> None:
    plan = plan_of({"job": {"hooks": "off"}, "runtime": {"preload": "on"}}, code=KERAS_JOB)
    assert plan.preload == ()
    assert any("it needs the hooks" in note for note in plan.notes)


def test_the_preloader_gets_the_variables_that_all_tasks_share(plan_of: Planner) -> None:
    plan = plan_of({"job": {"env": {"TF_CPP_MIN_LOG_LEVEL": "1"}}}, code=KERAS_JOB)
    preload = on(plan)
    assert preload.tasks == {"worker:0", "worker:1"}
    assert preload.command.argv[:3] == (*plan.tasks[0].command.argv[:2], "preload")
    env = {var.name: var.value for var in preload.command.env}
    assert env["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert env["OMP_NUM_THREADS"], "OpenMP reads it at the import, for threads that it starts later"
    assert "TF_NUM_INTRAOP_THREADS" not in env
    assert "CUDA_VISIBLE_DEVICES" not in env


@pytest.mark.parametrize(
    ("variable", "forks"),
    [("TF_ENABLE_ONEDNN_OPTS", {"worker:1", "worker:2"}),
     ("PYTHONHASHSEED", {"worker:1", "worker:2"}),
     ("MY_OWN", {"worker:0", "worker:1", "worker:2"}),
     ("CUDA_VISIBLE_DEVICES", {"worker:0", "worker:1", "worker:2"})],
)  # fmt: skip
def test_a_task_with_its_own_variables_read_at_the_import_is_not_preloaded(
    plan_of: Planner, variable: str, forks: set[str]
) -> None:
    first = {"address": "127.0.0.1:0", "env": {variable: "x"}}
    workers = [first, "127.0.0.1:0", "127.0.0.1:0"]
    plan = plan_of({"cluster": {"worker": workers}}, code=KERAS_JOB)
    assert on(plan).tasks == forks
    cold = {"worker:0", "worker:1", "worker:2"} - forks
    assert [note.partition(" ")[0] for note in plan.notes if "not preloaded" in note] == sorted(
        cold
    )


def test_the_preloader_gets_no_secret(plan_of: Planner) -> None:
    job = {"env": {"MY_TOKEN": "s3cret"}}
    plan = plan_of({"job": job}, code=KERAS_JOB)
    assert any(var.secret for var in plan.tasks[0].command.env)
    assert not any(var.secret for var in on(plan).command.env)


@pytest.mark.parametrize(
    ("workers", "restarts", "is_worth_it"), [(2, 0, True), (1, 3, True), (1, 0, False)]
)
def test_preloading_needs_several_tasks_or_restarts(
    plan_of: Planner, workers: int, restarts: int, is_worth_it: bool
) -> None:
    sections: dict[str, Any] = {"cluster": {"worker": workers}}
    plan = plan_of({**sections, "supervision": {"max_restarts": restarts}}, code=KERAS_JOB)
    assert (preload_on(plan, "local") is not None) == is_worth_it


def test_each_node_has_its_own_preloader(plan_of: Planner) -> None:
    addresses = ["10.0.0.1:2222", "10.0.0.1:2223", "10.0.0.2:2222"]
    plan = plan_of({"cluster": {"worker": addresses}}, code=KERAS_JOB)
    assert on(plan, "10.0.0.1").tasks == {"worker:0", "worker:1"}
    assert on(plan, "10.0.0.2").tasks == {"worker:2"}
