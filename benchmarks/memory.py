"""Resident memory of coordinator, agent and guard together while two workers sleep."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from benchmarks.harness import Metric, Ratio
from benchmarks.runs import TFCLUSTER, environment, spec

SETTLE_S = 3.0
START_S = 30.0


def _tfcluster() -> float:
    with spec(2, ["sleep", "600"]) as path:
        up = subprocess.Popen(
            [TFCLUSTER, "up", str(path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(path),
        )
        try:
            state = _running_state(path.parent)
            time.sleep(SETTLE_S)
            agents = [pid for agent in state["agents"].values() for pid in agent.values()]
            return sum(_rss_mb(pid) for pid in [state["pid"], *agents])
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(30)


def _running_state(home: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        for path in home.glob("runs/*/state.json"):
            state: dict[str, Any] = json.loads(path.read_text())
            if all(task["pid"] for task in state["tasks"]):
                return state
        time.sleep(0.1)
    raise SystemExit("the run did not start")


def _bare_python() -> float:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        time.sleep(0.5)
        return _rss_mb(sleeper.pid)
    finally:
        sleeper.kill()
        sleeper.wait()


def _rss_mb(pid: int) -> float:
    return float(psutil.Process(pid).memory_info().rss) / 1e6


METRIC = Metric(
    title="Idle memory: coordinator + agent + guard",
    unit="MB",
    variants={"tfcluster": _tfcluster, "a bare Python": _bare_python},
    ratios=[Ratio("tfcluster : a bare Python", "tfcluster", "a bare Python")],
)
