"""Imports TensorFlow once for all tasks of a node, and becomes each of them by a fork.

    python …/tfcluster_workers/boot.py preload MODULE…

The agent starts it before it starts tasks, and asks over an inherited Unix socket: an order is a
length (4 bytes), the task's pipe, event socket and failure pipe beside it, then JSON of that
length: argv, env, cwd, cores. The answer is a length and JSON too: `pid`, or `refused` with the
reason. To fork after ``import tensorflow`` is safe before any op, on Linux, and while there is one
thread (measured with TensorFlow 2.15 and 2.21); whatever looks different is refused, and the agent
starts the task cold.

A forked task must not notice: it has the argv, `__main__`, environment, folder, process group,
stdio and random state of a fresh interpreter, and is the agent's own child by a second fork, for
the agent is a subreaper.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time

from tfcluster_workers import boot, event_channel

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NUMBER = struct.Struct(">I")
_DESCRIPTORS = 3
_PR_SET_PDEATHSIG = 1
_MOST_SAID = 64 << 10
"""Bytes of what the imports printed that each task prints again."""
_OURS = (
    "callbacks", "chaos", "event_channel", "failures", "iterator_ends", "keras3", "keras_watch",
    "reporting", "save_watch", "tensorflow_watch", "watching",
)  # fmt: skip
"""What a task of ours needs anyway; none of them does more at its import than to define."""
_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")
"""As OpenBLAS asks for them (its README, "Setting the number of threads using environment")."""


def become_task(names: list[str]) -> None:
    """Serve until the agent closes the socket; returns in a fork only, with a task's `sys.argv`."""
    line = socket.socket(fileno=int(os.environ.pop(event_channel.VARIABLE)))
    agent = os.getppid()
    first = frozenset(sys.modules)
    began = time.monotonic()
    why = import_all(names)
    if not why:
        why = unfit(line.fileno())
    send(line, {"ready": not why, "why": why, "seconds": round(time.monotonic() - began, 3)})
    if why:
        os._exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    said = os.pread(1, _MOST_SAID, 0)
    gc.collect()
    gc.freeze()  # else the first collection in each task would copy every page (gc docs)
    order, fds = serve(line, agent, frozenset(sys.modules) - first)
    line.close()
    settle(order, fds, said)


def import_all(names: Iterable[str]) -> str:
    """Why one of `names` could not be imported; empty: all were. Nothing of the script's folder
    is on the path."""
    sys.path[:1], kept = [], sys.path[:1]
    try:
        for name in names:
            import_one(name)
        for ours in _OURS:
            importlib.import_module(f"tfcluster_workers.{ours}")
    except BaseException as error:  # also SystemExit of a package that dislikes its surroundings
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path[:0] = kept
    return ""


def import_one(name: str) -> None:
    """A module; or, of a package that loads its parts when they are asked for, such a part."""
    package, _, part = name.partition(":")
    module = importlib.import_module(package)
    for attribute in filter(None, part.split(".")):
        module = getattr(module, attribute)


