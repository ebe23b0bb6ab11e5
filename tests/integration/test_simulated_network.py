"""`runtime.network` as an object: nodes of this machine behind a switch with limits."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from . import user_session
from .commandline import CommandLine, Done, wait_for
from .live import InBackground, Live, is_alive
from .ordinary_user import OTHER_USER, as_ordinary_user

SWITCH = "tfcluster.backends.simulated.switch"

TALK = """
import json, os, socket, sys, threading, time
from tfcluster_workers import reporting
cluster = json.loads(os.environ["TF_CONFIG"])
addresses, me = cluster["cluster"]["worker"], cluster["task"]["index"]
listener = socket.create_server(("", int(addresses[me].rpartition(":")[2])), reuse_port=True)

def to(number):
    host, port = addresses[number].split(":")
    while True:
        try:
            return socket.create_connection((host, int(port)), 5)
        except OSError:
            time.sleep(0.05)

def measure(number, megabits):
    "Send to a peer, which answers when it has all; return the rate in Mbit/s."
    with to(number) as line:
        begun = time.monotonic()
        line.sendall(bytes(int(megabits * 125_000)))
        line.shutdown(socket.SHUT_WR)
        line.recv(1)
        return megabits / (time.monotonic() - begun)

def serve():
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=swallow, args=(peer,), daemon=True).start()

def swallow(peer):
    with peer:
        while peer.recv(1 << 20):
            pass
        peer.sendall(b"!")

threading.Thread(target=serve, daemon=True).start()
reporting.waiting_for_peers()
for number in range(len(addresses)):
    to(number).close()
reporting.ready()
"""
MEASURE = (
    TALK
    + """
rates = {}
if me == 0:
    for number in range(1, len(addresses)):
        rates[number] = measure(number, 4)
        print(f"{rates[number]:.2f} Mbit/s to {number}")
    with open("rates", "w") as file:
        json.dump(rates, file)
    open("finish", "w").close()
while not os.path.exists("finish"):
    time.sleep(0.05)
with open(f"network-{me}", "w") as file:
    file.write(os.readlink("/proc/self/ns/net"))
"""
)
STEPS = (
    TALK
    + """
ended = time.monotonic()
for step in range(1, 100_000):
    # Later faults wait for the end of the first one, which a busy coordinator may begin late.
    reporting.progress(step if os.path.exists("go-on") else min(step, 50))
    if me == 0:
        try:
            measure(1, 1)  # in a cut, this waits or fails
            before, ended = ended, time.monotonic()
            print(f"step {step} took {ended - before:.3f} s", flush=True)
        except OSError as error:
            print(f"step {step}: {error}", flush=True)
    if os.path.exists("finish" if me == 0 else "done"):
        break
    time.sleep(0.05)
open("done", "w").close()
"""
)
PREPARE = """
import os
with open("prepared", "w") as file:
    file.write(os.readlink("/proc/self/ns/net"))
