"""What a fork of `preload` does to be its task, which must not notice that it is one.

It has the argv, `__main__`, environment, folder, process group, stdio and random state of a fresh
interpreter.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import signal
import sys

from tfcluster_workers import event_channel

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
ROOM = "TFCLUSTER_ROOM"
"""A variable of nobody's: where it stood, a task's own marks stand in /proc/PID/environ."""
MARKS = ("TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT")
_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""As OpenBLAS asks for them (its README, "Setting the number of threads using environment")."""


def settle(order: dict[str, Any], fds: list[int], agent: int) -> None:
    """Be the task from here on; what stands in the way is told to `failed`, as an exec's is."""
    output, events, failed, go = fds
    if not os.read(go, 1):
        os._exit(127)  # the agent has given up waiting for us
    os.close(go)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(127)
    try:
        _take_place(order, output, events)
        _seed()
        _present(order["argv"])
    except Exception as error:
        words = getattr(error, "strerror", None) or repr(error)
        os.write(failed, f"{order['cwd']}: {words}".encode(errors="replace"))
        os._exit(127)
    os.close(failed)
    os.write(2, order["said"].encode("latin-1"))  # as a fresh one prints it at its imports


def _take_place(order: dict[str, Any], output: int, events: int) -> None:
    if order["cores"]:
        os.sched_setaffinity(0, order["cores"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["env"])
    os.environ[event_channel.VARIABLE] = str(events)
    os.set_inheritable(events, True)  # as `boot` finds it after an exec
    os.chdir(order["cwd"])


def _seed() -> None:
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "random"):
        numpy.random.seed()
        set_openblas_threads(os.environ)


def _present(argv: list[str]) -> None:
    """Have `ps`, and whoever cleans up after a run, find this task's own words."""
    overwrite(argv, os.environ)
    options = sys.orig_argv[: -len(sys.argv)] if hasattr(sys, "orig_argv") else []
    sys.argv[1:] = argv[2:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [*options, *sys.argv]
    importlib.invalidate_caches()


def overwrite(argv: list[str], environ: Any) -> None:
    """In the memory that the kernel shows: the command line, as far as there is room (proc(5),
    fields 48 to 51 of stat), and `MARKS` where `ROOM` was, to which nobody holds a pointer."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    arguments, their_end, variables, last = map(int, fields[45:49])
    _fill(arguments, their_end - arguments, b"\0".join(map(os.fsencode, argv)))
    if variables and last:
        block = ctypes.string_at(variables, last - variables)
        at = block.find(f"\0{ROOM}=".encode()) + 1
        marks = [f"{name}={environ[name]}" for name in MARKS if name in environ]
        if at:
            _fill(variables + at, block.index(b"\0", at) - at, "\0".join(marks).encode())


def _fill(address: int, size: int, text: bytes) -> None:
    if address and size > 0:  # 0 where it may not be seen
        ctypes.memmove(address, text[: size - 1].ljust(size, b"\0"), size)


def set_openblas_threads(environ: Any) -> None:
    """OpenBLAS has read its number of threads at the import, 1: set the one of this task."""
    wanted = next((environ[name] for name in _THREADS if environ.get(name, "").isdigit()), None)
    count = int(wanted or 0) or len(os.sched_getaffinity(0))
    with open("/proc/self/maps") as file:
        paths = {line.split()[-1] for line in file if "openblas" in line}
    for path in paths:
        library = ctypes.CDLL(path)
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_",
                     "scipy_openblas_set_num_threads", "openblas_set_num_threads"):  # fmt: skip
            setter = getattr(library, name, None)
            if setter is not None:
                setter(count)
                break
