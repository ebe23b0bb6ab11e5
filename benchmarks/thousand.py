"""A run as large as they come, on this machine: 1,000 sleeping tasks on 50 agents.

Hosts are stand-ins (tests.lab): the ssh backend, its bundle, the relays and the agents are real,
only sshd is not there. So the figures are those of two cores that do the work of 51 machines.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.idle import cpu_s
from benchmarks.sandbox import TFCLUSTER, Sandbox, sandbox
from tests.lab.stand_ins import StandIns, stand_ins

NODES, TASKS = 50, 1000
WATCH_S = 10.0
LOOKS_S = 0.25
"""Reading thousands of events more often would take a core from the run."""


def _spec(hosts: StandIns) -> dict[str, object]:
    return {
        "version": 1,
        "name": "b",
        "cluster": {"worker": [f"{hosts.addresses[i % NODES]}:0" for i in range(TASKS)]},
        "job": {"command": ["sleep", "900"]},
        "supervision": {"backoff_s": 0, "max_restarts": 1},
        "runtime": {"backend": "ssh", "hosts": {"*": {"python": sys.executable}}},
    }


def _tfcluster() -> Taken:
    """Start, a while in which nothing happens, one crash, and the end."""
    with sandbox() as box:
        hosts = stand_ins(NODES, box.folder / "hosts")
        (box.folder / "bench.json").write_text(json.dumps(_spec(hosts)))
        began = time.time()
        up = box.start([TFCLUSTER, "up", "bench.json"], env={"PATH": hosts.environ["PATH"]})
        first = _started(box, 1, up)
        idle = _idle_percent(psutil.Process(up.pid))
        crash = time.time()
        os.kill(first["worker:7"]["pid"], signal.SIGKILL)
        again = _started(box, 2, up)
        spent = _spent(psutil.Process(up.pid))
        asked = time.time()
        up.send_signal(signal.SIGINT)
        box.end(up, code=130)
        return {
            "all running": max(event["time"] for event in first.values()) - began,
            "all again after a crash": max(event["time"] for event in again.values()) - crash,
            "stop": time.time() - asked,
            "idle": idle,
            "coordinator's processor": spent["processor"],
            "an event": 1000 * spent["processor"] / len(_events(box)),
            "coordinator's memory": spent["memory"],
        }


def _started(box: Sandbox, attempt: int, up: subprocess.Popen[bytes]) -> dict[str, dict[str, Any]]:
    """The tasks' events of that attempt, once all have started."""

    def found() -> dict[str, dict[str, Any]]:
        return {
            event["task"]: event
            for event in _events(box)
            if event["type"] == "task_started" and event["attempt"] == attempt
        }

    box.until(lambda: len(found()) == TASKS, f"attempt {attempt}", process=up, every_s=LOOKS_S)
    return found()


def _events(box: Sandbox) -> list[dict[str, Any]]:
    texts = [path.read_bytes() for path in box.home.glob("runs/*/events.jsonl")]
    return [json.loads(line) for text in texts for line in text.split(b"\n")[:-1]]


def _idle_percent(coordinator: psutil.Process) -> float:
    time.sleep(3)
    before, began = cpu_s(coordinator), time.monotonic()
    time.sleep(WATCH_S)
    return 100 * (cpu_s(coordinator) - before) / (time.monotonic() - began)


def _spent(coordinator: psutil.Process) -> dict[str, float]:
    return {
        "processor": cpu_s(coordinator),
        "memory": coordinator.memory_info().rss / 1e6,
    }


def _shell() -> Taken:
    """The floor: one machine's shell starts as many, and knows nothing of them."""
    with sandbox() as box:
        lines = [f"{shlex.join(['sleep', '900'])} &" for _ in range(TASKS)]
        (box.folder / "gang.sh").write_text("\n".join([*lines, "echo up > up", "wait"]))
        began = time.time()
        process = box.start(["bash", "gang.sh"])
        box.until((box.folder / "up").exists, "all tasks", process=process)
        running = time.time() - began
        if len(box.processes()) <= TASKS:
            raise Failed("some did not start")
        return {"all running": running}


def thousand_tasks(*, quick: bool) -> Metric:
    """Takes a minute a run."""
    return Metric(
        title=f"{TASKS:,} sleeping tasks on {NODES} agents",
        quantities={
            "all running": Quantity("s"),
            "all again after a crash": Quantity("s"),
            "stop": Quantity("s"),
            "idle": Quantity("% of a core"),
            "coordinator's processor": Quantity("s"),
            "an event": Quantity("ms"),
            "coordinator's memory": Quantity("MB"),
        },
        arms={
            "tfcluster": Arm(_tfcluster, "tfcluster up bench.json"),
            "shell": Arm(_shell, f"sleep 900 &  … {TASKS} times; wait", most_runs=3),
        },
        claims=[
            Claim("tfcluster", "all running", "tfcluster", at_most=30, stretch=12),
            Claim("tfcluster, after a crash", "all again after a crash", "tfcluster"),
        ],
        note="Hosts are stand-ins: 50 agents, 50 relays and 1,000 tasks share this machine's "
        "cores. idle, processor and memory are the coordinator's own, an event its processor "
        "time divided by all events.",
    )
