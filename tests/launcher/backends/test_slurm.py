"""The backend `slurm` without a cluster: its plan, its commands, its batch script."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from tests.documentation import ROOT
from tests.launcher.conftest import plan_of

from tfcluster import kinds
from tfcluster.backends import jobs
from tfcluster.backends.base import RunContext
from tfcluster.backends.jobs import Submission
from tfcluster.backends.relayed import STARTER, Unreached
from tfcluster.backends.slurm import KIND, slurm_jobs, slurm_nodes
from tfcluster.backends.slurm.batch_script import format_script, job_options
from tfcluster.backends.slurm.slurm_commands import clean_environ
from tfcluster.backends.slurm.slurm_nodes import SlurmNodes
from tfcluster.discovery import planning
from tfcluster.errors import SetupError, SpecError
from tfcluster.plans.plan import NodePlan
from tfcluster.preflight import rules
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec import HostChoice, PlanOptions
from tfcluster.spec.sections import Runtime, Slurm

SPEC = str(ROOT / "cluster_specs/slurm-2n.json")
IN_JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}


@pytest.mark.parametrize(
    ("backend", "hosts", "nodes"),
    [
        ("slurm", None, ["node-0", "node-1"]),
        ("local", None, ["local"]),
        ("docker", None, ["worker-0", "worker-1"]),
        ("ssh", "gpu1,gpu2", ["gpu1", "gpu2"]),
    ],
)
def test_the_spec_for_slurm_is_planned_for_every_backend(
    backend: str, hosts: str | None, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    options = {"--backend": ("runtime.backend", backend)}
    planned = planning.plan(SPEC, PlanOptions(fields=options, hosts=HostChoice(hosts)))
    assert [node.name for node in planned.plan.nodes] == nodes
    assert {node.backend for node in planned.plan.nodes} == {backend}
    assert [str(task.id) for task in planned.plan.tasks] == ["worker:0", "worker:1"]


@pytest.mark.parametrize(
    ("slurm", "environ", "said"),
    [
        ({"time": "1h", "tasks_per_node": 2, "nodes": 3}, IN_JOB, "nodes, time have no effect"),
        ({"partition": "gpu"}, IN_JOB, "partition has no effect; --submit makes a job of its own"),
        ({"tasks_per_node": 2}, IN_JOB, ""),
        ({"time": "1h"}, {}, ""),
    ],
)
def test_settings_that_an_allocation_overrules_are_named(
    slurm: dict[str, Any], environ: dict[str, str], said: str
) -> None:
    runtime = Runtime.model_validate({"backend": "slurm", "slurm": slurm})
    assert said in (found := KIND.explain_unused(runtime, environ))
    assert bool(found) == bool(said)


def test_a_run_that_is_submitted_from_an_allocation_inherits_nothing_of_it() -> None:
    kept = {"SLURM_CONF": "/etc/slurm.conf", "SBATCH_ACCOUNT": "vision", "HOME": "/home/ann"}
    environ = {**IN_JOB, **kept, "SLURM_STEP_NUM_TASKS": "8", "PMI_RANK": "0"}
    assert kinds.leave_allocation(environ) == "slurm"
    assert environ == kept
    assert kinds.leave_allocation(environ) is None


def test_words_before_the_python_follow_the_options_of_srun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So options of srun (Pyxis) can be among them."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("HOME", "/home/ann")
    node = NodePlan("node-0", "slurm", None, "/", destination="n1", wrap=("--x=y", "~/wrap"))
    argv = SlurmNodes.argv(node)
    start = argv.index("--x=y")
    assert argv[start - 1].startswith("--")
    assert argv[start:] == ["--x=y", "/home/ann/wrap", "python3", "-I", "-S", "-c", STARTER]


def test_the_command_for_files_names_the_node_as_slurm_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def find_nodes(environ: object) -> dict[str, str]:
        return {"n7": "10.0.0.7"}

    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(slurm_nodes, "find_nodes", find_nodes)

    async def use() -> str:
        planned = [NodePlan("node-0", "slurm", None, "/")]
        async with SlurmNodes(planned, RunContext("r-1", tmp_path)) as nodes:
            return nodes.fetch_command("node-0", PurePosixPath("/the re; id #"))

    wanted = "srun --nodes=1 --nodelist=n7 tar -C '/the re; id #' -c . | tar -x"
    assert asyncio.run(use()) == wanted


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("srun: cluster configuration lacks support for cpu binding", ""),
        ("srun: error: n2: task 0: Exited with exit code 76", ""),
        ("srun: error: Node failure on n2", "Node failure on n2"),
        ("ModuleNotFoundError: No module named 'x'", "ModuleNotFoundError: No module named 'x'"),
    ],
)
def test_lines_of_srun_that_explain_nothing_are_left_out(line: str, shown: str) -> None:
    assert SlurmNodes.clean(line) == shown


@pytest.mark.parametrize(
    ("stderr", "is_over"),
    [
        ("Slurm job 1 has expired", True),
        ("Unable to create step for job 1: Job/step already completing or completed", True),
        ("Node failure on n2", False),
        ("Unable to contact slurm controller (connect failure)", False),
    ],
)
def test_only_the_end_of_the_job_proves_that_nothing_of_the_run_lives(
    stderr: str, is_over: bool
) -> None:
    assert SlurmNodes.proves_end(stderr) == is_over


def test_only_what_srun_has_written_decides_the_fix() -> None:
    node = NodePlan("node-0", "slurm", None, "/", destination="n7")
    assert "is down" in SlurmNodes.fix(node, Unreached("it ended", "srun: error: n7 is DOWN"))
    assert SlurmNodes.fix(node, Unreached("not found")) == "see `scontrol show node n7`"


def test_a_python_inside_the_words_is_not_looked_for_on_this_machine(tmp_path: Path) -> None:
    spec = tmp_path / "spec.json"
    runtime = {"backend": "slurm", "wrap": ["apptainer", "exec", "tf.sif"], "python": "/opt/tf/py"}
    job = {"module": "tfcluster_workers.jobs.keras_mnist"}
    spec.write_text(json.dumps({"cluster": {"worker": 1}, "job": job, "runtime": runtime}))
    planned = planning.plan(str(spec))
    (node,) = planned.plan.nodes
    assert (node.python, node.wrap) == ("/opt/tf/py", ("apptainer", "exec", "tf.sif"))
    assert node.interpreter is not None
    assert node.interpreter.why == "in apptainer exec tf.sif"
    assert not [*rules.find_obstacles(planned)]


def submission(folder: Path, *extra: str) -> Submission:
    runtime = Runtime.model_construct(slurm=Slurm.model_construct(extra=extra))
    return replace(jobs.submission_of(plan_of(), runtime, folder), argv=("echo", "it's", "$HOME"))


ROLES: dict[str, Any] = {
    "cluster": {"chief": 1, "worker": 3, "ps": 1, "evaluator": 1},
    "job": {"command": ["true"]},
    "checkpoints": {"dir": "/shared"},
    "runtime": {
        "backend": "slurm",
        "slurm": {"partition": "gpu", "gpus_per_task": 4, "time": "1h", "extra": ["--exclusive"]},
        "roles": {
            "worker": {"slurm": {"tasks_per_node": 2}},
            "ps": {"slurm": {"partition": "cpu", "gpus_per_task": 0, "extra": []}},
        },
    },
}


def test_each_role_with_its_own_settings_is_a_component_of_a_heterogeneous_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in IN_JOB:
        monkeypatch.delenv(name, raising=False)
    planned = planning.plan(ROLES)
    nodes = {str(task.id): task.node for task in planned.plan.tasks}
    workers = {f"worker:{number}": f"worker-node-{number // 2}" for number in range(3)}
    others = {"chief:0": "node-0", "evaluator:0": "node-0", "ps:0": "ps-node-0"}
    assert nodes == workers | others
    job = jobs.submission_of(planned.plan, planned.spec.runtime, tmp_path / "r")
    words = job_options(job)
    parts = " ".join(words).split(" : ")
    shared = ["--time=60", "--requeue"]
    for part, wanted in zip(
        parts,
        (
            ["--partition=gpu", "--nodes=1", "--ntasks-per-node=2", "--gpus-per-node=8"],
            ["--partition=gpu", "--nodes=2", "--ntasks-per-node=2", "--gpus-per-node=8"],
            ["--partition=cpu", "--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=0"],
        ),
        strict=True,
    ):
        assert {*wanted, *shared} <= {*part.split()}
    assert ["--exclusive" in part for part in parts] == [True, True, False]
    assert ["--signal" in part for part in parts] == [True, False, False]
    names = [word for word in words if word.startswith("--job-name")]
    assert names == ["--job-name=r", "--job-name=r+worker", "--job-name=r+ps"]
    script = format_script(job).splitlines()
    assert script.count("#SBATCH hetjob") == 2
    assert planned.plan.roles["worker"] == "tasks_per_node 2"


@pytest.mark.parametrize(
    ("more", "nodes"),
    [
        ({"SLURM_HET_SIZE": "3"}, ["node-0", "worker-node-0", "worker-node-1", "ps-node-0"]),
        ({"SLURM_JOB_NUM_NODES": "2"}, ["node-0", "node-1"]),
    ],
)
def test_roles_count_in_a_heterogeneous_allocation_only(
    more: dict[str, str], nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**IN_JOB, **more}.items():
        monkeypatch.setenv(name, value)
    planned = planning.plan(ROLES)
    assert [node.name for node in planned.plan.nodes] == nodes
    unused = "runtime.roles have no effect" in " ".join(planned.plan.notes)
    assert unused == ("SLURM_HET_SIZE" not in more)
    assert bool(planned.plan.roles) != unused


def test_the_only_role_of_a_spec_keeps_its_settings_in_its_job_which_has_one_component(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"worker": {"slurm": {"tasks_per_node": 2, "gpus_per_task": 1}}}
    runtime = {"backend": "slurm", "slurm": {"tasks_per_node": 1}, "roles": own}
    for name, value in IN_JOB.items():
        monkeypatch.setenv(name, value)
    plan = planning.plan({**ROLES, "cluster": {"worker": 4}, "runtime": runtime}).plan
    assert [node.name for node in plan.nodes] == ["worker-node-0", "worker-node-1"]
    assert "TFCLUSTER_GPUS" in {var.name for var in plan.tasks[0].command.env}
    pods = {"worker": {"kubernetes": {"image": "mine"}}}
    runtime = {"backend": "slurm", "roles": pods}
    plan = planning.plan({**ROLES, "cluster": {"worker": 4}, "runtime": runtime}).plan
    assert "runtime.roles" not in " ".join(plan.notes)


def test_no_gpu_is_requested_for_the_data_service(tmp_path: Path) -> None:
    cluster = {"worker": 4, "data_worker": 2, "data_dispatcher": 1}
    slurm = {"tasks_per_node": 4, "gpus_per_task": 1}
    roles = {"data_worker": {"slurm": {"tasks_per_node": 2}}}
    runtime = {"backend": "slurm", "slurm": slurm, "roles": roles}
    planned = planning.plan({**ROLES, "cluster": cluster, "runtime": runtime})
    job = jobs.submission_of(planned.plan, planned.spec.runtime, tmp_path / "r")
    gpus = [word for word in job_options(job) if word.startswith("--gpus-per-node")]
    assert gpus == ["--gpus-per-node=4", "--gpus-per-node=0"]


@pytest.mark.parametrize(
    ("cluster", "slurm", "nodes"),
    [
        ({"worker": 2, "data_worker": 1, "data_dispatcher": 1}, {"nodes": 2}, [0, 1, 0, 0]),
        ({"chief": 1, "worker": 3, "ps": 2}, {"nodes": 2}, [0, 0, 1, 1, 0, 1]),
        ({"worker": 4, "data_worker": 1, "data_dispatcher": 1}, {"nodes": 4}, [0, 1, 2, 3, 0, 0]),
        ({"chief": 1, "worker": 4, "ps": 1}, {"tasks_per_node": 4}, [0, 0, 0, 1, 1, 0]),
        ({"worker": 8}, {"tasks_per_node": 4}, [0, 0, 0, 0, 1, 1, 1, 1]),
        ({"worker": 5}, {"nodes": 4}, [0, 0, 1, 2, 3]),
        ({"worker": 2}, {"nodes": 4}, [0, 1]),
    ],
)
@pytest.mark.parametrize("is_allocated", [False, True])
def test_each_role_is_spread_over_all_nodes_of_its_job(
    cluster: dict[str, int],
    slurm: dict[str, int],
    nodes: list[int],
    is_allocated: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in IN_JOB:
        monkeypatch.delenv(name, raising=False)
    if is_allocated and "nodes" in slurm:
        for name, value in {**IN_JOB, "SLURM_JOB_NUM_NODES": str(slurm["nodes"])}.items():
            monkeypatch.setenv(name, value)
        slurm = {}
    runtime = {"backend": "slurm", "slurm": slurm}
    plan = planning.plan({**ROLES, "cluster": cluster, "runtime": runtime}).plan
    assert [task.node for task in plan.tasks] == [f"node-{number}" for number in nodes]
    assert "no effect" not in " ".join(plan.notes)


def test_nodes_of_the_whole_job_are_refused_beside_roles() -> None:
    value = {**ROLES, "runtime": {**ROLES["runtime"], "slurm": {"nodes": 4}}}
    with pytest.raises(SpecError, match="nodes counts those of the whole job"):
        planning.plan(value)
    value = {**ROLES, "cluster": {"worker": 2}}
    with pytest.raises(SpecError, match="the cluster has no ps"):
        planning.plan(value)


def test_a_step_on_a_component_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    argv = SlurmNodes.argv(NodePlan("ps-node-0", "slurm", None, "/", destination="n3+1"))
    assert {"--jobid=7", "--nodelist=n3", "--het-group=1"} <= {*argv}


def test_a_folder_with_any_name_is_only_a_word_of_the_script(tmp_path: Path) -> None:
    folder = tmp_path / """o'd "d%j $(touch x) `y`"""
    script = format_script(submission(folder))
    start = ["sh", "-c", script]
    unseen = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert unseen.returncode == 3
    assert f"does not see {folder}: it must be on a file system" in unseen.stderr
    folder.mkdir()
    (folder / "state.json").touch()
    done = subprocess.run(start, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "it's $HOME\n"
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
    log = str(folder).replace("%", "%%")
    written = [shlex.split(line)[1] for line in script.splitlines() if line.startswith("#SBATCH")]
    assert f"--output={log}/coordinator.log" in written


def test_a_warning_that_comes_before_the_coordinator_is_ready_does_not_kill_the_job(
    tmp_path: Path,
) -> None:
    (tmp_path / "state.json").touch()
    job = replace(submission(tmp_path), argv=("sh", "-c", "kill -USR1 $$; echo alive"))
    done = subprocess.run(
        ["sh", "-c", format_script(job)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "alive\n"


def test_the_users_lines_come_before_the_coordinator_and_may_fail(tmp_path: Path) -> None:
    (tmp_path / "state.json").touch()

    def run(*setup: str) -> subprocess.CompletedProcess[str]:
        settings = Slurm.model_construct(setup=setup, python="echo")
        job = submission(tmp_path)
        job = replace(job, runtime=job.runtime.model_copy(update={"slurm": settings}))
        script = format_script(job)
        assert script.startswith("#!/bin/bash -l\n#SBATCH ")
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)

    done = run("load() { A=$1; }", 'load "it\'s"; export A', "cd /", "true  # nothing")
    assert (done.returncode, done.stdout) == (0, "it's $HOME\n")
    done = run("true", "module load 'no such'")
    assert (done.returncode, done.stdout) == (3, "")
    message = "tfcluster: runtime.slurm.setup fails: module load 'no such'\n"
    assert done.stderr.endswith(message)
    failure = RunPaths(tmp_path).script_failure
    assert failure.read_text() == message
    run("true")
    assert not failure.exists(), "the coordinator of a job that was queued again has started"


@pytest.mark.parametrize(
    ("slurm", "is_said"),
    [
        ({}, True),
        ({"extra": ["--constraint=a100"]}, True),
        ({"cpus_per_task": 4}, False),
        ({"extra": ["--exclusive"]}, False),
        ({"extra": ["-c8"]}, False),
        ({"extra": ["--cpus-per-gpu=8"]}, False),
    ],
)
def test_one_core_for_each_task_is_said(
    slurm: dict[str, Any], tmp_path: Path, *, is_said: bool
) -> None:
    runtime = Runtime.model_validate({"backend": "slurm", "slurm": slurm})
    job = jobs.submission_of(plan_of(), runtime, tmp_path)
    assert bool(slurm_jobs.hints(job)) == is_said


def test_the_options_by_which_a_run_is_found_count_whatever_the_user_adds(tmp_path: Path) -> None:
    options = job_options(submission(tmp_path, "--comment=mine", "--job-name=mine"))
    its = [word for word in options if word.startswith(("--comment", "--job-name"))]
    assert its[-2:] == [f"--job-name={tmp_path.name}", f"--comment=tfcluster:{tmp_path}"]


@pytest.mark.parametrize(
    "option",
    ["--array=1-3", "--arr=1", "-a1", "-W", "--wait", "--wrap=id", "--test-only", "-p\nid"],
)
def test_options_with_which_the_run_would_not_start_are_refused(
    option: str, tmp_path: Path
) -> None:
    spec = tmp_path / "spec.json"
    job = {"module": "tfcluster_workers.jobs.keras_mnist"}
    runtime = {"backend": "slurm", "slurm": {"extra": [option]}}
    spec.write_text(json.dumps({"cluster": {"worker": 1}, "job": job, "runtime": runtime}))
    with pytest.raises(SpecError):
        planning.plan(str(spec))


def test_variables_that_would_make_another_job_of_it_are_not_passed_on() -> None:
    theirs = {"SBATCH_ARRAY_INX": "0-9", "SBATCH_WAIT": "1", "SCANCEL_INTERACTIVE": "true"}
    assert clean_environ({**theirs, "SBATCH_EXPORT": "ALL"}).keys() == {
        "SBATCH_EXPORT",
        "SLURM_TIME_FORMAT",
    }


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "srun starts 4 processes"),
        (
            {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "1", "SLURM_PTY_PORT": "1"},
            "srun starts 4 processes",
        ),
        ({"SLURM_JOB_NODELIST": None}, "SLURM_JOB_NODELIST is not"),
    ],
)
def test_a_coordinator_starts_once_in_a_job_of_equal_nodes(
    more: dict[str, str | None], says: str
) -> None:
    environ = {name: value for name, value in {**IN_JOB, **more}.items() if value is not None}
    with pytest.raises(SetupError, match=says):
        slurm_jobs.own(environ)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0", "SLURM_PTY_PORT": "1"},
    ],
)
def test_a_shell_in_a_job_may_start_it(more: dict[str, str]) -> None:
    assert slurm_jobs.own({**IN_JOB, **more}) == ("7", 0)