def unfit(line: int) -> str:
    """Why this process must not be forked; empty where it may."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(folder and not os.path.isabs(folder) for folder in folders):
        return "PYTHONPATH names folders relative to the working directory"
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"the imports have started {len(threads) - 1} threads ({_names_of(threads)})"
    for fd in map(int, os.listdir("/proc/self/fd")):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:  # that of the listing itself
            continue
        if target.startswith("socket:") and fd != line:
            return "the imports have opened a socket"
        if target.startswith("/dev/nvidia"):
            return "the imports have opened the GPU's driver"
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    if getattr(context, "_context_handle", None) is not None:
        return "the imports have run an operation of TensorFlow"
    return ""


def _names_of(threads: Iterable[str]) -> str:
    names = []
    for thread in threads:
        with open(f"/proc/self/task/{thread}/comm") as file:
            names.append(file.read().strip())
    return ", ".join(sorted(set(names)))


def serve(
    line: socket.socket, agent: int, imported: frozenset[str]
) -> tuple[dict[str, Any], list[int]]:
    """Fork for every order; returns in the forked task, with its order and descriptors."""
    while True:
        head, fds, _flags, _address = socket.recv_fds(line, NUMBER.size, _DESCRIPTORS)
        if not head:
            os._exit(0)
        order = json.loads(line.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL))
        why = unfit_for(line.fileno(), fds, order, imported)
        if why:
            send(line, {"refused": why})
        elif _fork_twice(line, agent):
            return order, fds
        for fd in fds:
            os.close(fd)


def unfit_for(line: int, fds: list[int], order: dict[str, Any], imported: frozenset[str]) -> str:
    """Why this task must not be a fork of this process; empty where it may."""
    for fd in fds:
        os.set_inheritable(fd, False)
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"{len(threads) - 1} threads have begun ({_names_of(threads)})"
    kind, target = order["argv"][2:4]
    folder = order["cwd"] if kind == "module" else boot.folder_of(target)
    hidden = shadowed(folder, imported)
    return f"{hidden} in {folder} has the name of a module that was imported" if hidden else ""


def shadowed(folder: str, imported: frozenset[str]) -> str:
    """A module that a fresh interpreter would find in the script's own folder first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    for name in sorted(names):
        stem, suffix = os.path.splitext(name)
        is_module = suffix == ".py" or (not suffix and os.path.isdir(os.path.join(folder, name)))
        if is_module and stem in imported and not _is_namespace(folder, name):
            return name
    return ""


def _is_namespace(folder: str, name: str) -> bool:
    """A folder without `__init__.py` gives way to any regular package on the path (PEP 420)."""
    path = os.path.join(folder, name)
    return os.path.isdir(path) and not os.path.isfile(os.path.join(path, "__init__.py"))


def _fork_twice(line: socket.socket, agent: int) -> bool:
    """True in the task, False in the process that goes on serving."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    between = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        send(line, {"refused": str(error)})
        os._exit(0)
    if pid:
        send(line, {"pid": pid})
        os._exit(0)
    os.setpgid(0, 0)
    while os.getppid() == between:  # until the agent has inherited it
        time.sleep(0.0002)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != agent:
        os._exit(127)
    return True


def send(line: socket.socket, answer: dict[str, Any]) -> None:
    """A length, and as many bytes of JSON."""
    encoded = json.dumps(answer).encode()
    line.sendall(NUMBER.pack(len(encoded)) + encoded)


def settle(order: dict[str, Any], fds: list[int], said: bytes) -> None:
    """Be the task from here on; what stands in the way is told to `failed`, as an exec's is."""
    output, events, failed = fds
    try:
        _take_place(order, output, events)
    except OSError as error:
        os.write(failed, f"{order['cwd']}: {error.strerror}".encode(errors="replace"))
        os._exit(127)
    os.close(failed)
    os.write(2, said)  # what a fresh interpreter would have printed at its imports
    show_as(order["argv"])
    random.seed()
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
        set_openblas_threads(os.environ)
    options = sys.orig_argv[: -len(sys.argv)] if hasattr(sys, "orig_argv") else []
    sys.argv[1:] = order["argv"][2:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv = [*options, *sys.argv]
    importlib.invalidate_caches()


def _take_place(order: dict[str, Any], output: int, events: int) -> None:
    if order["cores"]:
        os.sched_setaffinity(0, order["cores"])
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["env"])
    os.environ[event_channel.VARIABLE] = str(events)
    os.chdir(order["cwd"])


def show_as(argv: list[str]) -> None:
    """Have `ps` show the task's command line, as far as there is room (proc(5), arg_start)."""
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # fields 48 and 49
    text = b"\0".join(map(os.fsencode, argv))[: end - start - 1]
    if 0 < start < end:  # both are 0 where they may not be seen
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


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
