"""Faults that a job does to itself at a phase of its life: what no signal from outside can hit.

``FAULT="KIND TASK PHASE"`` (``sigkill worker:1 training``) names one; it happens in the first
attempt only. The jobs of this folder call `at` when they reach a phase; without FAULT nothing ever
happens. Standard library only, Python 3.9 and later: it runs inside the tasks.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable

HOG = 16 << 20
thieves: list[socket.socket] = []


def me() -> str:
    """``worker:1``, from TF_CONFIG."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return f"{task['type']}:{task['index']}"


def at(phase: str) -> None:
    """Do what FAULT asks of this task in `phase`: ``before-join``, ``training``, ``saving``."""
    if os.environ.get("TFCLUSTER_ATTEMPT", "1") != "1" or not os.environ.get("FAULT"):
        return
    kind, task, when = os.environ["FAULT"].split()
    if (task, when) == (me(), phase):
        print(f"fault {kind} at {time.time():.3f}", flush=True)
        KINDS[kind]()


def _signal_myself(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def _raise() -> None:
    raise KeyError("a key that the data lack")


def _exit() -> None:
    sys.exit(3)


def _eat_memory() -> None:
    """Until the kernel ends it; the test has put a limit around the whole run."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    eaten = []
    while True:
        eaten.append(b"x" * HOG)


def _import_what_is_not_there() -> None:
    importlib.import_module("a_module_that_nobody_has")


def _never_start() -> None:
    time.sleep(3600)


def _lose_my_port() -> None:
    """To one that shares ports like us when it binds, and with nobody afterwards.

    On another address than ours, or Linux would not look for a conflict (sk_reuseport_match).
    """
    config = json.loads(os.environ["TF_CONFIG"])
    job, _, index = me().partition(":")
    thief = socket.socket()
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    thief.bind(("127.0.0.1", int(config["cluster"][job][int(index)].rpartition(":")[2])))
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    thieves.append(thief)


KINDS: dict[str, Callable[[], None]] = {
    "sigkill": _signal_myself(signal.SIGKILL),
    "sigstop": _signal_myself(signal.SIGSTOP),
    "sigterm": _signal_myself(signal.SIGTERM),
    "exception": _raise,
    "exit-3": _exit,
    "out-of-memory": _eat_memory,
    "import-error": _import_what_is_not_there,
    "never-starts": _never_start,
    "port-thief": _lose_my_port,
}
