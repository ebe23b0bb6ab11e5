"""What coordinator, agent and guard take together while two workers sleep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from benchmarks.harness import Metric, Ratio
from benchmarks.runs import TFCLUSTER, environment, spec

SETTLE_S = 3.0
START_S = 30.0
WATCH_S = 10.0


def _measured(measure: Callable[[list[psutil.Process]], float], *, terminal: bool) -> float:
    output = _drained_terminal() if terminal else _nowhere()
    with spec(2, ["sleep", "600"]) as path, output as fd:
        up = subprocess.Popen(
            [TFCLUSTER, "up", str(path)], stdout=fd, stderr=fd, env=environment(path.parent)
        )
        try:
            state = _running_state(path.parent)
            time.sleep(SETTLE_S)
            agents = [pid for agent in state["agents"].values() for pid in agent.values()]
            return measure([psutil.Process(pid) for pid in (state["pid"], *agents)])
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(30)


@contextmanager
def _nowhere() -> Iterator[int]:
    yield subprocess.DEVNULL


@contextmanager
def _drained_terminal() -> Iterator[int]:
    user, program = os.openpty()

    def drain() -> None:
        try:
            while os.read(user, 65536):
                pass
        except OSError:
            return

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    yield program
    os.close(program)
    reader.join(5)
    os.close(user)


def _running_state(home: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for path in home.glob("runs/*/state.json"):
            state: dict[str, Any] = json.loads(path.read_text())
            if all(task["pid"] for task in state["tasks"]):
                return state
        time.sleep(0.1)
    raise SystemExit("the run did not start")


def _bare_python(measure: Callable[[list[psutil.Process]], float]) -> float:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        time.sleep(0.5)
        return measure([psutil.Process(sleeper.pid)])
    finally:
        sleeper.kill()
        sleeper.wait()


def _rss_mb(processes: list[psutil.Process]) -> float:
    return sum(process.memory_info().rss for process in processes) / 1e6


def _cpu_percent(processes: list[psutil.Process]) -> float:
    """Of one core, over WATCH_S."""
    before = sum(sum(process.cpu_times()[:2]) for process in processes)
    time.sleep(WATCH_S)
    return 100 * (sum(sum(process.cpu_times()[:2]) for process in processes) - before) / WATCH_S


MEMORY = Metric(
    title="Idle memory: coordinator + agent + guard, resident",
    unit="MB",
    variants={
        "tfcluster": lambda: _measured(_rss_mb, terminal=False),
        "a bare Python": lambda: _bare_python(_rss_mb),
    },
    ratios=[Ratio("tfcluster : a bare Python", "tfcluster", "a bare Python")],
)
CPU = Metric(
    title=f"Idle processor time: coordinator + agent + guard, over {WATCH_S:.0f} s",
    unit="% of a core",
    variants={
        "no terminal": lambda: _measured(_cpu_percent, terminal=False),
        "live view on a terminal": lambda: _measured(_cpu_percent, terminal=True),
    },
)
