"""Turns a fork of the preloaded process into a task that does not notice it is a fork.

The task gets the argv, `__main__`, environment, folder, process group, stdio and random state of a
fresh interpreter.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import random
import signal
import sys

from tfcluster_workers import event_channel
from tfcluster_workers.preload import threads

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from typing import Any

_PR_SET_PDEATHSIG = 1
ROOM = "TFCLUSTER_ROOM"
"""A variable that reserves space in /proc/PID/environ, where the task's `MARKS` are written."""
MARKS = ("TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT")


def become_task(order: dict[str, Any], fds: list[int], agent: int) -> None:
    """Become the task of `order`; an error is written to the failure pipe, as for an exec."""
    output, events, failed, go = fds
    if not os.read(go, 1):
        os._exit(127)  # the agent has given up waiting
    os.close(go)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(127)
    try:
        _set_up_process(order, output, events)
        _seed()
        threads.set_counts(os.environ)
        _set_argv(order["argv"])
    except Exception as error:
        reason = getattr(error, "strerror", None) or repr(error)
        os.write(failed, f"{order['cwd']}: {reason}".encode(errors="replace"))
        os._exit(127)
    os.close(failed)
    os.write(2, order["said"].encode("latin-1"))  # what a fresh process prints at its imports


def _set_up_process(order: dict[str, Any], output: int, events: int) -> None:
    if order["cores"] and sys.platform == "linux":
        os.sched_setaffinity(0, order["cores"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["env"])
    os.environ[event_channel.VARIABLE] = str(events)
    os.set_inheritable(events, True)  # as after an exec, where `boot` takes it over
    os.chdir(order["cwd"])


def _seed() -> None:
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if hasattr(numpy, "random"):
        numpy.random.seed()


def _set_argv(argv: list[str]) -> None:
    """Set the argv of this task, also for `ps` and for tfcluster's clean-up of old processes."""
    overwrite(argv, os.environ)
    options = sys.orig_argv[: -len(sys.argv)] if hasattr(sys, "orig_argv") else []
    sys.argv[1:] = argv[2:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [*options, *sys.argv]
    importlib.invalidate_caches()


def overwrite(argv: list[str], environ: Any) -> None:
    """Overwrite the memory that the kernel shows as this process's command line and environment.

    The command line is cut to the available space (proc(5), fields 48 to 51 of stat). `MARKS` go
    where `ROOM` was, to which no pointer refers.
    """
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    argv_start, argv_end, env_start, env_end = map(int, fields[45:49])
    _fill(argv_start, argv_end - argv_start, b"\0".join(map(os.fsencode, argv)))
    if env_start and env_end:
        block = ctypes.string_at(env_start, env_end - env_start)
        room = block.find(f"\0{ROOM}=".encode()) + 1
        marks = [f"{name}={environ[name]}" for name in MARKS if name in environ]
        if room:
            _fill(env_start + room, block.index(b"\0", room) - room, "\0".join(marks).encode())


def _fill(address: int, size: int, text: bytes) -> None:
    if address and size > 0:  # 0 if the kernel hides it
        ctypes.memmove(address, text[: size - 1].ljust(size, b"\0"), size)
