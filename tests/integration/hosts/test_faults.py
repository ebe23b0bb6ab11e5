"""Faults of hosts and of the network between them end as designed and leave nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from tests.integration.gang import GANG
from tests.lab.machine import Machine

from .office import COUNT, Office, Run, is_whole, numbered, until

pytestmark = pytest.mark.slow
WORKERS = ("worker:0", "worker:1", "worker:2")


def test_a_broken_link_between_hosts_is_named_and_the_gang_restarts(
    office: Office,
) -> None:
    first, second, third = office.add_hosts(3)
    run = office.up(office.spec(GANG, count=10, supervision={"backoff_s": 0}), "--no-preflight")
    run.wait_for_line("step 5", "worker:2")
    for other in (first, second):
        office.lab.block(other, third)
    diagnosis = run.wait_for_event("diagnosis")
    for other in (first, second):
        office.lab.unblock(other, third)
    assert run.end() == 0, run.said
    cause = diagnosis["root_cause"]
    assert cause["reason"].startswith(f"link to host {third.address} lost: "), cause
    assert cause["node"] == third.address
    assert cause["kind"] == "link_lost"
    assert run.of_type("restarting")[0]["reason"] == f"worker:2: {cause['reason']}"
    assert not run.of_type("node_unreachable")
    assert f"link to host {third.address} lost" in run.said


def end_sshd(host: Machine) -> None:
    """Kill the host's sshd and the processes that it has forked for its clients."""
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            mine = os.readlink(entry / "ns/pid") == os.readlink(f"/proc/{host.pid}/ns/pid")
            if mine and (entry / "cmdline").read_bytes().startswith((b"sshd", b"/usr/sbin/sshd")):
                os.kill(int(entry.name), signal.SIGKILL)


def start_sshd(host: Machine) -> None:
    argv = ["/usr/sbin/sshd", "-f", str(host.folder / "sshd_config")]
    assert host.run(argv).returncode == 0


def end_clients_to(office: Office, host: Machine) -> None:
    assert office.send(f"-- {host.address} ", signal.SIGKILL)


def clear_temp(host: Machine) -> None:
    """Delete the agent's folder in /tmp, as `systemd-tmpfiles`, `tmpreaper` or a job's `rm` may."""
    shutil.rmtree(host.folder / "tmp" / f"tfcluster-{os.getuid()}")


def test_no_line_is_lost_while_ssh_fails_in_different_ways(office: Office) -> None:
    """The host whose ssh client is killed has also lost its agent's socket."""
    killed, filtered, stopped = office.add_hosts(3)
    run = office.up(office.spec(lasts=True))
    run.wait_for_line("line 5", *WORKERS)
    clear_temp(killed)
    office.lab.block(office.home, filtered, port=22)
    end_clients_to(office, killed)
    end_sshd(stopped)
    everywhere = {host.address for host in office.hosts}
    until(lambda: named_by(run, "node_unreachable") == everywhere, "the loss of all hosts")
    office.lab.unblock(office.home, filtered, port=22)
    start_sshd(stopped)
    until(lambda: named_by(run, "node_reconnected") == everywhere, "the return of all hosts")
    office.release()
    assert run.end() == 0, run.said
    for task in WORKERS:
        assert is_whole(run.log(task))
    assert not run.of_type("restarting")
    assert not run.of_type("diagnosis")


def named_by(run: Run, kind: str) -> set[str]:
    return {event["node"] for event in run.of_type(kind)}


SIGNS = """
import itertools, os, time
attempt = os.environ["TFCLUSTER_ATTEMPT"]
for number in itertools.count() if attempt == "1" else range(20):
    with open(os.path.expanduser("~/signs"), "a") as file:
        print(attempt, time.time(), file=file)
    print("line", number, flush=True)
    time.sleep(0.05)
"""
"""A job that leaves a sign of life on its host, 20 times a second; its first attempt never ends."""


