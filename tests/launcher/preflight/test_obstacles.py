"""Problems of the environment are found before any task is started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.plans.conftest import on

from tfcluster.discovery.planning import Planned
from tfcluster.errors import InterpreterError, SetupError
from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.plan import Interpreter
from tfcluster.plans.script_analysis import Code
from tfcluster.preflight import rules
from tfcluster.spec.model import ClusterSpec

SpecOf = Callable[[dict[str, Any]], ClusterSpec]
WITHOUT_TENSORFLOW = Interpreter("/bare/bin/python", ".venv in the workdir", "3.12.1", {})


def planned(spec: ClusterSpec, machine: PlanContext, *addresses: str) -> Planned:
    context = on(machine, spec, *addresses)
    return Planned(spec, make_plan(spec, context), context)


def found_by(spec: ClusterSpec, machine: PlanContext, *addresses: str) -> list[SetupError]:
    return list(rules.find_obstacles(planned(spec, machine, *addresses)))


@pytest.mark.linux("the length of a variable")
def test_more_tasks_than_one_variable_can_list_are_refused(
    spec_of: SpecOf, machine: PlanContext
) -> None:
    few = spec_of({"cluster": {"worker": 5000}})
    assert found_by(few, machine) == []
    many = spec_of({"cluster": {"worker": 9000}})
    (found,) = found_by(many, machine)
    assert "the TF_CONFIG of 9000 tasks is too long: about 180000 bytes" in found.message
    plain = spec_of({"cluster": {"worker": 9000}, "job": {"kind": "plain"}})
    assert found_by(plain, machine) == []


def test_a_variable_that_no_process_can_get_is_refused(
    spec_of: SpecOf, machine: PlanContext
) -> None:
    fits = spec_of({"job": {"env": {"LIST": "é" * 65_500}}})
    assert found_by(fits, machine) == []
    (found,) = found_by(spec_of({"job": {"env": {"LIST": "x" * 200_000}}}), machine)
    assert "the variable LIST (job.env) is too long: 200006 bytes" in found.message


@pytest.mark.parametrize(
    ("version", "job", "is_refused"),
    [
        ("3.8.18", {}, True),
        ("3.9.0rc1", {}, False),
        ("3.8.18", {"hooks": "off"}, False),
        ("3.8.18", {"script": None, "command": ["./train"]}, False),
    ],
)
def test_a_python_that_is_too_old_for_the_hooks_is_refused(
    spec_of: SpecOf, machine: PlanContext, version: str, job: dict[str, Any], *, is_refused: bool
) -> None:
    old = replace(WITHOUT_TENSORFLOW, version=version)
    found = found_by(
        spec_of({"job": job}), replace(machine, imports=None, interpreters={"local": old})
    )
    message = f"Python 3.9 or newer is needed, but {old.path} ({old.why}) is 3.8.18"
    assert [error.message for error in found] == ([message] if is_refused else [])


@pytest.mark.parametrize(
    ("job", "imports", "needed"),
    [
        ({}, {"os", "tensorflow.keras"}, True),
        ({}, {"tf_keras"}, True),
        ({}, {"os", "json"}, False),
        ({}, None, False),
        ({"kind": "plain"}, {"tensorflow"}, True),
        ({"script": None, "module": "tfcluster_workers.jobs.keras_mnist"}, None, True),
        ({"script": None, "command": ["python", "train.py"]}, {"tensorflow"}, False),
    ],
)
def test_tensorflow_must_be_installed_if_the_job_certainly_needs_it(
    spec_of: SpecOf,
    machine: PlanContext,
    job: dict[str, Any],
    imports: set[str] | None,
    needed: bool,
) -> None:
    context = replace(
        machine,
        imports=None if imports is None else frozenset(imports),
        interpreters={"local": WITHOUT_TENSORFLOW},
    )
    found = found_by(spec_of({"job": job}), context)
    assert [type(obstacle) for obstacle in found] == ([InterpreterError] if needed else [])
    if needed:
        assert "/bare/bin/python (.venv in the workdir) does not have it" in str(found[0])
        assert "/bare/bin/python -m pip install tensorflow" in found[0].fix


def test_requested_keras_2_must_be_installed(spec_of: SpecOf, machine: PlanContext) -> None:
    python = Interpreter("/v/bin/python", "why", "3.11.7", {"tensorflow": "2.21.0"})
    context = replace(machine, interpreters={"local": python})
    (found,) = found_by(spec_of({"keras": {"version": "2"}}), context)
    assert "pip install 'tf-keras~=2.21.0'" in found.fix


@pytest.mark.parametrize(
    ("sections", "imports", "versions", "fix"),
    [
        ({}, {"keras"}, {"keras": "3.15.1"}, None),
        ({}, {"keras"}, {"keras": "3.16.0"}, None),  # a task knows whether it can be patched
        ({}, {"keras"}, {"keras": "3.2.1", "tf-keras": "2.21.0"}, "import tf_keras as keras"),
        ({}, {"tensorflow.keras"}, {"keras": "3.2.1"}, "install 'tf-keras~=2.21.0'"),
        ({}, {"tensorflow.keras"}, {"keras": "3.2.1", "tf-keras": "2.21.0"}, None),
        ({}, {"tensorflow"}, {"keras": "3.2.1"}, None),
        ({"cluster": {"worker": 1}}, {"keras"}, {"keras": "3.2.1"}, None),
        ({"job": {"hooks": "off"}}, {"keras"}, {"keras": "3.2.1"}, None),
        (
            {"keras": {"version": "3"}},
            {"tensorflow.keras"},
            {"keras": "3.2.1", "tf-keras": "2.21.0"},
            "install 'keras==3.15.1'",
        ),
    ],
)
def test_a_keras_3_that_can_neither_be_patched_nor_replaced_is_refused(
    spec_of: SpecOf,
    machine: PlanContext,
    sections: dict[str, Any],
    imports: set[str],
    versions: dict[str, str],
    fix: str | None,
) -> None:
    found = {"tensorflow": "2.21.0"} | versions
    python = Interpreter("/v/bin/python", "why", "3.11.7", found)
    context = replace(machine, interpreters={"local": python}, imports=frozenset(imports))
    errors = [str(obstacle) for obstacle in found_by(spec_of(sections), context)]
    assert ([] if fix is None else [True]) == [(fix or "") in error for error in errors]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ((), "strategy.communication is NCCL, but there is no GPU for worker:0, worker:1"),
        ((0,), "NCCL cannot run two tasks on one GPU (0)"),
        ((0, 1), None),
    ],
)
def test_nccl_needs_a_gpu_for_each_task(
    spec_of: SpecOf, machine: PlanContext, gpus: tuple[int, ...], expected: str | None
) -> None:
    spec = spec_of({"strategy": {"communication": "NCCL"}})
    found = found_by(spec, replace(machine, gpus=gpus))
    assert [o.message for o in found] == ([expected] if expected else [])
    assert all(o.exit_code == 3 for o in found)


FOR_EACH = "resources.gpus requests 1 GPU for each of worker:0, worker:1,"
TWO_LOCAL = [{"address": "localhost:0", "gpus": [0]}, {"address": "localhost:0"}]


@pytest.mark.parametrize(
    ("sections", "gpus", "message"),
    [
        ({"resources": {"gpus": 1}}, (), f"{FOR_EACH} but this machine has no GPU"),
        ({"resources": {"gpus": 1}}, (4,), f"{FOR_EACH} but this machine has 1 (GPU 4)"),
        ({"resources": {"gpus": 1}}, (0, 1), None),
        ({"resources": {"gpus": 1}}, None, None),
        ({"resources": {"gpus": [0, 7, 8]}}, (0, 1),
         "resources.gpus requests GPU 7, 8, but this machine has 2 (GPU 0, 1)"),
        ({"resources": {"gpus": [1]}}, (0, 1), None),
        ({"resources": {"gpus": 0}}, (), None),
        ({"resources": {"gpus": "all"}}, (), None),
        ({}, (), None),
        ({"cluster": {"worker": TWO_LOCAL}}, (),
         "cluster.worker.0.gpus requests GPU 0, but this machine has no GPU"),
        ({"cluster": {"worker": TWO_LOCAL}, "resources": {"gpus": 1}}, (0,),
         "resources.gpus requests 1 GPU for worker:1, but this machine has no GPU left"),
        ({"cluster": {"worker": TWO_LOCAL}, "resources": {"gpus": 1}}, (0, 1), None),
        ({"cluster": {"chief": 1, "worker": 1, "ps": 1}, "resources": {"gpus": 1}}, (0, 1), None),
        ({"cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}, "resources": {"gpus": 1}}, (), None),
        ({"runtime": {"backend": "docker"}, "resources": {"gpus": [3]}}, (0,),
         "resources.gpus requests GPU 3, but this machine has 1 (GPU 0)"),
    ],
)  # fmt: skip
def test_requested_gpus_must_be_present(
    spec_of: SpecOf,
    machine: PlanContext,
    sections: dict[str, Any],
    gpus: tuple[int, ...] | None,
    message: str | None,
) -> None:
    context = replace(machine, gpus=gpus, backends_here=frozenset({"local", "docker"}))
    found = found_by(spec_of(sections), context)
    assert [(o.message, o.exit_code) for o in found] == ([(message, 3)] if message else [])
    assert all("nvidia-smi" in o.fix for o in found)


def test_missing_gpus_are_reported_with_the_field_and_cuda_visible_devices(
    spec_of: SpecOf, machine: PlanContext
) -> None:
    sections = {"cluster": {"worker": TWO_LOCAL}}
    shell = {**machine.environ, "CUDA_VISIBLE_DEVICES": "MIG-7"}
    (found,) = found_by(spec_of(sections), replace(machine, gpus=(), environ=shell))
    assert found.message.endswith("has no GPU; CUDA_VISIBLE_DEVICES is 'MIG-7' in this shell")
    assert "--set cluster.worker.0.gpus=0" in found.fix


def test_requesting_all_gpus_of_a_machine_without_gpus_gives_a_note(
    spec_of: SpecOf, machine: PlanContext
) -> None:
    spec = spec_of({"resources": {"gpus": "all"}})
    notes = make_plan(spec, on(replace(machine, gpus=()), spec)).notes
    assert 'gpus is "all", but this machine has no GPU: its tasks train on the CPU' in notes
    assert make_plan(spec, on(replace(machine, gpus=(0,)), spec)).notes != notes


@pytest.mark.parametrize(
    ("hosts", "checkpoints", "stopped"),
    [
        (("10.0.0.1", "10.0.0.2"), {}, True),
        (("10.0.0.1", "10.0.0.2"), {"dir": "/mnt/x"}, False),
        (("127.0.0.1", "127.0.0.1"), {}, False),
    ],
)
def test_parameter_servers_on_several_hosts_need_shared_storage(
    spec_of: SpecOf,
    machine: PlanContext,
    hosts: tuple[str, str],
    checkpoints: dict[str, str],
    stopped: bool,
) -> None:
    first, second = hosts
    cluster = {"chief": [f"{first}:1"], "worker": [f"{second}:2"], "ps": [f"{second}:3"]}
    spec = spec_of({"cluster": cluster, "checkpoints": checkpoints})
    found = found_by(spec, machine)
    assert any("checkpoints.dir" in o.fix for o in found) is stopped


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"cluster": {"worker": ["localhost:0", "127.0.0.1:2222", "[::1]:2223"]}}, None),
        ({"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.1:2223"]}}, "10.0.0.1 (worker:0)"),
        (
            {"checkpoints": {"dir": "gs://bucket/run"}},
            "cannot reach checkpoints.dir gs://bucket/run",
        ),
        ({"checkpoints": {"dir": "file:///mnt/run"}}, None),
    ],
)
def test_a_private_network_allows_only_loopback_addresses(
    spec_of: SpecOf, machine: PlanContext, changes: dict[str, Any], words: str | None
) -> None:
    spec = spec_of({"runtime": {"network": "private"}} | changes)
    found = found_by(spec, machine, "10.0.0.1")
    assert len(found) == (words is not None)
    for obstacle in found:
        assert str(words) in obstacle.message
        assert "runtime.network=host" in obstacle.fix


SEARCHES = Code(imports=frozenset({"keras_tuner"}), has_tuner=True, calls_search=True)


def test_workers_that_would_each_run_a_whole_search_are_refused(
    spec_of: SpecOf, machine: PlanContext
) -> None:
    """Separate searches would overwrite each other's trials in one folder, yet exit with 0."""
    context = replace(machine, code=SEARCHES)
    (found,) = found_by(spec_of({"cluster": {"worker": 3}}), context)
    assert str(found) == (
        "the job calls KerasTuner's search: 3 tasks would each run the whole search, in one folder"
        "\n  → run one search with the workers as tuners: --set job.kind=tuner --set"
        " cluster.chief=1; to run it as it is: --set job.kind=training"
    )
    (found,) = found_by(spec_of({"cluster": {"chief": 1, "worker": 2}}), context)
    assert "with the workers as tuners: --set job.kind=tuner;" in str(found)


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ({"cluster": {"worker": 1}}, SEARCHES),
        ({"cluster": {"chief": 1, "worker": 2}, "job": {"kind": "tuner"}}, SEARCHES),
        ({"cluster": {"worker": 2}, "job": {"kind": "plain"}}, SEARCHES),
        ({"cluster": {"worker": 2}, "job": {"kind": "training"}}, SEARCHES),
        ({"cluster": {"worker": 2}, "job": {"env": {"KERASTUNER_TUNER_ID": "chief"}}}, SEARCHES),
        ({"cluster": {"worker": 2}}, replace(SEARCHES, calls_search=False)),
        ({"cluster": {"worker": 2}}, replace(SEARCHES, sets=frozenset({"KERASTUNER_ORACLE_IP"}))),
        ({"cluster": {"worker": 2}}, None),
    ],
    ids=["alone", "tuner", "plain", "training", "variables", "imported", "set by it", "unread"],
)
def test_a_proper_or_intended_search_is_allowed(
    spec_of: SpecOf, machine: PlanContext, spec: dict[str, Any], code: Code | None
) -> None:
    assert found_by(spec_of(spec), replace(machine, code=code)) == []


@pytest.mark.parametrize(
    ("backend", "where"), [("local", "tasks on this machine"), ("docker", "containers")]
)
def test_words_before_the_python_are_refused_where_none_is_reached_by_a_command(
    spec_of: SpecOf, machine: PlanContext, backend: str, where: str
) -> None:
    spec = spec_of({"runtime": {"backend": backend, "wrap": ["apptainer", "exec", "tf.sif"]}})
    (error,) = found_by(spec, machine)
    assert error.message == f"runtime.wrap has no effect on {where}"
    assert "--set 'runtime.wrap=[]'" in error.fix
    is_here = backend == "local"
    assert ("apptainer exec tf.sif tfcluster" in error.fix) is is_here


def test_the_gpus_of_a_remote_docker_daemon_are_not_checked(
    spec_of: SpecOf, machine: PlanContext
) -> None:
    spec = spec_of({"runtime": {"backend": "docker"}, "resources": {"gpus": 2}})
    assert found_by(spec, replace(machine, gpus=())) == []
