"""Has Gloo, torch's collectives on CPUs, use the network by which the others know this task.

By itself it looks up the machine's name (torch/csrc/distributed/c10d/ProcessGroupGloo.cpp), which
may be unknown, or be 127.0.1.1 (Debian's /etc/hosts), where no other host reaches it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from types import ModuleType

from tfcluster_workers.hooks import jax_cluster

_INTERFACE = "GLOO_SOCKET_IFNAME"
_SIOCGIFADDR = 0x8915
"""Linux's request for the IPv4 address of an interface (netdevice(7))."""


def choose_interface(_: ModuleType) -> None:
    """Set the variable from which Gloo takes its interface, unless the user has set it."""
    host = jax_cluster.own_host()
    if host and (name := interface_of(host)):
        os.environ.setdefault(_INTERFACE, name)


def interface_of(host: str) -> str:
    """Return the interface of this machine that has an address of `host`; empty if none has."""
    known = {info[4][0] for info in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)}
    return next((name for name, address in _addresses() if address in known), "")


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield interface and address, of those that Linux tells without a library."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("16s24x", name.encode())
            with contextlib.suppress(OSError):  # it has none
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, request)
                yield name, socket.inet_ntoa(answer[20:24])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as table:
        for digits, *_, name in map(str.split, table):
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits))