def test_two_attempts_of_a_task_never_run_at_once(office: Office) -> None:
    """The agent cannot be reached, but it and its task live until the lease ends."""
    first, _ = office.add_hosts(2)
    run = office.up(office.spec(SIGNS, supervision={"lease_s": 6, "backoff_s": 0}))
    run.wait_for_line("line 5", "worker:0")
    _, agent, *_ = first.agents()
    os.kill(agent, signal.SIGSTOP)
    clear_temp(first)
    end_clients_to(office, first)
    assert run.end() == 0, run.said
    signs = [line.split() for line in (first.root / "signs").read_text().splitlines()]
    times = {n: [float(at) for attempt, at in signs if attempt == n] for n in ("1", "2")}
    assert len(times["2"]) == 20
    assert max(times["1"]) < min(times["2"])


def test_a_gang_that_loses_a_host_continues_with_fewer_workers(office: Office) -> None:
    """Even that of the chief: then another worker is the chief, and its outputs count."""
    lost, *_ = office.add_hosts(3)
    supervision = {"lease_s": 4, "min_workers": 2, "max_restarts": 0, "backoff_s": 0}
    script = COUNT + "open('who.txt', 'w').write(os.environ['TFCLUSTER_TASK'])\n"
    outputs = {"outputs": ["who.txt"]}
    run = office.up(office.spec(script, lasts=True, supervision=supervision, checkpoints=outputs))
    run.wait_for_line("line 5", *WORKERS)
    lost.power_off()
    since = time.time()
    restarting = run.wait_for_event("restarting")
    assert restarting["members"] == ["worker:1", "worker:2"]
    assert restarting["time"] - since < 60
    assert run.end() == 0, run.said
    assert run.log("worker:1", attempt=2).splitlines() == numbered(20)
    assert run.of_type("diagnosis")[0]["root_cause"]["node"] == lost.address
    assert f"{lost.address} may not know that the run is over" in run.said
    assert (run.folder / "outputs/who.txt").read_text() == "worker:1", run.said


def test_a_host_whose_power_is_back_after_its_lease_is_part_of_the_next_attempt(
    office: Office,
) -> None:
    """The run used to end as soon as one dial after the lease had failed."""
    _, second = office.add_hosts(2)
    run = office.up(office.spec(lasts=True, supervision={"lease_s": 4, "backoff_s": 0}))
    run.wait_for_line("line 5", "worker:1")
    number = int(second.address.rpartition(".")[2])
    second.power_off()
    office.lab.remove(second)
    waits = f"{second.address} to answer: it is tried for "
    until(lambda: run.waits_for.startswith(waits), "a dial after the lease that failed")
    office.hosts[1] = office.lab.add(second.name, number=number)
    assert run.end() == 0, run.said
    assert run.log("worker:1", attempt=2).splitlines() == numbered(20)
    assert run.of_type("node_lost")[0]["node"] == second.address


def test_every_unusable_host_is_named_in_time(office: Office) -> None:
    hangs, leaves, full = office.add_hosts(3)
    (hangs.root / ".bashrc").write_text("sleep 15\n")
    (leaves.root / ".bashrc").write_text("echo 'closed for cleaning'\nexit 3\n")
    (full.root / ".cache").write_text("a file where a folder should be")
    cluster = {"worker": [f"{h.address}:0" for h in office.hosts] + ["10.77.0.251:0"]}
    run = office.up(office.spec(cluster=cluster))
    assert run.end() == 3, run.said
    assert f"{hangs.address} cannot be reached: no answer for 10 s" in run.said
    assert f"{leaves.address} cannot be reached: its login ended with exit code 3" in run.said
    assert "closed for cleaning" in run.said
    assert f"{full.address} cannot be reached: " in run.said
    assert "ssh: connect to host 10.77.0.251 port 22: " in run.said
    assert "Traceback" not in run.said
    assert not run.of_type("task_started")
