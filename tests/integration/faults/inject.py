"""Faults that a job injects into itself at an exact phase, which no signal from outside can hit.

`FAULT="KIND TASK PHASE"` (`sigkill worker:1 training`) is a fault of the first attempt; several are
separated by `;`, and the n-th is for attempt n. The jobs of this folder call `at` when they reach a
phase; without FAULT nothing happens. Standard library only: it runs inside the tasks.
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
    """Return the name of this task (`worker:1`), from TF_CONFIG."""
    task = json.loads(os.environ["TF_CONFIG"])["task"]
    return f"{task['type']}:{task['index']}"


def at(phase: str) -> None:
    """Inject the fault of FAULT for this task in `phase`: `before-join`, `training` or `saving`."""
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
    """Allocate memory until the kernel kills this process; the test has limited the whole run."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    eaten = []
    while True:
        eaten.append(b"x" * HOG)


def _import_missing_module() -> None:
    importlib.import_module("a_module_that_nobody_has")


def _never_start() -> None:
    time.sleep(3600)


def _lose_my_port() -> None:
    """Lose the port to a socket that shares it when it binds, and stops sharing afterwards.

    Linux checks for no conflict if the last bind to the port was of the same kind
    (sk_reuseport_match in net/ipv4/inet_connection_sock.c), so two other binds come before it.
    """
    config = json.loads(os.environ["TF_CONFIG"])
    job, _, index = me().partition(":")
    port = int(config["cluster"][job][int(index)].rpartition(":")[2])
    other = socket.socket(socket.AF_INET6)
    other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    thief = socket.socket()
    for taker, address in ((other, "::1"), (thief, "127.0.0.1")):
        taker.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taker.bind((address, port))
    thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 0)
    thieves.extend((other, thief))


KINDS: dict[str, Callable[[], None]] = {
    "sigkill": _signal_myself(signal.SIGKILL),
    "sigstop": _signal_myself(signal.SIGSTOP),
    "sigterm": _signal_myself(signal.SIGTERM),
    "exception": _raise,
    "exit-3": _exit,
    "out-of-memory": _eat_memory,
    "import-error": _import_missing_module,
    "never-starts": _never_start,
    "port-thief": _lose_my_port,
}
