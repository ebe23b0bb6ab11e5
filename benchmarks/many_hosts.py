"""The time until the agents of 64 hosts are up, compared with ``ssh true`` to all 64 at once."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import Arm, Claim, Failed, Metric, Quantity, Taken
from benchmarks.sandbox import TFCLUSTER, sandbox
from tests.lab.many import Hosts, many_hosts

COUNT = 64


@cache
def _hosts() -> Hosts:
    """Start the hosts for all variants; they end with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfc", dir="/var/tmp"))
    return stack.enter_context(many_hosts(COUNT, Path(folder)))


def _bare() -> Taken:
    """Measure until the last ``ssh true`` has ended."""
    hosts, began = _hosts(), time.monotonic()
    command = [f"{hosts.folder}/bin/ssh", "-T", "-o", "BatchMode=yes"]
    all_of_them = [subprocess.Popen([*command, host, "true"]) for host in hosts.addresses]
    codes = [one.wait() for one in all_of_them]
    if any(codes):
        raise Failed("ssh failed")
    return {"until": time.monotonic() - began}


def _up(kind: str, *, fresh: bool = False) -> Taken:
    """Measure from the command's start to the last host's event.

    `fresh`: the hosts have no bundle yet.
    """
    hosts = _hosts()
    if fresh:
        shutil.rmtree(hosts.home / ".cache", ignore_errors=True)
    with sandbox() as box:
        spec = {
            "name": "b",
            "cluster": {"worker": [f"{host}:0" for host in hosts.addresses]},
            "job": {"command": ["true"]},
            "runtime": {"backend": "ssh", "hosts": {"*": {"python": sys.executable}}},
        }
        (box.folder / "bench.json").write_text(json.dumps(spec))
        began = time.time()
        # The preflight makes 64 × 63 connections; real hosts would each have cores of their own.
        command = [TFCLUSTER, "up", "bench.json", "--no-preflight"]
        box.end(box.start(command, env={"PATH": hosts.environ["PATH"]}))
        (path,) = box.home.glob("runs/*/events.jsonl")
        events = [json.loads(line) for line in path.read_text().splitlines()]
    times: list[float] = [event["time"] for event in events if event["type"] == kind]
    if len(times) != COUNT:
        raise Failed(f"{len(times)} of {COUNT} hosts sent {kind}")
    return {"until": max(times) - began}


def many_hosts_up(*, quick: bool) -> Metric:
    """Return the metric; it needs sshd, but not root."""
    arms = {
        "agents": partial(_up, "node_connected"),
        "agents, nothing there before": partial(_up, "node_connected", fresh=True),
        "tasks": partial(_up, "task_started"),
    }
    return Metric(
        title=f"{COUNT} hosts through ssh: until the last is up",
        quantities={"until": Quantity("s")},
        arms={"ssh true": Arm(_bare, "ssh -T -o BatchMode=yes HOST true &  … 64 times; wait")}
        | {x: Arm(take, "tfcluster up bench.json --no-preflight") for x, take in arms.items()},
        claims=[Claim(f"{x} : ssh true", "until", x, "ssh true", at_most=2.0) for x in arms],
    )
