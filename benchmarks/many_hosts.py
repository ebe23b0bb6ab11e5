"""How soon the agents of 64 hosts are up, beside a bare ``ssh true`` to the same 64 at once."""

from __future__ import annotations

import atexit
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from pathlib import Path

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import TFCLUSTER, environment
from tests.lab.many import Hosts, many_hosts

COUNT = 64


@cache
def _hosts() -> Hosts:
    """For all variants; they end with this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tfc", dir="/var/tmp"))
    return stack.enter_context(many_hosts(COUNT, Path(folder)))


def _bare() -> float:
    """Until the last of them has ended."""
    hosts, began = _hosts(), time.monotonic()
    command = [f"{hosts.folder}/bin/ssh", "-T", "-o", "BatchMode=yes"]
    all_of_them = [subprocess.Popen([*command, host, "true"]) for host in hosts.addresses]
    codes = [one.wait() for one in all_of_them]
    if any(codes):
        raise SystemExit("ssh failed")
    return time.monotonic() - began


@contextmanager
def _up() -> Iterator[tuple[float, Path]]:
    """When the command was started, and the run's folder after its end."""
    hosts = _hosts()
    with tempfile.TemporaryDirectory(prefix="tfc") as name:
        folder = Path(name)
        spec = {
            "name": "b",
            "cluster": {"worker": [f"{host}:0" for host in hosts.addresses]},
            "job": {"command": ["true"]},
            "runtime": {"backend": "ssh", "hosts": {"*": {"python": sys.executable}}},
        }
        (folder / "bench.json").write_text(json.dumps(spec))
        env = environment(folder / ".home") | {"PATH": hosts.environ["PATH"]}
        began = time.time()
        # The look at the nodes is 64 × 63 connections, and each host would have cores of its own.
        command = [TFCLUSTER, "up", "bench.json", "--no-preflight"]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"tfcluster up failed:\n{done.stderr[-3000:]}")
        (run,) = (folder / ".home" / "runs").iterdir()
        yield began, run


def _until(kind: str, *, fresh: bool = False) -> float:
    """From the command's start to the last host's event; `fresh`: they have no bundle yet."""
    if fresh:
        shutil.rmtree(_hosts().home / ".cache", ignore_errors=True)
    with _up() as (began, run):
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    times: list[float] = [event["time"] for event in events if event["type"] == kind]
    if len(times) != COUNT:
        raise SystemExit(f"{len(times)} of {COUNT} hosts have {kind}")
    return max(times) - began


VARIANTS: dict[str, Callable[[], float]] = {
    "ssh true": _bare,
    "agents": partial(_until, "node_connected"),
    "agents, nothing there before": partial(_until, "node_connected", fresh=True),
    "tasks": partial(_until, "task_started"),
}
UP = Metric(
    title=f"{COUNT} hosts through ssh: until the last is up",
    unit="s",
    variants=VARIANTS,
    ratios=[Ratio(f"{name} : ssh true", name, "ssh true") for name in [*VARIANTS][1:]],
)
