"""Submitted runs as users on the login node see them: queued, watched, left, stopped, gone."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from tests.integration import user_session
from tests.integration.hosts.office import COUNT, Run, numbered, one, until
from tests.lab.slurm import SlurmCluster

from .conftest import own_cluster
from .site import STUBBORN, Site

pytestmark = pytest.mark.slow

SUBMIT = "--backend=slurm"
WORKERS = ("worker:0", "worker:1")
TERMINAL = """
import os, pty, sys
*script, end = sys.argv[1:sys.argv.index("--") + 1]
pid, screen = pty.fork()
if pid == 0:
    os.execvp(sys.argv[sys.argv.index("--") + 1], sys.argv[sys.argv.index("--") + 1:])
shown = b""
while True:
    try:
        more = os.read(screen, 65536)
    except OSError:
        break
    if not more:
        break
    os.write(1, more)
    shown += more
    if script and script[0].encode() in shown:
        os.write(screen, script[1].encode().replace(b"^C", b"\\x03"))
        shown, script = b"", script[2:]
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
"""Runs a command in a terminal: ``TEXT KEYS … -- COMMAND`` types KEYS once TEXT is shown."""


TEE = ["bash", "-o", "pipefail", "-c", '"$@" 2>&1 | tee said', "bash"]


@pytest.fixture
def queue(site: Site) -> Iterator[str]:
    """A job of another user that leaves no node free; the queue moves once it is cancelled."""
    filler = site.cluster.fill(3)
    site.cluster.wait_for_job(filler, "RUNNING")
    yield filler
    for user in ("ann", "ben"):
        site.cluster("scancel", "--user", user, user="root")
    site.cluster.wait_for_nodes("idle")


def said(site: Site, *words: str, code: int = 0) -> str:
    command = site.start(*words)
    assert command.end() == code, command.said
    return command.said


def pid_of(site: Site, name: str) -> int:
    """Return the pid of the `up` that submitted the run called `name`."""

    def find() -> list[int]:
        found = site.cluster.login.processes().items()
        return [pid for pid, words in found if f"--name={name}" in words and "setpriv" not in words]

    return one(find, f"process of {name}")


def coordinators(site: Site) -> list[int]:
    return [pid for pid, words in site.tasks().items() if "tfcluster.in_job" in words]


def named(run: Run, name: str) -> Run:
    run.name = name
    return run


def job_of(run: Run) -> str:
    return str(run.wait_for_event("job_submitted")["id"])


def test_a_run_waits_in_the_queue_and_is_watched_to_its_end(site: Site, queue: str) -> None:
    secrets = {"runtime": {"hosts": {"*": {"env": {"DB_PASSWORD": "s3cret-value"}}}}}
    webhook = {"supervision": {"on_end": "https://127.0.0.1:9/s3cret-hook"}}
    site.write("config.yaml", json.dumps({"default": {**secrets, **webhook}}))
    shows = "import os; print(len(os.environ['DB_PASSWORD']), 'TFCLUSTER_ON_END' in os.environ)\n"
    spec = site.spec(f"{shows}{COUNT}")
    site.write("said", "")
    run = site.up(
        spec, SUBMIT, within=TEE, env={"TFCLUSTER_CONFIG": str(site.desk / "config.yaml")}
    )
    until(lambda: "queued: Resources" in (site.desk / "said").read_text(), "the reason")
    listed = until(lambda: (row := said(site, "ps")) and "Resources" in row and row, "its reason")
    assert "queued" in listed
    assert f"slurm {job_of(run)}" in said(site, "status")
    site.cluster("scancel", queue, user="ben")
    assert run.end() == 0, run.said
    for line in ("queued: Resources", "are there: n1, n2", "task", "succeeded after"):
        assert run.said.count(line) >= 1, run.said
    for task in WORKERS:
        lines = [line for line in run.said.splitlines() if line.startswith(f"{task} │")]
        assert lines == [f"{task} │ {line}" for line in ("12 False", *numbered(20))]
    (warning,) = until(lambda: run.state()["warnings"], "the failure of the webhook")
    assert warning.startswith("supervision.on_end: 127.0.0.1: "), "it had the whole URL"
    # The coordinator removes its note after it has recorded the end, at which `up` ends.
    noted = site.cluster.home("ann") / ".local/state/tfcluster/leftovers"
    until(lambda: not list(noted.iterdir()), "the end of the note of the run's job")
    for path in run.folder.rglob("*"):
        assert not path.is_file() or b"s3cret" not in path.read_bytes(), path


def test_queued_runs_are_left_cancelled_and_removed(site: Site, queue: str) -> None:
    spec, cluster = site.spec(), site.cluster
    runs = {}
    for name in ("killed", "interrupted"):
        runs[name] = named(site.up(spec, SUBMIT, f"--name={name}"), name)
    detached = named(site.up(spec, SUBMIT, "-d", "--name=detached"), "detached")
    assert detached.end() == 0, detached.said
    job = job_of(detached)
    assert f"queued: job {job}" in detached.said
    assert detached.folder.name in detached.said.splitlines()

    cluster("scancel", job_of(runs["killed"]))
    job_of(runs["interrupted"])
    os.kill(pid_of(site, "interrupted"), signal.SIGINT)
    assert runs["interrupted"].end() == 130, runs["interrupted"].said
    assert runs["killed"].end() == 143, runs["killed"].said
    assert runs["killed"].said.count("was cancelled") == 1

    assert cluster("squeue", "-h", "-u", "ann", "-o", "%A") == job
    assert "has ended: interrupted" in said(site, "down")
    assert cluster("squeue", "-h", "-u", "ann") == ""
    assert "job 1" not in said(site, "ps")
    said(site, "wait", "detached", code=143)
    assert said(site, "rm", "killed", "interrupted", "detached").count("deleted") == 3


