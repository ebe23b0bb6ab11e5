"""Processes of an attempt end before the same agent starts the next attempt."""

from __future__ import annotations

import json
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.agent.conftest import Rig, is_alive, wait_until

DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if sys.argv[1] == "no names":
        os.execve(sys.executable, [sys.executable, "-S", "-c", sys.argv[2]], {})
    os.write(1, f"{os.getpid()}\\n".encode())
    os.close(1); os.close(2)
    time.sleep(300)
time.sleep(float(sys.argv[3]))
"""
NAMELESS = """
import os, time
os.write(1, f"{os.getpid()}\\n".encode())
os.close(1); os.close(2)
time.sleep(300)
"""


def order(rig: Rig, attempt: int, *argv: str, task: str = "worker:0") -> dict[str, Any]:
    env = {"TFCLUSTER_RUN_ID": "run-1", "TFCLUSTER_TASK": task}
    env["TFCLUSTER_ATTEMPT"] = str(attempt)
    log = rig.folder / f"attempt-{attempt}" / f"{task}.log"
    return {"task": task, "argv": list(argv), "env": env, "cwd": "/", "log": str(log)}


def start(rig: Rig, attempt: int, *orders: dict[str, Any]) -> None:
    rig.peer.send("start", attempt=attempt, tasks=list(orders))
    for entry in orders:
        answer = rig.peer.take("task_started", "start_failed", task=entry["task"])
        assert answer["type"] == "task_started", answer


def daemon(rig: Rig, attempt: int, task: str, kind: str = "named", stay_s: float = 300) -> Any:
    argv = [sys.executable, "-S", "-c", DAEMON, kind, NAMELESS, str(stay_s)]
    return order(rig, attempt, *argv, task=task)


def log_has_text(log: Path) -> bool:
    return log.read_text() != ""


def pid_in(log: Path) -> int:
    wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
    return int(log.read_text())


def test_the_next_attempt_starts_at_once_with_its_own_log(rig: Rig) -> None:
    for attempt in (1, 2, 3):
        start(rig, attempt, order(rig, attempt, "sh", "-c", f"echo {attempt}; exec sleep 300"))
        log = rig.folder / f"attempt-{attempt}" / "worker:0.log"
        wait_until(partial(log_has_text, log))
        rig.stop(grace_s=5)
        assert rig.exited()["attempt"] == attempt
    logs = [rig.folder / f"attempt-{attempt}" / "worker:0.log" for attempt in (1, 2, 3)]
    assert [log.read_text() for log in logs] == ["1\n", "2\n", "3\n"]


def test_a_task_that_cannot_start_does_not_block_the_others(rig: Rig) -> None:
    argvs = (["true"], ["/no/such/program"], ["sh", "-c", "exit 3"])
    orders = [order(rig, 1, *argv, task=f"worker:{i}") for i, argv in enumerate(argvs)]
    rig.peer.send("start", attempt=1, tasks=orders)
    assert "/no/such/program" in rig.peer.take("start_failed", task="worker:1")["error"]
    assert [rig.exited(f"worker:{i}")["exit_code"] for i in (0, 2)] == [0, 3]
    start(rig, 2, order(rig, 2, "true", task="worker:1"))
    assert rig.exited("worker:1")["attempt"] == 2


def test_the_tf_config_has_the_addresses_of_the_order_and_the_place_of_the_task(rig: Rig) -> None:
    cluster = {"worker": ["a:1", "b:2"]}
    places = {
        "worker:1": {"cluster": {}, "task": {"type": "worker", "index": 1}},
        "evaluator:0": {"cluster": {"evaluator": ["c:3"]}, "task": {"type": "evaluator"}},
    }
    tasks = [
        order(rig, 1, "sh", "-c", 'echo "$TF_CONFIG"', task=task) | {"place": place}
        for task, place in places.items()
    ]
    rig.peer.send("start", attempt=1, tasks=tasks, cluster=cluster)
    found = {}
    for task in places:
        assert rig.exited(task)["exit_code"] == 0
        found[task] = json.loads((rig.folder / "attempt-1" / f"{task}.log").read_text())
    assert found["worker:1"] == {"cluster": cluster, "task": {"type": "worker", "index": 1}}
    assert found["evaluator:0"]["cluster"] == {**cluster, "evaluator": ["c:3"]}


@pytest.mark.linux("stray processes are found in /proc")
def test_a_stray_process_ends_before_the_next_attempt_of_its_task(rig: Rig) -> None:
    names = ("worker:0", "worker:1")
    start(rig, 1, *(daemon(rig, 1, name) for name in names))
    stray = [pid_in(rig.folder / "attempt-1" / f"{name}.log") for name in names]
    rig.stop(grace_s=0)
    rig.exited("worker:0")
    assert is_alive(stray[0]), "it may finish its work while the others train"
    start(rig, 2, order(rig, 2, "sleep", "300"))
    assert [is_alive(pid) for pid in stray] == [False, True]


@pytest.mark.linux("stray processes are found in /proc")
def test_a_stray_process_with_an_empty_environment_ends_after_a_gang_stop(rig: Rig) -> None:
    start(rig, 1, daemon(rig, 1, "worker:0", "no names"), order(rig, 1, "true", task="worker:1"))
    stray = pid_in(rig.folder / "attempt-1" / "worker:0.log")
    rig.stop(grace_s=0)
    rig.exited("worker:0")
    rig.exited("worker:1")
    start(rig, 2, order(rig, 2, "sleep", "300"), order(rig, 2, "sleep", "300", task="worker:1"))
    assert not is_alive(stray)


def test_processes_that_prepare_started_keep_running(rig: Rig) -> None:
    start(rig, 0, daemon(rig, 0, "prepare", "no names", stay_s=0))
    rig.exited("prepare")
    server = pid_in(rig.folder / "attempt-0" / "prepare.log")
    for attempt in (1, 2):
        start(rig, attempt, order(rig, attempt, "true"))
        rig.exited()
    assert is_alive(server)


def test_stopped_and_continued_tasks_are_reported(rig: Rig) -> None:
    rig.start("sh", "-c", "while :; do sleep .05; done")
    rig.peer.send("signal", tasks=["worker:0"], signal=int(signal.SIGSTOP))
    frozen = rig.peer.take("task_frozen")
    del frozen["n"]  # the use of memory may have been reported before
    assert frozen == {
        "type": "task_frozen",
        "task": "worker:0",
        "attempt": 1,
        "signal": signal.SIGSTOP,
    }
    rig.peer.send("signal", tasks=["worker:0"], signal=int(signal.SIGCONT))
    assert rig.peer.take("task_thawed")["attempt"] == 1
    rig.peer.send("signal", tasks=["worker:0"], signal=int(signal.SIGSTOP))
    rig.peer.take("task_frozen")
    rig.stop()
    assert rig.exited()["signal"] == signal.SIGTERM
    assert not [m for m in rig.peer.messages if m["type"] == "task_thawed"]
