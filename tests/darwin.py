"""A stand-in for macOS on Linux: ``TFCLUSTER_TEST_PLATFORM=darwin pytest …`` (`make test-darwin`).

The platform's name changes, functions and constants that macOS lacks are removed, and its kernel's
refusals are repeated: no /proc, no cgroups, no abstract sockets, shorter paths of sockets. Child
processes that are Pythons get the same. It runs on Python 3.9, and without other packages.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import types
from itertools import takewhile
from typing import Any

HIDDEN = ("/proc", "/sys", "/dev/shm", "/dev/kmsg")
LONGEST_SOCKET_PATH = 103
MISSING: dict[Any, tuple[str, ...]] = {
    os: (
        *("copy_file_range", "eventfd", "fdatasync", "getrandom", "getresgid", "getresuid"),
        *("memfd_create", "pidfd_open", "pipe2", "posix_fadvise"),
        *("posix_fallocate", "setns", "setresgid", "setresuid"),
        *("splice", "unshare", "waitid", "O_DIRECT", "O_NOATIME", "O_PATH"),
        *(name for name in dir(os) if name.startswith(("sched_get", "sched_set", "MFD_"))),
    ),
    fcntl: tuple(
        name
        for name in dir(fcntl)
        if name.startswith(("F_OFD_", "F_SEAL_", "F_ADD_SEALS", "F_GET_SEALS", "F_NOTIFY"))
        or name in ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_SETSIG", "F_GETSIG")
    ),
    resource: ("prlimit", "RUSAGE_THREAD"),
    signal: (
        *("pidfd_send_signal", "sigtimedwait", "sigwaitinfo"),
        *("SIGPOLL", "SIGPWR", "SIGSTKFLT", "SIGRTMAX", "SIGRTMIN"),
    ),
    socket: (
        *("AF_NETLINK", "AF_PACKET", "AF_VSOCK", "SO_BINDTODEVICE", "SO_MARK", "SO_PEERCRED"),
        *("SO_DOMAIN", "SO_PASSCRED", "SO_PROTOCOL", "SOCK_CLOEXEC", "SOCK_NONBLOCK"),
        *("TCP_CORK", "TCP_INFO", "TCP_QUICKACK", "TCP_USER_TIMEOUT"),
        *("MSG_CMSG_CLOEXEC", "MSG_NOSIGNAL"),
    ),
    time: ("CLOCK_BOOTTIME", "pthread_getcpuclockid"),
}
MISSING_IN_LIBC = (
    *("prctl", "unshare", "setns", "inotify_init1", "inotify_add_watch", "syscall"),
    *("sched_setaffinity", "malloc_trim", "gnu_get_libc_version"),
)


_XDIST = "import sys;exec(eval(sys.stdin.readline()))"
"""The program of pytest-xdist's workers, which read this file in conftest.py."""


def become_darwin() -> None:
    """Make this process, and the Pythons that it starts, believe to be on macOS."""
    with contextlib.suppress(ImportError):
        import psutil  # noqa: F401  # its parts for macOS are not installed here
    sys.modules["_scproxy"] = proxies = types.ModuleType("_scproxy")  # for urllib.request
    vars(proxies).update(_get_proxies=dict, _get_proxy_settings=dict)
    sysconfig.get_config_vars()  # reads a file whose name has the platform's
    sys.platform = "darwin"
    uname = os.uname()
    os.uname = lambda: os.uname_result(("Darwin", *uname[1:2], "24.0.0", "Darwin", "arm64"))
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in ("stat", "lstat", "readlink", "access"):
        setattr(os, name, _hiding(getattr(os, name)))
    sys.addaudithook(_refuse)
    wait4 = os.wait4

    def wait4_in_bytes(pid: int, options: int) -> Any:
        ended, status, usage = wait4(pid, options)
        return ended, status, resource.struct_rusage([*usage[:2], usage[2] << 10, *usage[3:]])

    os.wait4 = wait4_in_bytes
    start, execute = subprocess.Popen.__init__, os.execvpe

    def execute_as_darwin(file: str, argv: list[str], env: dict[str, str]) -> None:
        execute(file, as_darwin(argv), env)

    vars(os)["execvpe"] = execute_as_darwin

    def start_as_darwin(self: Any, args: Any, *more: Any, **options: Any) -> None:
        if not isinstance(args, (str, bytes)) and not options.get("executable"):
            args = as_darwin([os.fspath(word) for word in args])
        start(self, args, *more, **options)

    subprocess.Popen.__init__ = start_as_darwin  # type: ignore[method-assign]


def as_darwin(argv: list[str]) -> list[str]:
    """Return the command line with which a Python starts as on macOS; others are as they are."""
    if not os.path.basename(argv[0]).startswith("python"):
        return argv
    options = [argv[0], *takewhile(_is_flag, argv[1:])]
    rest = argv[len(options) :]
    if not rest or rest[0] in ("-V", "--version") or _XDIST in rest:
        return argv
    begin = f"import runpy; runpy.run_path({__file__!r})['become_darwin'](); "
    if rest[0] == "-c":
        return [*options, "-c", begin + f"exec({rest[1]!r})", *rest[2:]]
    if rest[0] == "-m":
        code = f"sys.argv[0] = ''; runpy.run_module({rest[1]!r}, None, '__main__', True)"
        return [*options, "-c", begin + "import sys; " + code, *rest[2:]]
    folder = os.path.dirname(os.path.realpath(rest[0]))
    code = f"sys.argv[0] = {rest[0]!r}; sys.path[0] = {folder!r}"
    code += f"; runpy.run_path({rest[0]!r}, None, '__main__')"
    return [*options, "-c", begin + "import sys; " + code, *rest[1:]]


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word not in ("-c", "-m", "-V", "--version")


def _is_hidden(path: Any) -> bool:
    if not isinstance(path, (str, bytes, os.PathLike)):
        return False
    name = os.fsdecode(path)
    return any(name == root or name.startswith(root + "/") for root in HIDDEN) and not _is_psutil()


def _is_psutil() -> bool:
    """Return whether psutil asks, which has other ways on macOS."""
    frame: Any = sys._getframe(2)
    for _ in range(8):
        if frame is None:
            return False
        if frame.f_globals.get("__name__", "").startswith("psutil"):
            return True
        frame = frame.f_back
    return False


def _hiding(function: Any) -> Any:
    def ask(path: Any, *args: Any, **options: Any) -> Any:
        if _is_hidden(path):
            if function.__name__ == "access":
                return False
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))
        return function(path, *args, **options)

    return ask


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    """Refuse what macOS's kernel and libraries do not have; called for every audit event."""
    if event in ("open", "os.listdir", "os.scandir", "os.chdir"):
        if _is_hidden(args[0]):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0])
    elif event in ("socket.bind", "socket.connect"):
        address = args[1]
        if isinstance(address, (str, bytes)):
            name = os.fsencode(address)
            if name.startswith(b"\0"):
                raise FileNotFoundError(errno.ENOENT, "no abstract sockets on macOS")
            if len(name) > LONGEST_SOCKET_PATH:
                raise OSError("AF_UNIX path too long")
    elif event == "socket.__new__":
        if args[1] == socket.AF_UNIX and args[2] == socket.SOCK_SEQPACKET:
            raise OSError(errno.EPROTONOSUPPORT, "no SOCK_SEQPACKET on macOS")
    elif event == "ctypes.dlsym" and args[1] in MISSING_IN_LIBC:
        raise AttributeError(f"{args[1]}: symbol not found")
