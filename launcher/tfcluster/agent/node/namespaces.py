"""The private network of a local run: a network namespace that has only loopback, or one of a
simulated network (`join_network`).

TensorFlow listens on every address. The agent enters a new network namespace before it starts
anything, so all tasks are in it and no other process can reach their ports. Without root this needs
a user namespace too (user_namespaces(7)), which maps the user and the group to themselves: the
tasks' files belong to the user as usual, and files of the user's other groups stay readable. Unix
sockets (the coordinator's connection) cross network namespaces; TCP does not, so tasks have no
internet access.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from collections.abc import Callable, Mapping

from tfcluster.agent.error_text import reason_of
from tfcluster.agent.processes import IS_LINUX, read_bytes

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _IS_UP = 0x8913, 0x8914, 0x1
_HOST_INSTEAD = "--set runtime.network=host, on a network you trust"


class PrivateNetworkRefused(Exception):
    """The system refuses a private network; `fix` says what to change."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(f"no private network: {reason}")
        self.message, self.fix = f"no private network: {reason}", fix


def enter_private_network() -> None:
    """Move this process, which must have one thread, into a network that has only loopback.

    Raises PrivateNetworkRefused; the process must then exit.
    """
    if not IS_LINUX:
        raise PrivateNetworkRefused("it needs Linux's namespaces", _HOST_INSTEAD)
    try:
        _unshare()
        _raise_loopback()
    except OSError as error:
        raise why_refused(error) from error


def join_network(doors: Mapping[str, str]) -> None:
    """Move this process, which must have one thread, into namespaces that another one made.

    `doors`: paths of the namespaces, by kind; ``user`` before ``net``. Raises
    PrivateNetworkRefused; the process must then exit.
    """
    try:
        for kind in sorted(doors, reverse=True):
            namespace = os.open(doors[kind], os.O_RDONLY | os.O_CLOEXEC)
            enter_namespace(namespace)
            os.close(namespace)
    except OSError as error:
        raise PrivateNetworkRefused(
            f"the simulated network is gone ({reason_of(error)})", "start the run again"
        ) from error


def new_network() -> None:
    """Move this process into a further network, as enter_private_network does; raises OSError."""
    _unshare_flags(_NEW_NETWORK)
    _raise_loopback()


def open_network() -> int:
    """Return a descriptor of this process's network namespace, which keeps that alive."""
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_namespace(namespace: int) -> None:
    """Move this process into the namespace of a descriptor; raises OSError."""
    _check(_libc().setns(namespace, 0))


def _unshare() -> None:
    uid, gid = os.geteuid(), os.getegid()
    try:
        # As root no user namespace is needed, and it would hide the files of all other users.
        _unshare_flags(_NEW_NETWORK)
    except PermissionError:
        _unshare_flags(_NEW_USER | _NEW_NETWORK)
        _write("/proc/self/setgroups", "deny")  # without it a group cannot be mapped
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")


def _unshare_flags(flags: int) -> None:
    _check(_libc().unshare(flags))  # os.unshare is new in Python 3.12


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        answer = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sh22x", b"lo", 0))
        (flags,) = struct.unpack_from("16xh", answer)
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh22x", b"lo", flags | _IS_UP))


def read_setting(name: str) -> str:
    """Return a file below /proc as stripped text, or "" if it does not exist."""
    return read_bytes(f"/proc/{name}").decode(errors="replace").strip()


def why_refused(error: OSError, read: Callable[[str], str] = read_setting) -> PrivateNetworkRefused:
    """Return the refusal that explains `error` by the system's settings."""
    for setting, refuses, allows, owner in (
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "0", "AppArmor"),
        ("kernel/unprivileged_userns_clone", "0", "1", "this system"),
        ("user/max_user_namespaces", "0", "15000", "this system"),
        ("user/max_net_namespaces", "0", "15000", "this system"),
    ):
        if read(f"sys/{setting}") == refuses:
            name = setting.replace("/", ".", 1)
            return PrivateNetworkRefused(
                f"{owner} forbids user namespaces ({name}={refuses})",
                f"sudo sysctl -w {name}={allows}, or {_HOST_INSTEAD}",
            )
    if "Seccomp:\t2" in read("self/status"):
        return PrivateNetworkRefused(
            f"a seccomp filter, such as docker's, forbids namespaces ({reason_of(error)})",
            f"docker run --security-opt seccomp=unconfined, or {_HOST_INSTEAD}",
        )
    return PrivateNetworkRefused(
        f"the system refuses namespaces ({reason_of(error)})",
        f"have user namespaces enabled (user_namespaces(7)), or {_HOST_INSTEAD}",
    )
