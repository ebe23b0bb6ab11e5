"""The first contact between tasks: one that is early waits until those that it needs listen.

A channel of TensorFlow whose connection was refused tries again after a second (gRPC's first
backoff, which grpc_channel.cc makes the longest one, too). Tasks of several nodes are never at
the same place at the same time, so that every other start would take that second.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time

_PATIENCE_S = 5.0
"""Seconds after which TensorFlow waits itself: the others are not about to listen."""
_PAUSE_S = 0.02
_CONNECT_S = 1.0


def await_leader() -> None:
    """Wait for the leader of the collectives, unless it is this task.

    It is the chief, else the first worker (collective_all_reduce_strategy.py).
    """
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        config = json.loads(os.environ["TF_CONFIG"])
        cluster, task = config["cluster"], config["task"]
        job = "chief" if cluster.get("chief") else "worker"
        if task["type"] in ("chief", "worker") and (task["type"], task["index"]) != (job, 0):
            _await([cluster[job][0]])


def await_servers() -> None:
    """Wait for the workers and parameter servers that a coordinator connects to."""
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        _await([*cluster.get("worker", ()), *cluster.get("ps", ())])


def _await(addresses: list[str]) -> None:
    until = time.monotonic() + _PATIENCE_S
    for address in addresses:
        while not _listens(address) and time.monotonic() < until:
            time.sleep(_PAUSE_S)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except OSError:  # also for a name that is not known yet
        return False
    return True
