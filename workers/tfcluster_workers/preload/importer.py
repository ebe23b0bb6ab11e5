"""Imports TensorFlow once for all tasks of a node, and becomes each of them by a fork.

    python …/tfcluster_workers/boot.py preload MODULE…

The agent starts it before it starts tasks, and asks over an inherited Unix socket: an order is a
length (4 bytes), with it the task's pipe, its event socket, its failure pipe and one that says go,
then JSON of that length: argv, env, cwd, cores, and what the imports printed. The answer is a
length and JSON too: `pid`, or `refused` with the reason. The task begins when the agent, which has
its process id by then, says go, and ends when that pipe ends.

To fork after ``import tensorflow`` is safe before any op, on Linux, and while there is one
thread (measured with TensorFlow 2.15 and 2.21); whatever looks different is refused, and the agent
starts the task cold.

It becomes the agent's own child by a second fork, for the agent is a subreaper.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.machinery
import json
import os
import socket
import struct
import sys
import time

from tfcluster_workers import event_channel, script_paths
from tfcluster_workers.preload import forked_task

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NUMBER = struct.Struct(">I")
_DESCRIPTORS = 4
_MOST_WORDS = 2000
"""Of a reason, characters."""
_OURS = (
    "callbacks", "chaos", "event_channel", "failures", "hooks.iterator_ends", "hooks.keras_hooks",
    "hooks.save_hooks", "hooks.tensorflow_hooks", "import_hooks", "keras3.patching", "reporting",
)  # fmt: skip
"""What a task of ours needs anyway; none of them does more at its import than to define."""
_SUFFIXES = frozenset(importlib.machinery.all_suffixes())


def become_task(names: list[str], first: frozenset[str], *, is_path_safe: bool) -> None:
    """Serve until the agent closes the socket; returns in a fork only, with a task's `sys.argv`.

    `first`: the modules that a fresh task has when its script begins.
    """
    line = socket.socket(fileno=int(os.environ.pop(event_channel.VARIABLE)))
    line.set_inheritable(False)
    agent = os.getppid()
    began = time.monotonic()
    gc.disable()  # a third of the time that TensorFlow's import takes: hardly any of it is garbage
    why = import_all(names, is_path_safe=is_path_safe)
    if not why:
        why = unfit(line.fileno())
    sys.stdout.flush()
    sys.stderr.flush()
    seconds = round(time.monotonic() - began, 3)
    send(line, {"ready": not why, "why": why[:_MOST_WORDS], "seconds": seconds})
    if why:
        os._exit(1)
    gc.freeze()  # else the first collection in each task would copy every page (gc docs)
    gc.enable()
    order, fds = serve(line, frozenset(sys.modules) - first)
    line.close()
    forked_task.settle(order, fds, agent)


def import_all(names: Iterable[str], *, is_path_safe: bool) -> str:
    """Why one of `names` could not be imported; empty: all were. Nothing of the script's folder
    is on the path."""
    kept = [] if is_path_safe else sys.path[:1]
    del sys.path[: len(kept)]
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
    """A module; or, of a package that loads its parts when they are asked for, such a part.

    A part that this release does not have is left out: a script may name `tf.estimator` for older
    ones only.
    """
    package, _, part = name.partition(":")
    module: Any = importlib.import_module(package)
    for attribute in filter(None, part.split(".")):
        module = getattr(module, attribute, None)


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
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/comm") as file:
            names.append(file.read().strip())
    return ", ".join(sorted(set(names)))


def serve(line: socket.socket, imported: frozenset[str]) -> tuple[dict[str, Any], list[int]]:
    """Fork for every order; returns in the forked task, with its order and descriptors."""
    while True:
        head, fds, _flags, _address = socket.recv_fds(line, NUMBER.size, _DESCRIPTORS)
        if not head:
            os._exit(0)
        for fd in fds:
            os.set_inheritable(fd, False)
        order = json.loads(line.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL))
        kind, target = order["argv"][2:4]
        folder = order["cwd"] if kind == "module" else script_paths.folder_of(target)
        why = unfit_for(folder, imported)
        if why:
            send(line, {"refused": why})
        elif _fork_twice(line, fds):
            return order, fds
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def unfit_for(folder: str, imported: frozenset[str]) -> str:
    """Why a task whose script lies in `folder` must not be a fork; empty where it may."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > 1:
        return f"{len(threads) - 1} threads have begun ({_names_of(threads)})"
    hidden = shadowed(folder, imported)
    return f"{hidden} in {folder} has the name of a module that was imported" if hidden else ""


def shadowed(folder: str, imported: frozenset[str]) -> str:
    """A module that a fresh interpreter would find in the script's own folder first."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    for name in sorted(names):
        stem, dot, suffix = name.partition(".")
        is_module = dot + suffix in _SUFFIXES or (not dot and not _is_namespace(folder, name))
        if stem in imported and is_module:
            return name
    return ""


def _is_namespace(folder: str, name: str) -> bool:
    """A folder without `__init__.py` gives way to any regular package on the path (PEP 420)."""
    return not os.path.isfile(os.path.join(folder, name, "__init__.py"))


def _fork_twice(line: socket.socket, fds: list[int]) -> bool:
    """True in the task, False in the process that goes on serving.

    That one holds none of the task's descriptors when it answers, and the agent has inherited the
    task by then.
    """
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        os.close(told)
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid == 0:
            os.setpgid(0, 0)
            os.close(tell)
            return True
        os.write(tell, NUMBER.pack(pid))
        os._exit(0)
    os.close(tell)
    for fd in fds:
        os.close(fd)
    os.waitpid(between, 0)
    answer = os.read(told, NUMBER.size)
    os.close(told)
    if answer:
        send(line, {"pid": NUMBER.unpack(answer)[0]})
    else:
        send(line, {"refused": "this system has no room for another process"})
    return False


def send(line: socket.socket, answer: dict[str, Any]) -> None:
    """A length, and as many bytes of JSON."""
    encoded = json.dumps(answer).encode()
    line.sendall(NUMBER.pack(len(encoded)) + encoded)
