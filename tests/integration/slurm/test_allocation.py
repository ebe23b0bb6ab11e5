"""`up` within an allocation of Slurm: its nodes are used, and none of its dangers passes unsaid."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from tests.integration.gang import GREET
from tests.integration.hosts.office import Run, one, until
from tests.lab.slurm import SlurmCluster
from tests.lab.slurm_files import USERS

from .conftest import own_cluster
from .site import Site

pytestmark = pytest.mark.slow

SALLOC = ("salloc", "--no-kill", "-N2")
_IN_JOB = """
sbatch --quiet --no-kill -N2 -o said --wrap "$*; echo \\$? > code"
until [ -s code ]; do sleep 0.1; done
cat said
exit $(cat code)
"""
SBATCH = ("sh", "-c", _IN_JOB, "-")
"""The coordinator runs on the first node, whose srun never hears of a lost node."""
LOSES: dict[str, Any] = {"lease_s": 5, "max_restarts": 0}
RESTARTS: dict[str, Any] = {"lease_s": 5, "backoff_s": 0}
OUTER = {
    "LD_LIBRARY_PATH": "/opt/module/lib",
    "CUDA_VISIBLE_DEVICES": "MIG-1,MIG-2",
    "SLURM_NTASKS": "7",
    "SLURM_CPU_BIND": "map_cpu:63",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_DISTRIBUTION": "plane=9",
    "SLURM_THREADS_PER_CORE": "9",
    "SRUN_CPUS_PER_TASK": "99",
}
"""What a module sets, and what an outer step leaves for any srun within."""
SHOW = """
import json, os, socket
shown = {"cwd": os.getcwd(), "host": socket.gethostname(), "env": dict(os.environ)}
print(json.dumps({**shown, "config": json.loads(os.environ["TF_CONFIG"])}))
"""
WORK = """
import itertools, os, subprocess, time
subprocess.Popen(["sleep", "300"], start_new_session=True)
for number in itertools.count():
    os.write(1, f"line {number}\\n".encode())
    if os.path.exists("finish") and number > 5:
        break
    time.sleep(0.05)
"""
"""A job with a daemon, which ends when a file `finish` appears."""


@pytest.fixture(scope="module")
def uneven_cluster() -> Iterator[SlurmCluster]:
    """Nodes of different sizes and with two networks; the last one has homes of its own."""
    with own_cluster(cpus=(4, 2, 4), proctrack="cgroup") as cluster:
        cluster.hide_homes(cluster.names[2])
        for number, name in enumerate(cluster.names, 1):
            cluster.lab.add_card(cluster.lab.machines[name], "ib0", f"10.88.0.{number}/24")
        yield cluster


@pytest.fixture
def uneven(uneven_cluster: SlurmCluster) -> Iterator[Site]:
    made = Site(uneven_cluster)
    yield made
    made.close()
    uneven_cluster.restore()


@pytest.fixture
def other(site: Site) -> Iterator[Site]:
    """Another user of the same cluster."""
    made = Site(site.cluster, "ben")
    yield made
    made.close()


def at_work(site: Site, *, within: tuple[str, ...] = SALLOC, **supervision: Any) -> Run:
    """Return a run of two tasks that have written some lines."""
    run = site.up(site.spec(WORK, supervision=supervision), within=within)
    for task in ("worker:0", "worker:1"):
        run.wait_for_line("line 5", task)
    return run


def shown(run: Run, task: str) -> Any:
    return json.loads(run.log(task))


def processes(site: Site, node: str = "n2") -> dict[int, str]:
    """Return pid → command line of the user's processes on a node."""
    found = site.cluster.processes(node)
    return {pid: words for pid, words in found.items() if _user(pid) == USERS[site.user]}


