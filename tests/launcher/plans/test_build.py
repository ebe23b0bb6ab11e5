"""A spec and a machine with four cores result in the expected plan."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.launcher.plans.conftest import on

from tfcluster.plans.build import make_plan
from tfcluster.plans.context import PlanContext
from tfcluster.plans.job_facts import with_found_strategy
from tfcluster.plans.plan import EnvVar, Interpreter, Plan, TaskId
from tfcluster.plans.preloading import preload_on
from tfcluster.plans.resources import EVEN_SHARE
from tfcluster.plans.script_analysis import Code
from tfcluster.plans.tf_config import LIBRARY_VARIABLES
from tfcluster.spec.model import ClusterSpec

Planner = Callable[..., Plan]
BUNDLE = "/home/ann/.cache/tfcluster/bundles/0123abcd"
BOOT = f"{BUNDLE}/workers/tfcluster_workers/boot.py"
SPEC_DIR = "/home/ann/project/cluster_specs"


def env(plan: Plan, task: str = "worker:0") -> dict[str, str]:
    return {v.name: v.value for v in plan.task(TaskId.parse(task)).command.env}


def source(plan: Plan, name: str) -> str:
    found: dict[str, EnvVar] = {v.name: v for v in plan.tasks[0].command.env}
    return found[name].source


@pytest.mark.parametrize(
    ("job", "argv"),
    [
        ({}, ("/venv/bin/python", BOOT, "script", f"{SPEC_DIR}/train.py")),
        (
            {"script": "sub/main.py", "workdir": "..", "args": ["--lr", "0.1"]},
            ("/venv/bin/python", BOOT, "script", "/home/ann/project/sub/main.py", "--lr", "0.1"),
        ),
        (
            {"script": None, "module": "pkg.train", "args": ["x"]},
            ("/venv/bin/python", BOOT, "module", "pkg.train", "x"),
        ),
        ({"hooks": "off"}, ("/venv/bin/python", f"{SPEC_DIR}/train.py")),
        (
            {"hooks": "off", "script": None, "module": "pkg.train"},
            ("/venv/bin/python", "-m", "pkg.train"),
        ),
        ({"script": None, "command": ["bash", "t.sh"], "args": ["1"]}, ("bash", "t.sh", "1")),
    ],
)
def test_the_command_of_a_task(plan_of: Planner, job: dict[str, Any], argv: tuple[str]) -> None:
    assert plan_of({"job": job}).tasks[0].command.argv == argv


BY_DEFAULT = "import os\nos.environ.setdefault('KERAS_BACKEND', 'jax')\n"


@pytest.mark.parametrize(
    ("source", "sections", "strategy"),
    [
        ("import jax", {}, "jax"),
        ("import torch, keras", {"job": {"env": {"KERAS_BACKEND": "torch"}}}, "torch"),
        ("import os\nos.environ['KERAS_BACKEND'] = 'jax'\nimport keras, tensorflow", {}, "jax"),
        (f"{BY_DEFAULT}import keras", {}, "jax"),
        (f"{BY_DEFAULT}import keras", {"job": {"env": {"KERAS_BACKEND": "tensorflow"}}}, None),
        ("import tensorflow as tf\ntf.experimental.dtensor.initialize_accelerator_system()", {},
         "dtensor"),
        ("import tensorflow, jax", {}, None),
        ("import jax, torch", {}, None),
        ("import keras", {}, None),
        ("import jax", {"job": {"kind": "plain"}}, None),
        ("import jax", {"strategy": {"name": "default"}}, "default"),
    ],
)  # fmt: skip
def test_the_strategy_of_another_library_is_found_where_it_is_certain(
    spec_of: Callable[[dict[str, Any]], ClusterSpec],
    machine: PlanContext,
    source: str,
    sections: dict[str, Any],
    strategy: str | None,
) -> None:
    code, spec = Code.read(source), spec_of(sections)
    context = replace(on(machine, spec), imports=code.imports, code=code)
    assert with_found_strategy(spec, context).strategy.name == strategy


@pytest.mark.parametrize(
    ("packages", "strategy"),
    [("keras jax", "jax"), ("keras torch", "torch"), ("keras jax torch", None), ("keras", None)],
)
def test_keras_trains_on_the_only_library_that_is_installed_for_it(
    spec_of: Callable[[dict[str, Any]], ClusterSpec],
    machine: PlanContext,
    packages: str,
    strategy: str | None,
) -> None:
    python = Interpreter("/v/bin/python", "why", "3.11.7", dict.fromkeys(packages.split(), "1"))
    code, spec = Code.read("import keras"), spec_of({})
    context = replace(machine, imports=code.imports, code=code, interpreters={"local": python})
    assert with_found_strategy(spec, context).strategy.name == strategy


def test_a_job_of_jax_needs_that_and_no_tensorflow_and_gets_the_backend_of_keras(
    plan_of: Planner,
) -> None:
    job = {"script": None, "module": "tfcluster_workers.jobs.keras_jax"}
    plan = plan_of({"job": job, "strategy": {"name": "jax"}}, imports=None)
    assert plan.needs == ("jax", "keras")
    assert plan.is_synchronous
    assert plan.settings == {}
    assert env(plan)["KERAS_BACKEND"] == "jax"
    chosen = {"job": job | {"env": {"KERAS_BACKEND": "tensorflow"}}, "strategy": {"name": "jax"}}
    assert env(plan_of(chosen, imports=None))["KERAS_BACKEND"] == "tensorflow"


def test_arguments_after_the_dashes_follow_those_of_the_spec(
    spec_of: Callable[[dict[str, Any]], ClusterSpec], machine: PlanContext
) -> None:
    spec = spec_of({"job": {"args": ["a"]}})
    plan = make_plan(spec, on(machine, spec), args=["b", "c"])
    assert plan.tasks[1].command.argv[-3:] == ("a", "b", "c")


ROLES = {
    "args": ["train"],
    "per_task": {
        "ps": {"module": "tfcluster_workers.server"},
        "worker": {"args": ["work"]},
        "worker:1": {"args": ["work", "--verbose"]},
        "evaluator": {"command": ["bash", "eval.sh"], "args": ["-x"]},
    },
}


def test_single_jobs_or_tasks_may_have_another_program_or_other_arguments(
    spec_of: Callable[[dict[str, Any]], ClusterSpec], machine: PlanContext
) -> None:
    cluster = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    spec = spec_of({"cluster": cluster, "job": ROLES})
    plan = make_plan(spec, on(machine, spec), args=["--lr", "1"])
    script = ("/venv/bin/python", BOOT, "script", f"{SPEC_DIR}/train.py")
    assert {str(task.id): task.command.argv for task in plan.tasks} == {
        "chief:0": (*script, "train", "--lr", "1"),
        "worker:0": (*script, "work", "--lr", "1"),
        "worker:1": (*script, "work", "--verbose", "--lr", "1"),
        "ps:0": ("/venv/bin/python", BOOT, "module", "tfcluster_workers.server"),
        "evaluator:0": ("bash", "eval.sh", "-x"),
    }
    assert [str(task.id) for task in plan.tasks if task.has_own_command] == ["evaluator:0"]
    assert "PYTHONPATH" in env(plan, "evaluator:0"), "boot.py sets it for the others"
    assert "PYTHONPATH" not in env(plan, "ps:0")
    assert plan.hooks
    assert plan.needs == ("tensorflow",)


def test_tasks_with_their_own_command_are_not_preloaded(plan_of: Planner) -> None:
    sections = {"job": {"per_task": {"worker:0": {"command": ["run"]}}}}
    plan = plan_of(sections, code=Code(imports=frozenset({"tensorflow"})))
    assert (preload := preload_on(plan, "local")) is not None
    assert preload.tasks == {"worker:1"}
    assert not [note for note in plan.notes if "worker:0" in note]
    alone = plan_of(sections | {"cluster": {"worker": 1}}, code=Code(frozenset({"tensorflow"})))
    assert preload_on(alone, "local") is None


@pytest.mark.parametrize("job", [{"hooks": "off"}, {"script": None, "command": ["./run.sh"]}])
def test_without_hooks_tfcluster_workers_comes_last_on_pythonpath(
    plan_of: Planner, job: dict[str, Any]
) -> None:
    assert "PYTHONPATH" not in env(plan_of()), "with hooks, boot.py sets it"
    assert env(plan_of({"job": job}))["TF_USE_LEGACY_KERAS"] == "1", "it cannot be patched"
    assert env(plan_of({"job": job}))["PYTHONPATH"] == f"{BUNDLE}/workers"
    inherited = plan_of({"job": job}, environ={"PYTHONPATH": "/mine"})
    assert env(inherited)["PYTHONPATH"] == f"/mine:{BUNDLE}/workers"
    written = plan_of({"job": job | {"env": {"PYTHONPATH": "/theirs"}}})
    assert env(written)["PYTHONPATH"] == f"/theirs:{BUNDLE}/workers"


def test_the_last_layer_of_the_environment_takes_precedence(plan_of: Planner) -> None:
    names = "ABCDE"
    sections = {
        "cluster": {"worker": [{"address": "127.0.0.1:2222", "env": {"D": "task"}}]},
        "job": {"env": dict.fromkeys("ABCDE", "job")},
        "runtime": {
            "hosts": {
                "*": {"env": dict.fromkeys("BCD", "all")},
                "127.0.0.1": {"env": dict.fromkeys("CDE", "host")},
            }
        },
    }
    plan = plan_of(sections, set_paths=("job.env.E",), env_file=(("A", "file"), ("F", "file")))
    assert [env(plan)[n] for n in names + "F"] == ["job", "all", "host", "task", "job", "file"]
    assert [source(plan, n) for n in names + "F"] == [
        "job.env",
        "runtime.hosts.*.env",
        "runtime.hosts.127.0.0.1.env",
        "cluster.worker.0.env",
        "-e or --set",
        "job.env_file",
    ]


def test_variables_of_another_cluster_are_not_inherited(plan_of: Planner) -> None:
    unset = plan_of().tasks[0].command.unset
    assert {"TF_CONFIG", "KERASTUNER_TUNER_ID", "TFCLUSTER_RESTORED_STEP"} <= set(unset)
    assert {*LIBRARY_VARIABLES} <= set(unset)
    own = plan_of({"job": {"script": "train.py", "env": {"RANK": "7"}}})
    assert env(own)["RANK"] == "7"


def test_cores_and_thread_pools_are_divided(plan_of: Planner) -> None:
    plan = plan_of()
    assert env(plan)["TF_NUM_INTRAOP_THREADS"] == "2"
    assert plan.tasks[0].cores is None
    assert "TF_NUM_INTRAOP_THREADS" not in env(plan_of({"cluster": {"worker": 1}}))
    pinned = plan_of({"resources": {"pin": True}})
    assert [t.cores for t in pinned.tasks] == [(0, 1), (2, 3)]


def test_thread_settings_of_the_user_are_kept(plan_of: Planner) -> None:
    shell = plan_of(environ={"OMP_NUM_THREADS": "7"})
    assert env(shell)["OMP_NUM_THREADS"] == "7"
    assert env(shell)["TF_NUM_INTRAOP_THREADS"] == "2"
    spec = plan_of({"job": {"env": {"OMP_NUM_THREADS": "7"}}})
    assert env(spec)["OMP_NUM_THREADS"] == "7"
    both = plan_of({"resources": {"threads": 3}}, environ={"OMP_NUM_THREADS": "7"})
    assert env(both)["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(
    ("sections", "environ", "expected"),
    [
        ({}, {}, EVEN_SHARE),
        ({}, {"OMP_NUM_THREADS": "7"}, "this shell"),
        ({"resources": {"cpus": 3}}, {}, "resources.cpus"),
        ({"resources": {"threads": 3}}, {"OMP_NUM_THREADS": "7"}, "resources.threads"),
        ({"job": {"env": {"OMP_NUM_THREADS": "7"}}}, {"OMP_NUM_THREADS": "8"}, "job.env"),
        (
            {"runtime": {"hosts": {"*": {"env": {"OMP_NUM_THREADS": "7"}}}}},
            {},
            "runtime.hosts.*.env",
        ),
    ],
)
def test_the_source_of_a_thread_setting_is_shown(
    plan_of: Planner, sections: dict[str, Any], environ: dict[str, str], expected: str
) -> None:
    plan = plan_of(sections, environ=environ)
    assert source(plan, "OMP_NUM_THREADS") == expected
    others = {source(plan, name) for name in ("TF_NUM_INTRAOP_THREADS", "MKL_NUM_THREADS")}
    assert others == {expected if expected.startswith("resources") else EVEN_SHARE}


@pytest.mark.parametrize(("gpus", "is_said"), [(1, True), ([0], True), (0, False), (None, False)])
def test_gpus_that_slurm_gives_are_not_numbered(
    plan_of: Planner, gpus: object, *, is_said: bool
) -> None:
    sections = {"resources": {"gpus": gpus}, "runtime": {"backend": "slurm"}}
    notes = " ".join(plan_of(sections).notes)
    assert ("leave it out, and set runtime.slurm.gpus_per_task" in notes) == is_said


@pytest.mark.parametrize(
    ("gpus", "sections", "is_said"),
    [
        ((0,), {}, True),
        (("MIG-1",), {}, True),
        ((0, 1), {}, False),
        (("MIG-1", "MIG-2"), {}, False),
        ((), {}, False),
        ((0,), {"resources": {"gpus": [0]}}, False),
    ],
)
def test_tasks_that_share_gpus_unasked_are_named_in_a_note(
    plan_of: Planner, gpus: tuple[int | str, ...], sections: dict[str, Any], *, is_said: bool
) -> None:
    notes = plan_of(sections, gpus=gpus).notes
    said = "worker:0, worker:1 share 1 GPU, because there are fewer GPUs than tasks"
    assert (said in notes) == is_said


def test_gpus_of_this_machine_are_divided(plan_of: Planner) -> None:
    plan = plan_of(gpus=(0, 1))
    assert [env(plan, f"worker:{i}")["CUDA_VISIBLE_DEVICES"] for i in (0, 1)] == ["0", "1"]
    shared = plan_of(gpus=(0,))
    assert env(shared)["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    own = plan_of(gpus=(0,), environ={"TF_FORCE_GPU_ALLOW_GROWTH": "false"})
    assert "TF_FORCE_GPU_ALLOW_GROWTH" not in env(own), "the value of the shell is kept"
    assert "CUDA_VISIBLE_DEVICES" not in env(plan_of())
    assert env(plan_of({"resources": {"gpus": 0}}))["CUDA_VISIBLE_DEVICES"] == "-1"


def test_tasks_know_the_gpus_that_the_plan_gives_them(plan_of: Planner) -> None:
    one_each = plan_of({"resources": {"gpus": 1}}, gpus=(0, 1))
    assert env(one_each, "worker:1")["TFCLUSTER_GPUS"] == "1"
    on_host = {"cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}}
    every = plan_of(on_host | {"resources": {"gpus": "all"}})
    assert env(every)["TFCLUSTER_GPUS"] == "all", "only the host knows them"
    slurm = {"backend": "slurm", "slurm": {"gpus_per_task": 2}}
    assert env(plan_of({"runtime": slurm}))["TFCLUSTER_GPUS"] == "some", "Slurm chooses them"
    limits = {"memory": "8Gi", "nvidia.com/gpu": 1}
    pods = {"backend": "kubernetes", "kubernetes": {"image": "tf", "resources": {"limits": limits}}}
    assert env(plan_of({"runtime": pods}))["TFCLUSTER_GPUS"] == "some"


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"resources": {"gpus": 0}},
        {"cluster": {"worker": ["10.0.0.1:1", "10.0.0.2:1"]}},
        {"runtime": {"backend": "slurm"}},
        {"runtime": {"backend": "kubernetes", "kubernetes": {"image": "tf"}}},
    ],
)
def test_without_a_plan_for_gpus_no_task_is_given_one(
    plan_of: Planner, sections: dict[str, Any]
) -> None:
    plan = plan_of(sections, gpus=(0, 1), environ={"TFCLUSTER_GPUS": "of another run"})
    assert "TFCLUSTER_GPUS" not in env(plan)
    assert "TFCLUSTER_GPUS" in plan.tasks[0].command.unset


def test_the_gpus_of_a_task_override_its_share(plan_of: Planner) -> None:
    cluster = {"worker": [{"address": "127.0.0.1:1", "gpus": [3]}, "127.0.0.1:2"]}
    plan = plan_of({"cluster": cluster}, gpus=(0, 1, 2, 3))
    assert [t.gpus for t in plan.tasks] == [(3,), (0, 1, 2)]


def packages(tensorflow: str, *, keras: str = "3.15.1", tf_keras: str = "") -> dict[str, str]:
    found = {"tensorflow": tensorflow, "keras": keras, "tf-keras": tf_keras}
    return {name: version for name, version in found.items() if version}


PATCHED = packages("2.21.0", tf_keras="2.21.0")
TOO_OLD = packages("2.16.1", keras="3.2.1", tf_keras="2.16")
NEWER = packages("2.22.0", keras="3.16.0.dev2026102704", tf_keras="2.21.0")
ONE_WORKER: dict[str, Any] = {"cluster": {"worker": 1}}


@pytest.mark.parametrize(
    ("sections", "packages", "legacy"),
    [
        ({}, PATCHED, False),
        ({}, packages("2.21.0", keras="3.3.0", tf_keras="2.21.0"), False),
        ({}, NEWER, False),
        ({}, TOO_OLD, True),
        ({"keras": {"version": "2"}}, PATCHED, True),
        ({"keras": {"version": "3"}}, TOO_OLD, False),
        ({"job": {"hooks": "off"}}, PATCHED, True),
        ({"job": {"env": {"TFCLUSTER_KERAS3_SHIM": "off"}}}, PATCHED, True),
        ({"cluster": {"chief": 1, "worker": 1, "ps": 1}}, PATCHED, True),
        ({"cluster": {"chief": 1, "worker": 1, "ps": 1}}, packages("2.21.0"), False),
        ({}, packages("2.15.1", keras="2.15.0", tf_keras="2.15"), False),
        ({}, packages("2.21.0"), False),
        (ONE_WORKER, TOO_OLD, False),
        (ONE_WORKER | {"keras": {"version": "2"}}, PATCHED, True),
        ({"strategy": {"name": "mirrored"}}, TOO_OLD, False),
        ({"job": {"kind": "plain"}}, TOO_OLD, False),
    ],
)
def test_tf_keras_replaces_keras_3_if_keras_3_would_fail(
    plan_of: Planner, sections: dict[str, Any], packages: dict[str, str], legacy: bool
) -> None:
    python = Interpreter("/venv/bin/python", "why", "3.11.7", packages)
    plan = plan_of(sections, interpreters={"local": python})
    assert ("TF_USE_LEGACY_KERAS" in env(plan)) is legacy
    assert any("tf_keras" in note and "is used" in note for note in plan.notes) is legacy


def test_a_note_says_that_keras_is_newer_than_the_tested_releases(plan_of: Planner) -> None:
    newer = Interpreter("/venv/bin/python", "why", "3.14.0", NEWER)
    (note,) = plan_of({}, interpreters={"local": newer}).notes
    assert note.startswith("Keras 3.16.0.dev2026102704 is newer than 3.15.1")
    assert plan_of(ONE_WORKER, interpreters={"local": newer}).notes == ()


@pytest.mark.parametrize(
    ("sections", "reason"),
    [
        ({"job": {"hooks": "off"}}, "without hooks"),
        ({"job": {"env": {"TFCLUSTER_KERAS3_SHIM": "off"}}}, "TFCLUSTER_KERAS3_SHIM is off"),
    ],
)
def test_a_note_says_why_keras_3_is_not_patched(
    plan_of: Planner, sections: dict[str, Any], reason: str
) -> None:
    (note,) = plan_of(sections).notes
    assert reason in note
    assert "tf_keras 2.21.0 is used" in note
    (requested,) = plan_of(sections | {"keras": {"version": "3"}}).notes
    assert reason in requested
    assert "is used" not in requested


def test_the_switch_in_the_launchers_environment_counts_for_tasks_that_inherit_it(
    plan_of: Planner,
) -> None:
    environ = {"HOME": "/home/ann", "TFCLUSTER_KERAS3_SHIM": "off"}
    plan = plan_of(environ=environ)
    assert env(plan)["TF_USE_LEGACY_KERAS"] == "1"
    (note,) = plan.notes
    assert "TFCLUSTER_KERAS3_SHIM is off" in note
    own = {"job": {"env": {"TFCLUSTER_KERAS3_SHIM": "on"}}}
    assert "TF_USE_LEGACY_KERAS" not in env(plan_of(own, environ=environ))
    python = Interpreter("/usr/bin/python3", "why", "3.11.7", PATCHED)
    hosts = {"cluster": {"worker": ["other-1:2222", "other-2:2222"]}}
    remote = plan_of(hosts, environ=environ, interpreters={"other-1": python, "other-2": python})
    assert {task.node for task in remote.tasks} == {"other-1", "other-2"}
    assert "TF_USE_LEGACY_KERAS" not in env(remote)


def test_a_script_that_imports_keras_gets_a_note_that_it_is_keras_3(plan_of: Planner) -> None:
    imports = frozenset({"tensorflow", "keras.layers"})
    assert plan_of(imports=imports).notes == (), "it is patched"
    (note,) = plan_of({"job": {"hooks": "off"}}, imports=imports).notes
    assert "write `import tf_keras as keras`" in note
    assert "is used" not in note


def test_settings_are_passed_to_tfcluster_workers(plan_of: Planner) -> None:
    sections = {"strategy": {"communication": "RING"}, "keras": {"precision": "mixed_bfloat16"}}
    plan = plan_of(sections)
    assert json.loads(env(plan)["TFCLUSTER_SETTINGS"]) == {
        "strategy": "multi_worker_mirrored",
        "communication": "RING",
        "precision": "mixed_bfloat16",
        "hooks": True,
    }
    assert plan.settings == {"communication": "RING", "precision": "mixed_bfloat16"}
    assert plan_of({"strategy": {"name": "multi_worker_mirrored"}}).settings == {}


def test_the_data_folder_is_that_of_the_host_or_the_default(plan_of: Planner) -> None:
    assert env(plan_of())["TFDS_DATA_DIR"] == "/home/ann/tensorflow_datasets"
    hosts = {"runtime": {"hosts": {"*": {"data_dir": "/mnt/tfds"}}}}
    assert env(plan_of(hosts))["TFDS_DATA_DIR"] == "/mnt/tfds"
    assert "TFDS_DATA_DIR" not in env(plan_of(environ={"TFDS_DATA_DIR": "/own", "HOME": "/h"}))


@pytest.mark.parametrize(
    "source",
    [
        "from orbax import checkpoint",
        "import orbax.checkpoint as ocp",
        "import keras\nkeras.callbacks.OrbaxCheckpoint(folder)",
        "from keras.callbacks import OrbaxCheckpoint",
    ],
)
def test_orbax_on_several_processes_needs_a_shared_folder(plan_of: Planner, source: str) -> None:
    def is_said(strategy: str = "jax", **changes: Any) -> bool:
        sections = {"strategy": {"name": strategy}, **changes}
        notes = plan_of(sections, code=Code() | Code.read(source)).notes
        return any("Orbax" in note and "checkpoints.dir" in note for note in notes)

    assert is_said()
    assert not is_said(cluster={"worker": 1})
    assert not is_said(checkpoints={"dir": "/shared"})
    assert not is_said("multi_worker_mirrored")


def test_prepare_runs_once_per_node_without_tf_config(plan_of: Planner) -> None:
    job = {"env": {"A": "1"}, "prepare": {"module": "data.prepare", "args": ["--all"]}}
    step = plan_of({"job": job}).prepare["local"]
    assert step.argv == ("/venv/bin/python", "-m", "data.prepare", "--all")
    names = {v.name for v in step.env}
    assert {"A", "TFDS_DATA_DIR", "PYTHONPATH"} <= names
    assert not {"TF_CONFIG", "TFCLUSTER_TASK"} & names
    assert "TF_CONFIG" in step.unset
    assert plan_of().prepare == {}


def test_other_hosts_are_planned_without_being_reached(plan_of: Planner) -> None:
    cluster = {"worker": ["192.168.7.1:2222", "10.0.0.2:2222"]}
    plan = plan_of({"cluster": cluster}, environ={"OMP_NUM_THREADS": "9", "HOME": "/home/ann"})
    assert [(n.name, n.backend) for n in plan.nodes] == [("local", "local"), ("10.0.0.2", "ssh")]
    assert plan.task(TaskId("worker", 1)).command.argv[0] == "python3"
    assert "TFDS_DATA_DIR" not in env(plan, "worker:1")


def test_folders_of_the_spec_are_relative_to_the_spec(plan_of: Planner) -> None:
    plan = plan_of({"checkpoints": {"dir": "gs://bucket/x", "to": "../results"}})
    assert plan.checkpoints.dir == "gs://bucket/x"
    assert plan.checkpoints.to == "/home/ann/project/results"


@pytest.mark.parametrize(
    ("given", "typed", "passed"),
    [
        ([], [], ()),
        (["--epochs", "3"], [], ()),
        (["--dataset", "mnist", "--epochs", "3"], [], ("--dataset", "mnist")),
        (["--dataset", "mnist"], ["--dataset", "cifar10"], ("--dataset", "cifar10")),
        (["--data-dir=/d"], ["--dataset=mnist"], ("--data-dir=/d", "--dataset=mnist")),
    ],
)
def test_the_prepare_step_of_an_example_job_gets_its_data_options(
    spec_of: Callable[[dict[str, Any]], ClusterSpec],
    machine: PlanContext,
    given: list[str],
    typed: list[str],
    passed: tuple[str, ...],
) -> None:
    prepare = {"module": "tfcluster_workers.data.prepare"}
    spec = spec_of({"job": {"args": given, "prepare": prepare}})
    command = make_plan(spec, on(machine, spec), args=typed).prepare["local"]
    assert command.argv == ("/venv/bin/python", "-m", prepare["module"], *passed)


def test_files_with_secrets_are_not_sent_to_other_hosts(
    machine: PlanContext, spec_of: Callable[[dict[str, Any]], ClusterSpec]
) -> None:
    context = replace(machine, environ={"HOME": "/home/ann", "API_KEY": "exported"})

    def withheld(**job: Any) -> tuple[str, ...]:
        spec = spec_of({"job": job})
        return make_plan(spec, on(context, spec), spec_path="sub/spec.json").withheld

    assert withheld(env={"SEED": "1", "API_KEY": None}) == ()
    assert withheld(env_file=".env") == (f"{SPEC_DIR}/.env",)
    assert withheld(env={"API_KEY": "written"}) == (f"{SPEC_DIR}/spec.json",)
    assert withheld(env={"API_KEY": "written"}, not_secret=["API_KEY"]) == ()


def test_the_users_tf_use_legacy_keras_is_kept(plan_of: Planner) -> None:
    plan = plan_of({"job": {"env": {"TF_USE_LEGACY_KERAS": "0"}}})
    assert env(plan)["TF_USE_LEGACY_KERAS"] == "0"


def test_another_prepare_step_gets_its_own_arguments_only(plan_of: Planner) -> None:
    prepare = {"module": "data.prepare", "args": ["--all"]}
    plan = plan_of({"job": {"args": ["--dataset", "mnist"], "prepare": prepare}})
    assert plan.prepare["local"].argv[2:] == ("data.prepare", "--all")
