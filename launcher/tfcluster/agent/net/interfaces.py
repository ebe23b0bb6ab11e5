"""The network interfaces of this node, and its address on the one that the tasks are to use."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import sys

from tfcluster.agent.processes import IS_LINUX

NODE = "{node}"
"""The part of a pattern that stands for the node's own host name: ``{node}-ib``."""
_SHORTEST = 8
_FAMILIES = {socket.AF_INET: slice(4, 8), socket.AF_INET6: slice(8, 24)}
"""Family → the bytes of its ``sockaddr`` that hold the address (ip(7), ipv6(7))."""


class _Entry(ctypes.Structure):
    """The first members of ``struct ifaddrs`` (getifaddrs(3))."""

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
    )


def find_interfaces() -> list[tuple[str, str]]:
    """Return (interface, address) in the kernel's order, without link-local addresses.

    Raises OSError if the system does not list them.
    """
    first = ctypes.c_void_p()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    interfaces, pointer = [], first.value
    try:
        while pointer:
            entry = _Entry.from_address(pointer)
            address = _read_address(entry.address)
            if address is not None and not address.is_link_local:
                interfaces.append((entry.name.decode(errors="replace"), str(address)))
            pointer = entry.next
    finally:
        libc.freeifaddrs(first)
    return interfaces


def _read_address(pointer: int | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if not pointer:
        return None
    start = ctypes.string_at(pointer, _SHORTEST)
    family = int.from_bytes(start[:2], sys.byteorder) if IS_LINUX else start[1]
    if family not in _FAMILIES:
        return None
    part = _FAMILIES[socket.AddressFamily(family)]
    return ipaddress.ip_address(ctypes.string_at(pointer, part.stop)[part])


def find_host(wanted: str, interfaces: list[tuple[str, str]], own_name: str) -> str | None:
    """Return this node's host for TF_CONFIG: its address on `wanted`, or its name by a pattern.

    `wanted`: the name of an interface, a subnet, or a pattern with `NODE`. IPv4 comes first; an
    IPv6 address is in brackets. None if no interface is the wanted one.
    """
    if NODE in wanted:
        return wanted.replace(NODE, own_name.partition(".")[0])
    subnet = ipaddress.ip_network(wanted, strict=False) if "/" in wanted else None
    on_it = [
        address
        for name, address in interfaces
        if (name == wanted if subnet is None else ipaddress.ip_address(address) in subnet)
    ]
    address = next(iter(sorted(on_it, key=lambda address: ":" in address)), None)
    return f"[{address}]" if address and ":" in address else address