"""


def interfaces() -> set[str]:
    return set(os.listdir("/sys/class/net"))


def job(name: str) -> dict[str, Any]:
    return {"script": name}


def rates_in(shell: CommandLine) -> dict[str, float]:
    found: dict[str, float] = json.loads((shell.cwd / "rates").read_text())
    return found


def test_links_hold_their_rates_and_nothing_is_left(shell: CommandLine) -> None:
    before = interfaces()
    shell.script("talk.py", MEASURE)
    shell.script("prepare.py", PREPARE)
    link = {"between": ["worker:0", "worker:2"], "rate": "5mbit"}
    runtime = {"network": {"rate": "20mbit", "links": [link]}}
    spec = job("talk.py") | {"prepare": {"script": "prepare.py"}}
    shell.spec("s.json", spec, workers=3, runtime=runtime)
    done = shell.run("up", "s.json")
    assert done.code == 0, done.err + done.out.decode()
    assert "none: the network is private" in done.err
    rates = rates_in(shell)
    # A queue takes some of what is sent at once, so short transfers seem faster than the rate.
    assert rates["1"] <= 20 * 1.5
    assert rates["2"] <= 5 * 1.5
    assert rates["2"] < rates["1"]
    addresses = [task["address"].partition(":")[0] for task in shell_tasks(shell)]
    assert addresses == ["10.77.0.2", "10.77.0.3", "10.77.0.4"]
    ours = os.readlink("/proc/self/ns/net")
    namespaces = {(shell.cwd / f"network-{number}").read_text() for number in range(3)}
    assert len(namespaces - {ours}) == 3, "each node has a network of its own"
    assert (shell.cwd / "prepared").read_text() == ours, "prepare needs the internet"
    assert interfaces() == before


def shell_tasks(shell: CommandLine) -> list[dict[str, Any]]:
    tasks: list[dict[str, Any]] = json.loads(shell.run("status", "--json").out)["tasks"]
    return tasks


def test_an_ordinary_user_needs_no_rights(shell: CommandLine) -> None:
    shell.script("talk.py", MEASURE)
    shell.spec("s.json", job("talk.py"), runtime={"network": {"rate": "20mbit"}})
    done = as_ordinary_user(shell, "up", "s.json")
    assert done.code == 0, done.err
    assert rates_in(shell)["1"] <= 20 * 1.5
    assert (shell.cwd / "network-1").stat().st_uid == (os.geteuid() or OTHER_USER)


def test_a_users_session_with_a_run(shell: CommandLine) -> None:
    shell.script(user_session.SCRIPT, user_session.STEPS)
    shell.spec("s.json", job(user_session.SCRIPT), runtime={"network": {"rate": "20mbit"}})
    run = Live(shell, "up", "s.json")
    done = shell.python(user_session.__file__, run.run_id)
    assert done.code == 0, done.err
    assert run.end() == 143, run.said()


def test_nothing_is_left_after_the_coordinator_was_killed(shell: CommandLine) -> None:
    before = interfaces()
    shell.script("talk.py", STEPS)
    shell.spec("s.json", job("talk.py"), runtime={"network": {"rate": "20mbit"}})
    run = InBackground(shell, "up", "s.json")
    run.wait_for_line("step 2", "worker:0")
    children = psutil.Process(run.coordinator()).children()
    (switch,) = [child for child in children if SWITCH in child.cmdline()]
    tasks = [task["pid"] for task in run.state()["tasks"]]
    assert all(map(is_alive, tasks))
    os.kill(run.coordinator(), signal.SIGKILL)
    wait_for(lambda: not switch.is_running())
    wait_for(lambda: not any(map(is_alive, tasks)))
    assert interfaces() == before
    shell.run("down", run.id)


def steps_of(run: Live) -> list[float]:
    """Return the seconds from the end of each step of worker:0 to that of the next good one."""
    lines = [line.split() for line in run.log("worker:0").splitlines()]
    return [float(line[3]) for line in lines if line[:1] == ["step"] and line[-1] == "s"]


def test_a_cut_node_is_back_after_its_time_and_a_slow_one_is_slow(shell: CommandLine) -> None:
    shell.script("talk.py", STEPS)
    shell.spec("s.json", job("talk.py"), runtime={"network": {"rate": "20mbit"}})
    faults = "partition worker:0 at step 3 for 4s; slow worker:0 to 1mbit at step 60"
    run = Live(shell, "up", "s.json", "--chaos", faults)
    over = "'partition worker:0 at step 3 for 4s' is over: worker-0 is as before"
    wait_for(lambda: over in run.said())
    cut_at = len(steps_of(run))
    (shell.cwd / "go-on").touch()
    wait_for(lambda: min(steps_of(run)[cut_at:][-3:], default=0) > 0.5, what="slow steps")
    (shell.cwd / "finish").touch()
    assert run.end() == 0, run.said()
    assert max(steps_of(run)[: cut_at + 1]) > 2, "no step ended during the partition"


def test_a_node_without_power_is_lost_and_the_run_goes_on_when_it_is_back(
    shell: CommandLine,
) -> None:
    shell.script("talk.py", STEPS)
    supervision = {"lease_s": 5, "backoff_s": 0}
    runtime = {"network": {"rate": "20mbit"}}
    shell.spec("s.json", job("talk.py"), runtime=runtime, supervision=supervision)
    run = Live(shell, "up", "s.json", "--chaos", "power-off worker:1 at step 3 for 2s")
    wait_for(lambda: "step 2" in run.log("worker:0", 2))
    (shell.cwd / "finish").touch()
    assert run.end() == 0, run.said()
    events = [event["type"] for event in run.events()]
    assert events.count("node_lost") == 1
    assert events.count("restarting") == 1


@pytest.mark.parametrize(
    ("fault", "network", "says"),
    [
        ("partition worker:1 for 2s", "host", "partition needs a simulated network"),
        ("slow worker:1", {"rate": "1gbit"}, "'to' is missing"),
        ("slow worker:1 to 3 parsecs", {"rate": "1gbit"}, "'3' is not a rate"),
        ("partition worker:1 for ever", {"rate": "1gbit"}, "'ever' is not a duration"),
    ],
)
def test_a_fault_that_cannot_be_is_refused(
    shell: CommandLine, fault: str, network: object, says: str
) -> None:
    shell.script("talk.py", STEPS)
    shell.spec("s.json", job("talk.py"), runtime={"network": network})
    done = shell.run("up", "s.json", "--chaos", fault)
    assert done.code == 2
    assert says in done.err


def test_a_delay_is_simulated_or_the_missing_module_is_named(shell: CommandLine) -> None:
    shell.script("talk.py", MEASURE)
    shell.spec("s.json", job("talk.py"), runtime={"network": {"delay": "50ms"}})
    done: Done = shell.run("up", "s.json")
    if done.code == 0:
        assert rates_in(shell)["1"] <= 4 / 0.1, "it takes a round trip at least"
    else:
        assert done.code == 3
        assert "the kernel module sch_netem" in done.err
        assert "modprobe sch_netem" in done.err
        assert not list(Path(shell.cwd).glob("network-*"))
