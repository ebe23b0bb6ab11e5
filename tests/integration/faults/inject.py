"""Faults that a job does to itself at a phase of its life: what no signal from outside can hit.

``FAULT="KIND TASK PHASE"`` (``sigkill worker:1 training``) names one of the first attempt; several
are divided by ``;``, the n-th is for attempt n. The jobs of this folder call `at` when they reach a
phase; without FAULT nothing ever happens. Standard library only: it runs inside the tasks.
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
    faults = os.environ.get("FAULT", "").split(";")
    attempt = int(os.environ.get("TFCLUSTER_ATTEMPT", "1"))
    if attempt > len(faults) or not faults[attempt - 1]:
        return
    kind, task, when = faults[attempt - 1].split()
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

    Linux does not look for a conflict where the last bind to the port was just like ours
    (sk_reuseport_match in net/ipv4/inet_connection_sock.c), so two other binds come before it.
    """
    config = json.loads(os.environ["TF_CONFIG"])
    job, _, index = me().partition(":")
    port = int(config["cluster"][job][int(index)].rpartition(":")[2])
    other = socket.socket(socket.AF_INET6)
    other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    thief = socket.socket()
    for stranger, address in ((other, "::1"), (thief, "127.0.0.1")):
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        stranger.bind((address, port))
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    thieves.extend((other, thief))


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
