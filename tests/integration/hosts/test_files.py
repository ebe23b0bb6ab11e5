"""Files on hosts are gathered while tasks continue, also over connections that break."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.lab.machine import Machine

from .office import Office, Run, until
from .test_ssh import kill_ssh_to

pytestmark = pytest.mark.slow

SAVES_MUCH = """
import os, struct, time
def write(path, data):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "ab") as file:
        file.write(data)
checkpoints = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
curves = os.environ["TFCLUSTER_TENSORBOARD_DIR"]
block = os.urandom(1 << 20)
write(curves + "/events.out.tfevents.1", b"begin ")
write(checkpoints + "/ckpt-7.data-00000-of-00001", b"")
for _ in range(int(os.environ["COUNT"])):
    write(checkpoints + "/ckpt-7.data-00000-of-00001", block)
write(checkpoints + "/ckpt-7.index", struct.pack("<Q", 0xDB4775248B80FB57))
print("saved", flush=True)
while not os.path.exists("go-on"):
    print("late", time.time(), flush=True)
    time.sleep(0.1)
write(curves + "/events.out.tfevents.1", b"end")
"""


def most_kilobytes(machine: Machine, words: str) -> int:
    """Return the peak memory of the machine's processes with `words` in their command line."""
    found = [pid for pid, line in machine.processes().items() if words in line]
    facts = [facts_of(pid, "status").partition("VmHWM:")[2].split() for pid in found]
    return max(int(words[0]) for words in facts if words)


def facts_of(pid: int, name: str) -> str:
    """Return a file of /proc about a process, or "" if the process has ended meanwhile."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def time_of_newest_line(run: Run) -> float:
    """Return the time at which the newest line was written, or 0."""
    return float(run.log("worker:0").rpartition("late ")[2].split("\n")[0] or 0)


def let_the_task_end(host: Machine) -> None:
    (work,) = (host.root / ".cache/tfcluster/nodes").glob("*/*/work")
    (work / "go-on").touch()


def size(path: Path) -> int:
    """Return the size of a file, or 0 if it was renamed to its final name meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def test_a_large_checkpoint_is_gathered_while_the_task_continues(office: Office) -> None:
    """The connection breaks during the copy; logs do not wait; no process holds it in memory."""
    (host,) = office.add_hosts(1)
    run = office.up(office.spec(SAVES_MUCH, count=200))
    run.wait_for_line("late", "worker:0")
    baseline = most_kilobytes(office.home, "tfcluster.cli.main")
    partial = run.folder / "checkpoints"
    data = "ckpt-7.data-00000-of-00001"
    until(lambda: [p for p in partial.glob(f"*/{data}") if size(p) > 1 << 22], "a part")
    assert kill_ssh_to(office, host.address)
    (gathered,) = until(lambda: run.of_type("checkpoint_gathered"), "a checkpoint")
    until(lambda: time_of_newest_line(run) > gathered["time"], "a later line")
    assert most_kilobytes(office.home, "tfcluster.cli.main") < baseline + 60_000
    assert most_kilobytes(host, "-I -S -c") < 60_000  # the relay, the agent and what it forked
    curve = run.folder / "tensorboard/worker-0/events.out.tfevents.1"
    until(lambda: size(curve), "a curve, while the task goes on")
    assert curve.read_bytes() == b"begin "
    original = next((host.root / ".cache/tfcluster/nodes").glob("*/*/tasks/*/checkpoints"))
    copy = (run.folder / gathered["path"]).parent / data
    assert copy.read_bytes() == (original / data).read_bytes()
    note = json.loads((copy.parent / ".tfcluster.json").read_text())
    assert [file["path"] for file in note["files"]][-1].endswith(".index")
    let_the_task_end(host)
    assert run.end() == 0, run.said
    assert curve.read_bytes() == b"begin end"


SAVES_AND_LEAVES = """
import os, struct, time
while not os.path.exists(os.environ["RELEASE"]):
    time.sleep(0.05)
checkpoints = os.environ["TFCLUSTER_CHECKPOINT_DIR"]
os.makedirs(checkpoints, exist_ok=True)
with open(checkpoints + "/ckpt-7.data-00000-of-00001", "wb") as file:
    for _ in range(int(os.environ["COUNT"])):
        file.write(os.urandom(1 << 20))
with open(checkpoints + "/ckpt-7.index", "wb") as file:
    file.write(struct.pack("<Q", 0xDB4775248B80FB57))
"""


def filer_of(host: Machine) -> int:
    """Return the process that handles files for the host's agent: it has the highest niceness."""
    nice = {
        pid: int(facts.rpartition(")")[2].split()[16])
        for pid, words in host.processes().items()
        if "-I -S -c" in words and (facts := facts_of(pid, "stat"))
    }
    return max(nice, key=nice.__getitem__)


def test_a_host_whose_disk_hangs_is_reported_and_not_waited_for_forever(office: Office) -> None:
    """A SIGSTOP of the process that handles files has the effect of a dead file server.

    All tasks exit with 0; `up` once waited for ever while `status` said that they were starting.
    """
    (host,) = office.add_hosts(1)
    office.folders_stay = True
    spec = office.spec(SAVES_AND_LEAVES, count=60, lasts=True, supervision={"lease_s": 8})
    run = office.up(spec)
    run.wait_for_event("task_started")
    office.lab.shape(host, mbit=4)  # the copy would take two minutes
    office.release()
    run.wait_for_event("task_exited")
    state = until(lambda: gathered_so_far(run), "bytes of the checkpoint")
    assert [task["state"] for task in state["tasks"]] == ["succeeded"]
    assert (state["gathering"]["node"], state["gathering"]["of"] >> 20) == (host.address, 60)
    shown = office.start("status")
    assert shown.end() == 0, shown.said
    assert f"checkpoints from {host.address}, " in shown.said
    assert "starting" not in shown.said
    os.kill(filer_of(host), signal.SIGSTOP)
    assert run.end() == 3, run.said
    said = " ".join(run.said.split())
    assert "the tasks have succeeded, but the newest checkpoint was not gathered" in said
    why = f"{host.address} has answered nothing about its files for 8 s: its disk or a file server"
    assert f"ckpt-7 was not gathered: {why}" in said
    assert "not everything was copied: " not in said
    fetch = f"the checkpoints of worker:0 are on {host.address}: `scp -r {host.address}:"
    assert fetch in said
    folder = said.partition(fetch)[2].split()[0].replace(str(Path("~").expanduser()), "")
    assert size(Path(f"{host.root}{folder}/ckpt-7.data-00000-of-00001")) == 60 << 20
    # The agent says goodbye before it and its guard have ended.
    until(lambda: not host.processes(), "the end of what was stopped, with the agent")
    office.lab.shape(host, mbit=1000)
    later = office.start("checkpoints", run.folder.name)
    assert later.end() == 0, later.said
    assert "gathered ckpt-7, which" in later.said
    assert size(run.folder / "checkpoints/ckpt-7/ckpt-7.data-00000-of-00001") == 60 << 20


def gathered_so_far(run: Run) -> dict[str, Any] | None:
    """Return the state of the run once part of a checkpoint has arrived, else None."""
    state: dict[str, Any] = json.loads((run.folder / "state.json").read_text())
    return state if (state.get("gathering") or {}).get("bytes") else None
