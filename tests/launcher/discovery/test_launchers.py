"""`join` and `up` inside other launchers: recorded environments, and the tasks that follow.

Open MPI's variables were recorded with its mpirun 4.1.4, and Slurm's are tested in a real cluster
(`tests.integration.slurm`). The others follow the documentation named beside each; neither Flux,
PBS, LSF, SageMaker, Vertex AI nor Azure could be run here.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned, plan_own_part
from tfcluster.errors import SetupError, SpecError, TfclusterError

NAMES = {"gpu1": "198.51.100.7", "gpu2": "127.0.1.1", "198.51.100.8": "127.0.1.1"}
"""The address of each host; this machine is gpu2."""
TF_CONFIG: dict[str, Any] = {
    "cluster": {
        "ps": ["dist-mnist-ps-0.kubeflow.svc:2222"],
        "worker": [
            "dist-mnist-worker-0.kubeflow.svc:2222",
            "dist-mnist-worker-1.kubeflow.svc:2222",
        ],
        "chief": ["dist-mnist-chief-0.kubeflow.svc:2222"],
    },
    "task": {"type": "worker", "index": 1},
    "environment": "cloud",
}
"""https://www.kubeflow.org/docs/components/trainer/legacy-v1/user-guides/tensorflow/"""
CLUSTER_SPEC: dict[str, Any] = {
    "cluster": {
        "workerpool0": ["cmle-training-workerpool0-ab-0:2222"],
        "workerpool1": [
            "cmle-training-workerpool1-ab-0:2222",
            "cmle-training-workerpool1-ab-1:2222",
        ],
    },
    "environment": "cloud",
    "task": {"type": "workerpool1", "index": 0, "trial": ""},
}
"""https://docs.cloud.google.com/vertex-ai/docs/training/distributed-training, "CLUSTER_SPEC";
the values are those in tests of google-deepmind/xmanager."""
BATCH_AI = {
    "AZ_BATCHAI_WORKER_HOSTS": "10.0.0.4:2222,10.0.0.5:2222",
    "AZ_BATCHAI_TASK_INDEX": "1",
}
"""The variables of https://learn.microsoft.com/azure/batch-ai/migrate-to-azure-ml (retired)."""
SAGEMAKER = {"SM_HOSTS": '["algo-1","algo-2"]', "SM_CURRENT_HOST": "algo-2"}
"""https://github.com/aws/sagemaker-training-toolkit/blob/master/ENVIRONMENT_VARIABLES.md"""
AZURE = {"AZ_BATCH_HOST_LIST": "198.51.100.7,198.51.100.8"}
"""https://learn.microsoft.com/azure/batch/batch-compute-node-environment-variables"""
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_NODE_RANK": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "OMPI_MCA_orte_num_nodes": "1",
    "PMIX_RANK": "1",
}
"""A part of what mpirun 4.1.4 sets, recorded; documented in
https://docs.open-mpi.org/en/v5.0.x/tuning-apps/environment-var.html"""
FLUX = {"FLUX_URI": "local:///run/flux/local", "FLUX_JOB_ID": "ƒ2Ct3Hz7"}
FLUX |= {"FLUX_JOB_SIZE": "4", "FLUX_JOB_NNODES": "2", "FLUX_TASK_RANK": "3"}
FLUX |= {"FLUX_TASK_LOCAL_ID": "1"}
"""https://flux-framework.readthedocs.io/projects/flux-core/en/latest/man7/flux-environment.html"""
PBS = {"PBS_JOBID": "1233.pbs", "PBS_NODEFILE": "HOSTS", "PBS_ENVIRONMENT": "PBS_BATCH"}
"""The man pages of qsub and pbs_resources of OpenPBS: a host name on a line, once per mpiproc."""
LSF = {"LSB_JOBID": "99", "LSB_DJOB_HOSTFILE": "HOSTS", "LSB_MCPU_HOSTS": "gpu1 2 gpu2 2"}
"""https://www.ibm.com/docs/en/spectrum-lsf/10.1.0, "Environment variables set for job execution":
a host name on a line, once per slot."""
ON_TWO_HOSTS = {**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "3"}
HERE = {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}
FOUR = {"worker": ["gpu1:2222", "gpu1:2223", "gpu2:2222", "gpu2:2223"]}
THREE_AND_ONE = {"worker": [*(f"gpu1:{port}" for port in (2222, 2223, 2224)), "gpu2:2222"]}
UNEVEN = {"PBS_NODEFILE": "UNEVEN", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
UNEVEN |= {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}

Join = Callable[..., tuple[dict[str, list[str]], list[str]]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, a host file, and a stand-in for the command of Flux."""

    def look_up(host: str, *_: Any) -> list[tuple[Any, ...]]:
        if host not in NAMES:
            raise socket.gaierror(f"{host} is unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (NAMES[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    (tmp_path / "train.py").write_text("")
    (tmp_path / "HOSTS").write_text("gpu1\ngpu1\ngpu2\ngpu2\n")
    (tmp_path / "UNEVEN").write_text("gpu1\ngpu1\ngpu2\ngpu1\n")
    flux = tmp_path / "flux"
    flux.write_text('#!/bin/sh\ntest "$*" = "hostlist --expand local" && echo gpu1 gpu2\n')
    flux.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path


def write(folder: Path, cluster: Any, **sections: Any) -> str:
    written = {} if cluster is None else {"cluster": cluster}
    (folder / "s.json").write_text(
        json.dumps({"job": {"script": "train.py"}, **written, **sections})
    )
    return str(folder / "s.json")


def in_folder(folder: Path, environ: Mapping[str, Any]) -> dict[str, str]:
    """Return variables as strings, with the path of the host file."""
    text = {name: v if isinstance(v, str) else json.dumps(v) for name, v in environ.items()}
    path = {"PATH": f"{folder}:/usr/bin:/bin"}
    files = {name: str(folder / v) for name, v in text.items() if v in ("HOSTS", "UNEVEN")}
    return path | text | files


def addresses_of(planned: Planned) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for task in planned.plan.tasks:
        found.setdefault(task.id.job, []).append(task.address)
    return found


@pytest.fixture
def join(folder: Path) -> Join:
    def join(environ: Mapping[str, Any], cluster: Any = None, **sections: Any) -> Any:
        spec = write(folder, cluster, **sections)
        planned, own = plan_own_part(spec, environ=in_folder(folder, environ))
        return addresses_of(planned), [str(task) for task in own]

    return join


def test_tf_config_and_platforms_with_roles_give_the_cluster_and_the_own_task(join: Join) -> None:
    assert join({"TF_CONFIG": TF_CONFIG}) == (TF_CONFIG["cluster"], ["worker:1"])
    cluster = {"chief": 1, "worker": 2, "ps": 1, "evaluator": 1}
    shared = {"checkpoints": {"dir": "/mnt"}}
    assert join({"TF_CONFIG": TF_CONFIG}, cluster, **shared)[1] == ["worker:1"]
    old = {
        "cluster": {"master": ["m:1"], "worker": ["w:1"]},
        "task": {"type": "master", "index": 0},
    }
    assert join({"TF_CONFIG": old}) == ({"chief": ["m:1"], "worker": ["w:1"]}, ["chief:0"])
    found, own = join(
        {"TF_CONFIG": {**TF_CONFIG, "task": {"type": "evaluator", "index": 0}}}, **shared
    )
    assert found == {**TF_CONFIG["cluster"], "evaluator": [f"{socket.gethostname()}:2222"]}
    assert own == ["evaluator:0"]
    pools = CLUSTER_SPEC["cluster"]
    wanted = {"chief": pools["workerpool0"], "worker": pools["workerpool1"]}
    assert join({"CLUSTER_SPEC": CLUSTER_SPEC}) == (wanted, ["worker:0"])
    workers = BATCH_AI["AZ_BATCHAI_WORKER_HOSTS"].split(",")
    assert join(BATCH_AI, {"worker": 2}) == ({"worker": workers}, ["worker:1"])


@pytest.mark.parametrize(
    ("environ", "cluster", "addresses", "own"),
    [
        (SAGEMAKER, None, {"worker": ["algo-1:2222", "algo-2:2222"]}, ["worker:1"]),
        (
            SAGEMAKER,
            {"chief": 1, "worker": 2, "evaluator": 1},
            {
                "chief": ["algo-1:2222"],
                "worker": ["algo-1:2223", "algo-2:2222"],
                "evaluator": ["algo-1:2224"],
            },
            ["worker:1"],
        ),
        (
            SAGEMAKER,
            {"worker": 1, "data_worker": 1, "data_dispatcher": 1},
            {
                "worker": ["algo-1:2222"],
                "data_worker": ["algo-2:2222"],
                "data_dispatcher": ["algo-1:2223"],
            },
            ["data_worker:0"],
        ),
        (
            SAGEMAKER,
            {"worker": 2, "data_worker": 1, "data_dispatcher": 1},
            {
                "worker": ["algo-1:2222", "algo-2:2222"],
                "data_worker": ["algo-1:2223"],
                "data_dispatcher": ["algo-1:2224"],
            },
            ["worker:1"],
        ),
        (
            FLUX,
            {"worker": 2, "data_worker": 1, "data_dispatcher": 1},
            {
                "worker": ["gpu1:2222", "gpu2:2222"],
                "data_worker": ["gpu1:2223"],
                "data_dispatcher": ["gpu2:2223"],
            },
            ["data_dispatcher:0"],
        ),
        (AZURE, None, {"worker": ["198.51.100.7:2222", "198.51.100.8:2222"]}, ["worker:1"]),
        (OPEN_MPI, None, {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]}, ["worker:1"]),
        (
            OPEN_MPI | PBS,
            {"worker": 2},
            {"worker": ["127.0.0.1:2222", "127.0.0.1:2223"]},
            ["worker:1"],
        ),
        (PBS, None, {"worker": ["gpu1:2222", "gpu2:2222"]}, ["worker:1"]),
        (
            PBS,
            {"worker": 3},
            {"worker": ["gpu1:2222", "gpu1:2223", "gpu2:2222"]},
            ["worker:2"],
        ),
        (LSF, {"worker": 4}, FOUR, ["worker:2", "worker:3"]),
        (FLUX, {"worker": 4}, FOUR, ["worker:3"]),
        (FLUX, None, FOUR, ["worker:3"]),
        (ON_TWO_HOSTS | PBS, {"worker": 4}, FOUR, ["worker:3"]),
        (ON_TWO_HOSTS | LSF, None, FOUR, ["worker:3"]),
        (ON_TWO_HOSTS | UNEVEN, None, THREE_AND_ONE, ["worker:3"]),
    ],
)
def test_hosts_of_a_launcher_share_the_tasks_and_each_process_finds_its_own(
    join: Join, environ: Mapping[str, str], cluster: Any, addresses: Any, own: list[str]
) -> None:
    shared = {"checkpoints": {"dir": "/mnt"}} if cluster and "evaluator" in cluster else {}
    assert join(environ, cluster, **shared) == (addresses, own)


def test_ports_come_from_the_range_of_the_spec(join: Join) -> None:
    found, _ = join(OPEN_MPI, runtime={"ports": "61001-61400"})
    assert found == {"worker": ["127.0.0.1:61001", "127.0.0.1:61002"]}


def test_addresses_of_the_spec_win_and_a_rank_chooses_among_those_of_this_machine(
    join: Join,
) -> None:
    addresses = {"worker": ["gpu1:5000", "gpu2:5000", "gpu2:5001"]}
    environ = {"TF_CONFIG": "{", "PBS_NODEFILE": "/none"}
    assert join(environ, addresses) == (addresses, ["worker:1", "worker:2"])
    ranks = {"SLURM_STEP_NUM_TASKS": "3", "SLURM_LOCALID": "1"}
    assert join(environ | ranks, addresses) == (addresses, ["worker:2"])
    one_each = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0"}
    assert join(environ | one_each, addresses) == (addresses, ["worker:1", "worker:2"])


@pytest.mark.parametrize(
    ("environ", "cluster", "said"),
    [
        ({"TF_CONFIG": "{"}, None, "TF_CONFIG is '{': not JSON"),
        ({"TF_CONFIG": {"cluster": ["a:1"]}}, None, 'cluster is not {"worker": ["host:port", …]}'),
        ({"TF_CONFIG": {"cluster": {"worker": ["a:1"]}}}, None, 'it has no "task"'),
        (
            {"TF_CONFIG": {**TF_CONFIG, "task": {"type": "worker", "index": 2}}},
            None,
            "its cluster has no worker:2",
        ),
        (
            {"TF_CONFIG": TF_CONFIG},
            {"worker": 4},
            "the spec has the tasks 4 worker, and the launcher",
        ),
        ({"CLUSTER_SPEC": {**CLUSTER_SPEC, "task": {}}}, None, "CLUSTER_SPEC is"),
        ({**BATCH_AI, "AZ_BATCHAI_TASK_INDEX": "2"}, None, "it has no worker:2"),
        (
            {**SAGEMAKER, "SM_CURRENT_HOST": "algo-3"},
            None,
            "SM_CURRENT_HOST is 'algo-3': SM_HOSTS has",
        ),
        ({**SAGEMAKER, "SM_HOSTS": "algo-1"}, None, "SM_HOSTS is 'algo-1': not JSON"),
        ({"AZ_BATCH_HOST_LIST": "10.0.0.4 10.0.0.5"}, None, "is not a host name"),
        (ON_TWO_HOSTS, None, "Open MPI does not say where the others are"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_SIZE": "two"}, None, "'two': not a number"),
        (OPEN_MPI, {"worker": 3}, "OMPI_COMM_WORLD_SIZE is 2, and the tasks of the spec are 3"),
        (
            {**ON_TWO_HOSTS, **PBS, "OMPI_COMM_WORLD_LOCAL_RANK": "2"},
            None,
            "process 2 of this host, counted from 0, and the tasks here are 2",
        ),
        ({"PBS_NODEFILE": "/none/nodes"}, None, "PBS_NODEFILE is '/none/nodes': No such file"),
        (
            {"LSB_DJOB_HOSTFILE": "/dev/null"},
            None,
            "LSB_DJOB_HOSTFILE is '/dev/null': it is not a regular file",
        ),
        ({"TF_CONFIG": "[" * 100_000}, None, "not JSON"),
        (PBS, {"worker": 1}, "the tasks of the spec are 1, fewer than the 2 hosts"),
        (
            {"FLUX_URI": "local:///x", "PATH": "/none"},
            None,
            "`flux hostlist --expand local` failed",
        ),
    ],
)
def test_a_value_that_cannot_be_used_is_named_with_what_to_do(
    join: Join, environ: Mapping[str, Any], cluster: Any, said: str
) -> None:
    with pytest.raises((SetupError, SpecError)) as caught:
        join(environ, cluster)
    assert said in str(caught.value)
    assert all(problem.fix for problem in getattr(caught.value, "problems", [caught.value]))


def test_without_a_launcher_or_for_one_machine_numbers_of_tasks_have_no_ports(join: Join) -> None:
    for environ in ({}, {"TF_CONFIG": {"cluster": {}, "task": {"type": "chief", "index": 0}}}):
        assert join(environ, {"worker": 1}) == ({"worker": ["127.0.0.1:0"]}, ["worker:0"])
    with pytest.raises(TfclusterError, match="cluster"):
        join({})


@pytest.mark.parametrize("environ", [PBS, LSF, FLUX], ids=["PBS", "LSF", "Flux"])
def test_up_uses_the_nodes_of_a_scheduler_without_a_backend_through_ssh(
    folder: Path, environ: dict[str, str]
) -> None:
    def up(cluster: Any, **sections: Any) -> Planned:
        spec = write(folder, cluster, **sections)
        return planning.plan(spec, environ=in_folder(folder, environ | {"TF_CONFIG": "{"}))

    planned = up({"worker": 3})
    assert [(node.name, node.backend) for node in planned.plan.nodes] == [
        ("gpu1", "ssh"),
        ("local", "local"),
    ]
    assert addresses_of(planned) == {"worker": ["gpu1:0", "gpu1:0", "gpu2:0"]}
    assert "the tasks run on the hosts of" in planned.plan.notes[0]
    assert planned.spec_to_keep()["cluster"] == {"worker": 3}, "a later run has other nodes"
    for kept in ({"backend": "local"}, {"network": {"rate": "1gbit"}}):
        assert "gpu1" not in [node.name for node in up({"worker": 2}, runtime=kept).plan.nodes]
    assert addresses_of(up({"worker": ["gpu3:0"]})) == {"worker": ["gpu3:0"]}
