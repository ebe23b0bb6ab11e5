"""A run whose coordinator is a Job is watched, left, stopped and lost, also from elsewhere."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import pytest
from tests.integration import user_session
from tests.integration.commandline import wait_for
from tests.integration.live import InBackground, Live
from tests.lab.kube_images import host_template

from tfcluster.backends.kubernetes import run_objects
from tfcluster.backends.kubernetes.run_pods import merge

from . import submitted
from .desk import HANG_S, Desk, command_line, objects_in
from .submitted import (
    await_attempt,
    await_checkpoint,
    checkpoint,
    coordinator,
    elsewhere,
    ended,
    note_fault,
    release,
    said,
    task_pods,
    uids,
    up,
)

pytestmark = [pytest.mark.slow]


def test_a_run_that_was_left_is_known_elsewhere_attached_and_fetched(desk: Desk) -> None:
    to = desk.shell.root / "results"
    left = InBackground(desk.shell, "up", str(submitted.spec(desk, checkpoints={"to": str(to)})))
    assert "checkpoints are gathered in the coordinator's pod" in said(left)
    other, at = elsewhere(desk), ("--backend", "kubernetes")
    listed = other.run("ps", *at)
    assert left.id in listed.out.decode(), listed.err
    wait_for(
        lambda: other.run("logs", left.id, *at).out.count(b"attempt 1 from 0") == 2, timeout=HANG_S
    )
    shown = other.run("status", left.id[-4:], *at)
    assert f"{left.id}" in shown.out.decode(), shown.err
    assert b"running" in shown.out
    watched = other.start("attach", left.id, *at)

    def is_copied() -> bool:
        """Have a command copy what has been written; it does not wait long for the cluster."""
        assert desk.shell.run("status", left.id).code == 0
        return all(left.log(task).count("\n") for task in ("worker:0", "worker:1"))

    wait_for(is_copied, timeout=HANG_S, what="a copy of the logs")
    assert await_attempt(left, 1) == "attempt 1 from 0 ********"
    asked = desk.shell.run("stacks", left.id, "worker:1")
    assert b"worker:1 does not answer: it runs without hooks" in asked.out, asked.err
    assert "kept-secret" not in desk.kubectl("get", "pods,jobs", "-o", "json")
    release(desk)
    out, err = watched.communicate(timeout=HANG_S)
    assert watched.returncode == 0, err
    assert b"released" in out
    copied = desk.shell.root / "copied"
    assert other.run("checkpoints", left.id, *at, "--copy", str(copied)).code == 0
    assert (copied / "ckpt-1.data-00000-of-00001").read_text() == "weights 1"
    assert desk.shell.run("attach", left.id, timeout=HANG_S).code == 0
    gone = ("status", left.id, *at)
    wait_for(lambda: other.run(*gone).code == 2, timeout=HANG_S, what="its end in the cluster")
    assert b"released" in desk.shell.run("logs", left.id).out
    assert checkpoint(left, "ckpt-1") == "weights 1"
    assert (to / "ckpt-1.data-00000-of-00001").read_text() == "weights 1"
    assert desk.left() == []


def test_a_users_session_with_a_run(desk: Desk) -> None:
    desk.shell.script(user_session.SCRIPT, user_session.STEPS)
    desk.shell.spec("spec.json", {"script": user_session.SCRIPT}, runtime=desk.runtime())
    run = Live(desk.shell, "up", "spec.json")
    first = run.run_id  # the run that `restart` makes has the same name
    session = desk.shell.python(user_session.__file__, first)
    assert (session.code, session.out.decode()) == (0, f"{first}-worker-1\n"), session.err
    ended(run, 143)
    assert desk.left() == []


def test_a_killed_coordinator_goes_on_in_its_pod_and_a_failure_has_its_code(desk: Desk) -> None:
    run = up(desk, code=7)
    assert await_attempt(run, 1).startswith("attempt 1 from 0")
    await_checkpoint(desk, run, "ckpt-1")
    since = time.time()
    os.kill(coordinator_process(desk), signal.SIGKILL)
    assert await_attempt(run, 2).startswith("attempt 2 from 1")
    note_fault(run, since, "the coordinator's process is killed")
    release(desk)
    ended(run, 1)
    assert "exit 7" in said(run)
    assert checkpoint(run, "ckpt-2") == "weights 2"
    (again,) = submitted.of_type(run, "run_continued")
    assert again["attempt"] == 2
    assert desk.left() == []


def coordinator_process(desk: Desk) -> int:
    """Return this machine's id of the process that coordinates, not its exec server's."""
    for pid in desk.processes(coordinator(desk)):
        words = command_line(pid).split(b"\0")
        if b"tfcluster.in_pod" in words and b"--then" not in words:
            return pid
    raise AssertionError("no coordinator")


def test_two_runs_share_a_namespace_and_are_what_export_prints(desk: Desk) -> None:
    runs = [up(desk, name=name) for name in ("r", "s")]
    for run in runs:
        await_attempt(run, 1)
    first = runs[0].run_id
    named = ("--format", "kubernetes", "--set", f"name={first}", "-o", "run.yaml")
    exported = desk.shell.run("export", "spec.json", *named)
    assert exported.code == 0, exported.err
    compared = desk.kubectl.run("diff", "-f", str(desk.shell.cwd / "run.yaml"))
    assert (compared.returncode, compared.stdout) == (0, ""), compared
    down = desk.shell.run("down", "--now", first, timeout=HANG_S)
    assert down.code == 0, down.err
    wait_for(lambda: first not in " ".join(objects_in(desk.kubectl)), timeout=HANG_S)
    assert not runs[1].is_over()
    release(desk)
    ended(runs[1], 0)
    assert runs[0].end(HANG_S) == 143
    assert desk.left() == []


def test_a_coordinator_has_no_rights_in_another_namespace(desk: Desk) -> None:
    objects = [*run_objects.account_objects()]
    desk.kubectl.apply(*objects)
    account = f"--as=system:serviceaccount:{desk.namespace}:tfcluster"

    def is_answer(answer: str, verb: str, what: str, where: str) -> bool:
        asked = desk.kubectl.run("auth", "can-i", verb, what, "-n", where, account)
        return asked.stdout.strip() == answer

    for verb, what in (("delete", "pods"), ("patch", "jobs.batch"), ("list", "events")):
        # The API server's caches learn of a role a moment after it is made.
        allowed = partial(is_answer, "yes", verb, what, desk.namespace)
        wait_for(allowed, timeout=HANG_S, what=f"the right to {verb} {what}")
        assert is_answer("no", verb, what, "default"), (verb, what)


def test_a_quota_that_others_use_up_makes_a_run_wait(desk: Desk) -> None:
    quota: dict[str, Any] = {"apiVersion": "v1", "kind": "ResourceQuota"}
    quota |= {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}}
    desk.kubectl.apply(quota)
    refused = desk.shell.run("up", str(submitted.spec(desk)), timeout=HANG_S)
    assert refused.code == 3, refused.err
    assert "quota" in refused.err
    assert desk.left() == []
    container = {"name": "a", "image": desk.small, "command": ["sleep", "600"]}
    other: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "other"}}
    quota["spec"]["hard"]["pods"] = "3"
    desk.kubectl.apply(quota)
    await_quota(desk, hard="3", used="0")
    desk.kubectl.apply({**other, "spec": {"containers": [container]}})
    await_quota(desk, hard="3", used="1")
    run = up(desk)
    wait_for(lambda: "exceeded quota" in said(run) or run.is_over(), timeout=HANG_S)
    assert not run.is_over(), run.said()
    desk.kubectl("delete", "pod", "other", "--grace-period=1")
    await_attempt(run, 1)
    release(desk)
    ended(run, 0)
    assert desk.left() == []


def await_quota(desk: Desk, *, hard: str, used: str) -> None:
    """Wait until the cluster has counted.

    What is made while it counts again, after a change of the quota, can stay uncounted.
    """
    status = {"hard": {"pods": hard}, "used": {"pods": used}}
    wait_for(lambda: desk.kubectl.json("get", "quota", "few")["status"] == status, timeout=HANG_S)


def test_a_coordinator_that_can_never_start_ends_the_run_and_leaves_nothing(desk: Desk) -> None:
    never = {"containers": [{"name": "coordinator", "imagePullPolicy": "Never"}]}
    template = merge(host_template(), {"spec": never})
    runtime = {"coordinator": {"image": "localhost/typo:1"}, "pod_template": template}
    ended = desk.shell.run("up", str(submitted.spec(desk, runtime=runtime)), timeout=HANG_S)
    assert ended.code == 3, ended.err
    message = " ".join(ended.err.split())
    assert "the coordinator's pod cannot start" in message
    assert 'image "localhost/typo:1" is not present' in message
    assert desk.left() == []


READ_ONLY = {
    "spec": {
        "containers": [
            {"name": name, "securityContext": {"readOnlyRootFilesystem": True}}
            for name in ("task", "coordinator")
        ]
    }
}


def test_down_from_another_machine_saves_first_also_in_read_only_pods(desk: Desk) -> None:
    run = up(desk, runtime={"image": desk.small, "pod_template": READ_ONLY})
    await_attempt(run, 1)
    ended_there = elsewhere(desk).run("down", run.run_id, "--backend", "kubernetes", timeout=HANG_S)
    assert ended_there.code == 0, ended_there.err
    assert "has ended" in ended_there.err
    run.end(HANG_S)
    assert run.state()["status"] == "interrupted", run.said()
    assert checkpoint(run, "ckpt-2") == "weights 2"
    assert desk.left() == []


def test_a_user_of_one_namespace_needs_the_role_and_ends_a_run_at_once(desk: Desk) -> None:
    desk.shell.env["KUBECONFIG"] = str(desk.user("ann"))
    refused = desk.shell.run("up", str(submitted.spec(desk)), timeout=HANG_S)
    assert refused.code == 3, refused.err
    assert desk.shell.runs() == []
    assert desk.left() == []
    desk.kubectl.apply(*submitted.objects_of(refused.err))
    run = up(desk)
    await_attempt(run, 1)
    down = desk.shell.run("down", "--now", run.run_id, timeout=HANG_S)
    assert down.code == 0, down.err
    run.end(HANG_S)
    assert run.state()["status"] == "interrupted", run.said()
    assert desk.left() == []


def test_a_lost_coordinators_successor_finds_checkpoints_in_the_pods(desk: Desk) -> None:
    run = up(desk)
    await_attempt(run, 1)
    await_checkpoint(desk, run, "ckpt-1")
    lost, since = coordinator(desk), time.time()
    desk.kubectl("delete", "pod", lost, "--grace-period=0", "--force", "--wait=false")
    saved = int(await_attempt(run, 2).removeprefix("attempt 2 from ").split()[0])
    note_fault(run, since, "the coordinator's pod is deleted by force, no run_volume")
    assert saved in (1, 2)  # 2 where the deleted coordinator had the time to stop its tasks
    wait_for(lambda: "its folder is lost" in said(run), timeout=HANG_S)
    assert coordinator(desk) != lost
    run.process.send_signal(signal.SIGINT)
    ended(run, 130)
    assert checkpoint(run, f"ckpt-{saved + 2}") == f"weights {saved + 2}"
    assert run.log("worker:0", 1).startswith("attempt 1 from 0")
    assert [event["seq"] for event in run.events()] == [*range(1, len(run.events()) + 1)]
    assert desk.left() == []


def test_a_pod_that_is_deleted_while_it_prepares_starts_the_run_anew(desk: Desk) -> None:
    prepare = "import os, time\nwhile not os.path.exists('/tmp/go'): time.sleep(0.05)"
    run = up(desk, prepare=prepare)

    def prepares() -> bool:
        return all(f"preparing on worker-{number}" in said(run) for number in (0, 1))

    wait_for(lambda: prepares() or run.is_over(), timeout=HANG_S, what=run.said())
    first = {*uids(desk)}
    desk.kubectl("delete", "pod", task_pods(desk)[0], "--wait=false")

    def are_new() -> bool:
        now = uids(desk)
        return len(now) == 2 and first.isdisjoint(now)

    wait_for(lambda: are_new() or run.is_over(), timeout=HANG_S, what=run.said())
    release(desk, "/tmp/go")
    assert await_attempt(run, 1).startswith("attempt 1 from 0")
    (again,) = submitted.of_type(run, "restarting")
    assert not again["counts"]
    release(desk)
    ended(run, 0)
    assert desk.left() == []


def test_a_run_goes_on_in_its_folder_on_a_volume(desk: Desk) -> None:
    folder = desk.claim("runs")
    run = up(desk, runtime={"run_volume": "runs"})
    await_attempt(run, 1)
    await_checkpoint(desk, run, "ckpt-1")
    since = time.time()
    desk.kubectl("delete", "pod", coordinator(desk), "--wait=false")
    assert await_attempt(run, 2).startswith("attempt 2 from ")
    note_fault(run, since, "the coordinator's pod is deleted, run_volume")
    (again,) = submitted.of_type(run, "run_continued")
    assert again["attempt"] == 2
    release(desk)
    ended(run, 0)
    assert checkpoint(run, "ckpt-2").startswith("weights")
    assert desk.left() == []
    assert [path for path in folder.rglob("*") if path.is_file()] == []