@pytest.mark.parametrize(
    ("keys", "code", "is_left"),
    [(("^C", "l"), 130, True), (("^C", "c"), 130, False), (("^C", "^C"), 130, False)],
)
def test_ctrl_c_on_a_terminal_asks(
    site: Site, queue: str, keys: tuple[str, str], code: int, is_left: bool
) -> None:
    script = ["queued: Resources", keys[0], "leave the run running", keys[1]]
    wrapper = [sys.executable, str(site.write("terminal.py", TERMINAL)), *script, "--"]
    run = site.up(site.spec(), SUBMIT, within=wrapper, env={"TERM": "xterm"})
    assert run.end() == code, run.said
    left = site.cluster("squeue", "-h", "-u", "ann", "-o", "%A")
    assert left == (job_of(run) if is_left else "")
    status = "queued" if is_left else "interrupted"
    assert status in said(site, "status")


def test_down_lets_a_running_run_save_and_twice_ends_its_job(site: Site) -> None:
    first = site.up(site.spec(lasts=True), SUBMIT)
    first.wait_for_line("line 3", *WORKERS)
    shown = said(site, "stacks", "worker:1")  # the coordinator is on a node
    assert "worker:1 does not answer: it runs without hooks" in shown
    assert "has ended: interrupted" in said(site, "down")
    assert first.end() == 143, first.said
    assert [event["why"] for event in first.of_type("run_stopping")] == ["tfcluster down"]
    assert {event["ended_by"] for event in first.of_type("task_exited")} == {"tfcluster"}

    spec = site.spec(STUBBORN, supervision={"grace_s": 120})
    second = named(site.up(spec, SUBMIT, "-d", "--name=stubborn"), "stubborn")
    until(lambda: all(second.has_line("deaf", task) for task in WORKERS), "its tasks")
    waiting = site.start("down", "stubborn")
    until(lambda: second.of_type("run_stopping"), "the stop")
    said(site, "down", "stubborn")
    assert waiting.end() == 0, waiting.said
    said(site, "wait", "stubborn", code=143)


def test_a_users_session_with_a_run(site: Site) -> None:
    spec = site.spec(user_session.STEPS, job={"script": user_session.SCRIPT})
    run = site.up(spec, SUBMIT)
    session = site.python(user_session.__file__, run.folder.name)
    assert (session.end(), session.said) == (0, "n2\n")  # the coordinator is on n1
    assert run.end() == 143, run.said


def test_a_killed_coordinator_ends_its_run(site: Site) -> None:
    run = site.up(site.spec(lasts=True), SUBMIT)
    run.wait_for_line("line 3", *WORKERS)
    site.write("said", "")
    waiting = site.start("wait", within=TEE)  # it means a run that is live when it looks
    until(lambda: "waiting for" in (site.desk / "said").read_text(), "the wait")
    os.kill(one(lambda: coordinators(site), "coordinator"), signal.SIGKILL)
    assert run.end() == 3, run.said
    assert run.said.count("was killed by signal 9") == 1
    assert waiting.end() == 3, waiting.said
    until(lambda: not site.tasks(), "the end of all tasks")


def test_a_run_folder_that_the_nodes_do_not_see_is_said() -> None:
    with own_cluster(cpus=(2,)) as cluster:
        cluster.hide_homes(cluster.names[0])
        site = Site(cluster)
        run = site.up(site.spec(cluster={"worker": 1}), SUBMIT)
        assert run.end() == 3, run.said
        assert "could not write into the run folder on n1" in run.said
        assert "TFCLUSTER_HOME" in run.said
        command = ("doctor", "spec.json", SUBMIT, "--deep", "--python", "/usr/bin/python3")
        run = site.start(*command)
        assert run.end() == 3, run.said
        runs = cluster.home(site.user) / ".local/state/tfcluster/runs"
        assert f"node-0: it does not see the runs in {runs}" in run.said
        site.close()


def test_two_users_see_and_stop_only_their_own_runs(cluster: SlurmCluster) -> None:
    sites = [Site(cluster, user) for user in ("ann", "ben")]
    one_node = {"slurm": {"tasks_per_node": 2}}
    runs = [site.up(site.spec(lasts=True, runtime=one_node), SUBMIT) for site in sites]
    for run in runs:
        run.wait_for_line("line 3", *WORKERS)
    for site, run in zip(sites, runs, strict=True):
        (row,) = said(site, "ps").splitlines()[1:]
        assert row.startswith(run.folder.name)
    for site in sites:
        assert "has ended: interrupted" in said(site, "down")
    assert [run.end() for run in runs] == [143, 143]
    for site in sites:
        site.close()