def _user(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return -1


def left_files(site: Site, *nodes: str) -> list[str]:
    """Return what the test has left in the /tmp of nodes, other than empty folders."""
    return sorted(site.files(*(nodes or ("n1", "n2"))) - site.files_before)


def coordinator(site: Site) -> int:
    def find() -> list[int]:
        found = site.cluster.login.processes().items()
        return [pid for pid, words in found if words.split()[1:3] == ["-m", "tfcluster.cli.main"]]

    return one(find, "coordinator")


# -- the nodes are used


def test_tasks_share_the_nodes_and_get_the_environment_of_up(site: Site) -> None:
    """The evaluator is one more task than the nodes' share, and rides with the first one.

    Without checks, too, each task of a node gets its part of the GPUs that Slurm names there.
    """
    cluster = {"worker": 4, "evaluator": 1}
    outer = ["env", *(f"{name}={value}" for name, value in OUTER.items())]
    run = site.up(site.spec(SHOW, cluster=cluster), "--no-preflight", within=[*SALLOC, *outer])
    assert run.end() == 0, run.said
    job = run.of_type("nodes_allocated")[0]["allocation"]
    assert f"the nodes of {job} are there: n1, n2\n" in run.said
    hosts = {f"worker:{number}": f"n{1 + number // 2}" for number in range(4)}
    for task, host in {**hosts, "evaluator:0": "n1"}.items():
        own = shown(run, task)
        assert own["host"] == host
        assert own["cwd"] == str(site.desk), "the nodes see it, so it is not copied"
        assert own["env"]["LD_LIBRARY_PATH"] == OUTER["LD_LIBRARY_PATH"]
        gpu = "-1" if task == "evaluator:0" else f"MIG-{1 + int(task[-1]) % 2}"
        assert own["env"]["CUDA_VISIBLE_DEVICES"] == gpu
        workers = own["config"]["cluster"]["worker"]
        assert [address.split(":")[0] for address in workers] == [*hosts.values()]
    assert not left_files(site)


def test_uneven_nodes_deal_out_their_own_cores_and_get_copies_where_needed(uneven: Site) -> None:
    names = uneven.cluster.names
    network = {"interface": "ib0", "ports": "61001-61400"}
    runtime = {"slurm": {"tasks_per_node": 2}, **network}
    spec = uneven.spec(SHOW, runtime=runtime, cluster={"worker": 6})
    run = uneven.up(spec, within=["salloc", "-N3", "--exclusive"])
    assert run.end() == 0, run.said
    probed = json.loads((run.folder / "preflight.json").read_text())["seen"]
    assert [answer["core_limit"] for answer in probed] == [4, 2, 4]
    found = [shown(run, f"worker:{number}") for number in range(6)]
    assert [own["host"] for own in found] == [name for name in names for _ in (0, 1)]
    workers = [address.split(":") for address in found[5]["config"]["cluster"]["worker"]]
    assert [host for host, _ in workers] == [f"10.88.0.{number}" for number in (1, 1, 2, 2, 3, 3)]
    assert all(61001 <= int(port) <= 61400 for _, port in workers)
    assert [own["cwd"] for own in found[:4]] == [str(uneven.desk)] * 4
    assert all("/.cache/tfcluster/nodes/" in own["cwd"] for own in found[4:])
    assert not left_files(uneven, *names)
    run = uneven.start("doctor", str(spec), within=["salloc", "-N3"])
    assert run.end() == 0, run.said
    (row,) = [line for line in run.said.splitlines() if line.startswith("interfaces")]
    assert all(f"ib0 10.88.0.{number} (tasks), eth0 10.77.0." in row for number in (1, 2, 3))
    run = uneven.up(spec, "--set", "runtime.interface=ib7", within=["salloc", "-N3"])
    assert run.end() == 3, run.said
    assert "node-0 has no interface or address ib7; it has lo 127.0.0.1" in run.said


ENDS = """
import os, signal, sys, time
if os.environ["TFCLUSTER_TASK"] == "worker:0":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
    print("ready", flush=True)
    time.sleep(300)
while not os.path.exists("ready"):
    time.sleep(0.05)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_the_summary_has_the_exit_codes_of_the_tasks(site: Site) -> None:
    run = site.up(site.spec(ENDS, supervision=LOSES), "--backend", "slurm", within=SBATCH)
    run.wait_for_line("ready", "worker:0")
    site.write("ready", "")
    assert run.end() == 1, run.said
    summary = [line.split() for line in run.said.splitlines()]
    assert ["worker:0", "stopped:", "exit", "3"] in [words[:4] for words in summary], run.said
    assert ["worker:1", "SIGTERM", "(cause)"] in [words[:3] for words in summary], run.said
    assert not left_files(site)


def test_too_few_nodes_are_refused_and_local_tasks_stay_here(site: Site) -> None:
    spec = site.spec(SHOW, runtime={"slurm": {"tasks_per_node": 1}})
    run = site.up(spec, "--backend", "local", within=["salloc", "-N1"])
    assert run.end() == 0, run.said
    assert {shown(run, f"worker:{number}")["host"] for number in (0, 1)} == {"login"}
    run = site.up(spec, within=["salloc", "-N1"])
    assert run.end() == 3, run.said
    assert "has 1 of the 2 nodes that the spec needs" in run.said
    assert "allocate 2 nodes, or leave out runtime.slurm.tasks_per_node" in run.said


def test_settings_of_a_job_are_used_inside_another_one_with_submit(site: Site) -> None:
    own = {"partition": "high", "time": "5m", "setup": ["export FROM_SETUP=yes"]}
    spec = site.spec(SHOW, runtime={"slurm": {**own, "python": sys.executable}})
    run = site.up(spec, within=["salloc", "-N1"])
    assert run.end() == 0, run.said
    said = " ".join(run.said.split())
    unused = "partition, python, setup, time have no effect"
    assert f"is used as it is: of runtime.slurm, {unused}" in said
    assert {shown(run, f"worker:{number}")["host"] for number in (0, 1)} == {"n1"}
    run = site.up(spec, "--submit", "--name", "own", within=["salloc", "-N1"])
    run.name = "own"
    assert run.end() == 0, run.said
    found = [shown(run, f"worker:{number}") for number in (0, 1)]
    assert len({own["host"] for own in found}) == 2
    assert {own["env"]["SLURM_JOB_PARTITION"] for own in found} == {"high"}
    assert {own["env"]["FROM_SETUP"] for own in found} == {"yes"}
    assert "cpus_per_task is not set: each task gets one core" in run.said


SAYS_WHERE = f"{GREET}print('met', me, socket.gethostname(), *addresses, flush=True)\n"


@pytest.mark.parametrize("processes", ["-n2", "-n4"])
def test_each_process_of_srun_joins_with_its_own_tasks(site: Site, processes: str) -> None:
    """One process on each node starts both tasks of the node, four start one each."""
    spec = site.spec(SAYS_WHERE, cluster={"worker": 4})
    run = site.start("join", str(spec), within=["srun", "-N2", processes])
    assert run.end() == 0, run.said
    met = sorted(re.findall(r"met (.*)", run.said))
    on_first = 2 if processes == "-n2" else 3  # Slurm fills n1, but for the one of n2
    hosts = [f"n{1 + (number >= on_first)}" for number in range(4)]
    addresses = [f"{host}:{2222 + hosts[:number].count(host)}" for number, host in enumerate(hosts)]
    assert met == [f"{number} {host} {' '.join(addresses)}" for number, host in enumerate(hosts)]
    assert "the tasks run on the hosts of Slurm" in run.said


# -- the dangers


def test_after_an_srun_was_killed_its_node_gets_a_new_agent(site: Site) -> None:
    run = at_work(site, **RESTARTS)
    for attempt, number in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGHUP), 1):
        until(lambda: "line 5" in run.log("worker:1", attempt=attempt), "attempt")  # noqa: B023
        former, _ = processes(site), run.of_type("restarting")
        clients = site.cluster.login.processes()
        os.kill(next(p for p, w in clients.items() if w.startswith("srun") and "=n2 " in w), number)
        until(lambda: len(run.of_type("task_started")) > 2 * attempt, "a restart")  # noqa: B023
        assert not former.keys() & processes(site).keys()
    site.write("finish", "")
    assert run.end() == 0, run.said
    lost = [event["reason"] for event in run.of_type("node_lost")]
    assert [reason.split(": ")[0] for reason in lost] == ["its connection ended"] * 3
    assert lost[0].endswith(": SIGKILL")
    assert "CANCELLED" in lost[1]
    assert not left_files(site)


def test_a_frozen_node_is_lost_and_never_a_success(site: Site, other: Site) -> None:
    """Runs of two users side by side: one srun ends with 0, the other one says nothing."""
    told, silent = at_work(site, **LOSES), at_work(other, within=SBATCH, **LOSES)
    site.cluster.freeze("n2")
    site.cluster("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=frozen", user="root")
    assert told.end() == silent.end() == 3, told.said + silent.said
    (lost,) = told.of_type("node_lost")
    assert lost["reason"] == "its connection ended: Node failure on n2"
    assert [event["node"] for event in silent.of_type("node_lost")] == ["node-1"]
    site.cluster.thaw("n2")
    until(lambda: not site.tasks(), "the end of all processes")
    assert not left_files(site, "n1")


def test_runs_go_on_without_slurmctld_and_a_new_agent_waits_for_it(site: Site, other: Site) -> None:
    undisturbed = at_work(site)
    loses = at_work(other, **RESTARTS)
    site.cluster.kill_controller()
    for pid in processes(other):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    waits = "n2 has to wait for a new agent: Unable to contact"
    until(lambda: [e for e in loses.of_type("warned") if e["message"].startswith(waits)], "that")
    site.cluster.start_controller()
    until(lambda: "line 5" in loses.log("worker:1", attempt=2), "attempt 2")
    for run, its in ((undisturbed, site), (loses, other)):
        its.write("finish", "")
        assert run.end() == 0, run.said
    assert not undisturbed.of_type("node_unreachable")
    assert not undisturbed.of_type("restarting")
    # The daemon of the killed step would wait for a minute; the end of the test boots its node.
    site.cluster("scontrol", "update", "NodeName=n2", "State=DOWN", "Reason=test", user="root")


@pytest.mark.parametrize("where", ["site", "uneven"])
def test_after_a_kill_of_the_coordinator_no_task_lives(
    where: str, request: pytest.FixtureRequest
) -> None:
    """The job goes on, so that Slurm ends nothing."""
    site: Site = request.getfixturevalue(where)
    stays = ("sh", "-c", '"$@"; until [ -e finish ]; do sleep 0.1; done', "-")
    run = at_work(site, within=(*SALLOC, *stays))
    os.kill(coordinator(site), signal.SIGKILL)
    until(lambda: not site.tasks(), f"the end of {site.tasks()}")
    until(lambda: not site.cluster.pids("srun"), "the end of srun")
    site.write("finish", "")
    assert run.end() == 0, run.said
    assert not left_files(site, *site.cluster.names)


SLOW = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WORK


def test_a_job_that_is_cancelled_with_all_its_steps_leaves_nothing(site: Site) -> None:
    run = site.up(site.spec(SLOW), within=SBATCH)
    run.wait_for_line("line 5", "worker:0", "worker:1")
    site.cluster("scancel", "--full", "--signal=TERM", "--user", "ann")
    finished = run.wait_for_event("run_finished")
    assert (finished["status"], finished["exit_code"]) == ("interrupted", 143)
    assert len(run.of_type("node_lost")) == 2
    until(lambda: not site.tasks(), "the end of the coordinator, which writes until then")
    site.write("code", "143")  # the job's own shell was killed
    assert run.end() == 143, run.said
    assert "stopping the run: SIGTERM" in run.said
    assert "lost node node-1: its connection ended: " in run.said
