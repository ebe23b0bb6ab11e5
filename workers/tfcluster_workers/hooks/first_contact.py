"""The first contact between tasks: one that is early waits until those that it needs listen.

A channel of TensorFlow whose connection was refused tries again after a second (gRPC's first
backoff, which grpc_channel.cc makes the longest one, too). Tasks of several nodes are never at
the same place at the same time, so that every other start would take that second.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping

_PATIENCE_S = 5.0
"""Seconds after which TensorFlow waits itself: the others are not about to listen."""
_PAUSE_S = 0.02
_CONNECT_S = 1.0

Cluster = Mapping[str, Mapping[int, str]]
"""Job → index → address."""


def await_leader(cluster: Cluster, job: str, index: int) -> None:
    """Wait for the leader of the collectives, unless it is this task.

    It is the chief, else the first worker (multi_worker_util.collective_leader).
    """
    leader = ("chief" if cluster.get("chief") else "worker", 0)
    if (job, index) != leader and (address := cluster.get(leader[0], {}).get(0)) is not None:
        _await([address])


def await_others(cluster: Cluster, job: str, index: int) -> None:
    """Wait for all other tasks, to which a coordinator connects."""
    tasks = (
        (name, number, address) for name, at in cluster.items() for number, address in at.items()
    )
    _await(address for name, number, address in tasks if (name, number) != (job, index))


def _await(addresses: Iterable[str]) -> None:
    until = time.monotonic() + _PATIENCE_S
    for address in addresses:
        while (left_s := until - time.monotonic()) > 0:
            if _listens(address, min(_CONNECT_S, left_s)):
                break
            time.sleep(_PAUSE_S)


def _listens(address: str, patience_s: float) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), patience_s).close()
    except (OSError, ValueError):  # also for a name that is not known yet
        return False
    return True
