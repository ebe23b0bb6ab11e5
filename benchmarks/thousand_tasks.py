"""Thousands of tasks on fifty nodes of one machine: start, idle, a crash, stop; a shell baseline.

A node is a folder: the first `ssh` on PATH is a fake that runs commands here
(`tests.lab.stand_ins`); everything else is the same as on fifty machines. Each of those would do a
fiftieth of the work; here bootstraps, agents, probes and a thousand Pythons share the same cores,
so the times are compared with the shell's.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.launchers import STUB
from benchmarks.sandbox import TFCLUSTER, Sandbox, sandbox
from benchmarks.stamps import all_stamps, stamps
from tests.lab.stand_ins import stand_ins

REST_S = 5.0
_STUB = [sys.executable, "-S", str(STUB), "sleep"]


@dataclass(frozen=True, slots=True)
class Size:
    tasks: int
    nodes: int


def _written(box: Sandbox, attempt: int) -> int:
    """Count stamps by file name; reading a thousand files repeatedly would slow the tasks down."""
    start = f"stamp-{attempt}-"
    with os.scandir(box.folder) as found:
        return sum(one.name.startswith(start) and one.name[-4:] != ".new" for one in found)


def _all_run(box: Sandbox, size: Size, attempt: int, process: subprocess.Popen[bytes]) -> float:
    """Wait for all tasks; return when the last of them ran its first instruction."""
    box.until(
        lambda: _written(box, attempt) >= size.tasks,
        f"attempt {attempt}",
        process=process,
        every_s=0.05,
    )
    return max(one.at for one in all_stamps(box.folder, size.tasks, attempt=attempt))


def _spec(size: Size, box: Sandbox, addresses: list[str], command: list[str]) -> dict[str, object]:
    workers = [f"{addresses[index % size.nodes]}:0" for index in range(size.tasks)]
    return {
        "version": 1,
        "name": "b",
        "cluster": {"worker": workers},
        "job": {"command": command},
        "supervision": {"backoff_s": 0},
        # All tasks work in this folder, as on a file system that the hosts share.
        "runtime": {"backend": "ssh", "hosts": {"*": {"python": sys.executable}}},
    }


def _tfcluster(size: Size) -> Taken:
    """Measure a run with the preflight, on hosts that had a run before."""
    with sandbox() as box:
        hosts = stand_ins(size.nodes, box.folder / "hosts")
        path = {"PATH": hosts.environ["PATH"]}
        first = Size(size.nodes, size.nodes)
        for name, part, command in (("first", first, ["true"]), ("bench", size, _STUB)):
            spec = _spec(part, box, [*hosts.addresses], command)
            (box.folder / f"{name}.json").write_text(json.dumps(spec))
        box.end(box.start([TFCLUSTER, "up", "first.json", "--no-preflight"], env=path))
        began = time.monotonic()
        process = box.start([TFCLUSTER, "up", "bench.json"], env=path)
        return _attempt_state(box, size, process, began)


def _attempt_state(
    box: Sandbox, size: Size, process: subprocess.Popen[bytes], began: float
) -> Taken:
    taken = {"all run": _all_run(box, size, 0, process) - began}
    time.sleep(1.0)
    before = _cpu_s(process.pid)
    time.sleep(REST_S)
    rested = _cpu_s(process.pid)
    taken["rest"] = 100 * (rested - before) / REST_S
    before_crash, crashed = _events(box), time.monotonic()
    os.kill(stamps(box.folder)[0].pid, signal.SIGKILL)
    taken["again"] = _all_run(box, size, 1, process) - crashed
    stopped = time.monotonic()
    process.send_signal(signal.SIGINT)
    cpu_s = peak = 0.0
    while process.poll() is None:
        cpu_s, peak = _cpu_s(process.pid) or cpu_s, _peak_mb(process.pid) or peak
        time.sleep(0.02)
    taken["stop"] = time.monotonic() - stopped
    if process.returncode != 130:
        raise Failed(f"tfcluster up ended with {process.returncode}:\n{box.said()}")
    box.until(lambda: not box.processes(), "the end of all processes")
    per_event = (cpu_s - rested) / (_events(box) - before_crash) * 1e6
    return taken | {"processor": cpu_s, "per event": per_event, "memory": peak}


def _events(box: Sandbox) -> int:
    return (box.home / "latest" / "events.jsonl").read_bytes().count(b"\n")


def _shell(size: Size) -> Taken:
    """Measure the start of the same number of Pythons by a shell script."""
    with sandbox() as box:
        line = f"RANK=$i {' '.join(_STUB)} &"
        (box.folder / "all.sh").write_text(f"for i in $(seq {size.tasks}); do {line} done; wait")
        began = time.monotonic()
        process = box.start(["bash", "all.sh"])
        return {"all run": _all_run(box, size, 0, process) - began}


def _cpu_s(pid: int) -> float:
    """Return the processor time of a process, here the coordinator; 0 once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(x.split()[1]) / 1000 for x in lines if x.startswith("VmHWM")), 0.0)


def thousand_tasks(*, quick: bool, thousands: int = 1) -> Metric:
    """Return the metric; it needs 4 GB for a thousand small Pythons, but neither root nor sshd."""
    size = Size(20, 4) if quick else Size(1000 * thousands, 50)
    tenth = Size(size.tasks // 10, size.nodes)
    small = f"a tenth of the tasks, {tenth.tasks}"
    at_most, stretch = (30.0, 12.0) if thousands == 1 else (None, None)
    return Metric(
        title=f"{size.tasks} stub tasks on {size.nodes} agents of one machine",
        quantities={
            "all run": Quantity("s"),
            "rest": Quantity("% of a core"),
            "again": Quantity("s"),
            "stop": Quantity("s"),
            "processor": Quantity("s"),
            "per event": Quantity("µs"),
            "memory": Quantity("MB"),
        },
        arms={
            "tfcluster": Arm(lambda: _tfcluster(size), "tfcluster up bench.json"),
            small: Arm(lambda: _tfcluster(tenth), "tfcluster up bench.json"),
            "shell": Arm(lambda: _shell(size), "COMMAND &  … N times, then `wait`"),
        },
        claims=[
            Claim("Enter to all running", "all run", "tfcluster", at_most=at_most, stretch=stretch),
            Claim("tfcluster : shell", "all run", "tfcluster", "shell"),
            Claim("a crash to all running again", "again", "tfcluster"),
            Claim(
                "cost of an event : with a tenth of the tasks",
                "per event",
                "tfcluster",
                small,
                at_most=1.0,
            ),
        ],
        note="processor, per event, memory: of the coordinator only; processor over its whole "
        "life, per event from the crash on. The preflight checks are part of the start.",
    )
