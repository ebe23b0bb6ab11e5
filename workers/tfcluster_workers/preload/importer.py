"""The preloaded process: imports TensorFlow once for all tasks of a node and forks each of them.

    python …/tfcluster_workers/boot.py preload MODULE…

The agent starts it before the tasks and sends orders over an inherited Unix socket. An order is a
length (4 bytes) with four descriptors (the task's output pipe, its event socket, its failure pipe
and its go pipe), then JSON of that length: argv, env, cwd, cores, and what the imports printed. The
answer is a length and JSON: `pid`, or `refused` with the reason. The task starts when the agent,
which then knows its process id, writes to the go pipe; it exits if the agent closes the pipe.

Forking after `import tensorflow` is safe on Linux, before any op and with a single thread, besides
those that a fork may lack (`threads`; tested with TensorFlow 2.15 and 2.21). In any other case the
order is refused, and the agent starts the task without preloading.

A second fork makes the task the agent's own child, since the agent is a subreaper.
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
import warnings

from tfcluster_workers import event_channel
from tfcluster_workers.preload import forked_task, script_paths, threads
from tfcluster_workers.preload.import_watch import ImportWatch, explain

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

NUMBER = struct.Struct(">I")
_DESCRIPTORS = 4
_MAX_REASON = 2000
"""Characters of a reason that are sent."""
_TASK_MODULES = (
    "callbacks", "chaos", "event_channel", "failures", "hooks.import_hooks", "hooks.iterator_ends",
    "hooks.keras_hooks", "hooks.save_hooks", "hooks.tensorflow_hooks", "keras3.patching",
    "reporting", "saving.places", "saving.shared_saves", "saving.whole_files",
)  # fmt: skip
"""Modules of tfcluster_workers that every task needs; importing them has no side effects."""
_SUFFIXES = frozenset(importlib.machinery.all_suffixes())


def become_task(names: list[str], initial_modules: frozenset[str], *, is_path_safe: bool) -> None:
    """Serve until the agent closes the socket; returns only in a fork, with a task's `sys.argv`.

    `initial_modules` are those that a fresh task has loaded when its script starts.
    """
    agent_socket = socket.socket(fileno=int(os.environ.pop(event_channel.VARIABLE)))
    agent_socket.set_inheritable(False)
    agent = os.getppid()
    started = time.monotonic()
    gc.disable()  # collections take a third of TensorFlow's import time and find hardly any garbage
    threads.prevent(os.environ)
    with ImportWatch() as watch:
        reason = import_all(names, is_path_safe=is_path_safe)
    if not reason:
        reason = why_unsafe(agent_socket.fileno(), watch, names)
    sys.stdout.flush()
    sys.stderr.flush()
    seconds = round(time.monotonic() - started, 3)
    send(agent_socket, {"ready": not reason, "why": reason[:_MAX_REASON], "seconds": seconds})
    if reason:
        os._exit(1)
    gc.freeze()  # else the first collection in each task would copy every page (gc docs)
    gc.enable()
    order, fds = serve(agent_socket, frozenset(sys.modules) - initial_modules)
    agent_socket.close()
    forked_task.become_task(order, fds, agent)


def import_all(names: Iterable[str], *, is_path_safe: bool) -> str:
    """Import all `names`, without the script's folder; return the reason of a failure, or ""."""
    script_folder = [] if is_path_safe else sys.path[:1]
    del sys.path[: len(script_folder)]
    try:
        for name in names:
            import_one(name)
        for module in _TASK_MODULES:
            importlib.import_module(f"tfcluster_workers.{module}")
    except BaseException as error:  # also SystemExit, which some packages raise at import
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path[:0] = script_folder
    return ""


def import_one(name: str) -> None:
    """Import a module `a.b`, or with `a:b` the lazily loaded part `b` of the package `a`.

    A part that this release does not have is skipped: a script may use `tf.estimator` only with
    older ones.
    """
    package, _, part = name.partition(":")
    module: Any = importlib.import_module(package)
    for attribute in filter(None, part.split(".")):
        module = getattr(module, attribute, None)


def why_unsafe(agent_socket: int, watch: ImportWatch, names: Iterable[str]) -> str:
    """Return why this process must not be forked after importing `names`; empty if it may be."""
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(folder and not os.path.isabs(folder) for folder in folders):
        return "PYTHONPATH has folders relative to the working directory: make them absolute"
    needed = {name.partition(":")[0].partition(".")[0] for name in names}
    hazards = watch.hazards(agent_socket)
    return next((explain(what, packages, needed) for what, packages in hazards), "")


def serve(
    agent_socket: socket.socket, imported: frozenset[str]
) -> tuple[dict[str, Any], list[int]]:
    """Fork for every order; returns in the forked task, with its order and descriptors."""
    while True:
        head, fds, _flags, _address = socket.recv_fds(agent_socket, NUMBER.size, _DESCRIPTORS)
        if not head:
            os._exit(0)
        for fd in fds:
            os.set_inheritable(fd, False)
        order = json.loads(agent_socket.recv(NUMBER.unpack(head)[0], socket.MSG_WAITALL))
        kind, target = order["argv"][2:4]
        folder = order["cwd"] if kind == "module" else script_paths.folder_of(target)
        reason = why_unsafe_for(folder, imported)
        if reason:
            send(agent_socket, {"refused": reason})
        elif _fork_twice(agent_socket, fds):
            return order, fds
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def why_unsafe_for(folder: str, imported: frozenset[str]) -> str:
    """Return why a task with its script in `folder` must not be a fork; empty if it may be."""
    if late := threads.unsafe():
        names = ", ".join(sorted(filter(None, late.values()))) or "without names"
        return f"{len(late)} threads have started since the imports ({names})"
    hidden = shadowed(folder, imported)
    return f"{hidden} in {folder} has the name of a module that was imported" if hidden else ""


def shadowed(folder: str, imported: frozenset[str]) -> str:
    """Return an imported module that a fresh interpreter would find in `folder` first, or ""."""
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
    """Return whether a folder has no `__init__.py`: regular packages come before it (PEP 420)."""
    return not os.path.isfile(os.path.join(folder, name, "__init__.py"))


def _fork_twice(agent_socket: socket.socket, fds: list[int]) -> bool:
    """Fork the task; return True in the task, and False in the process that continues to serve.

    When the latter answers, it holds none of the task's descriptors, and the agent has inherited
    the task.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():  # Python 3.12 warns of every thread, also of safe ones
        warnings.simplefilter("ignore", DeprecationWarning)
        intermediate = os.fork()
    if intermediate == 0:
        os.close(reader)
        try:
            pid = os.fork()
        except OSError:
            os._exit(1)
        if pid == 0:
            os.setpgid(0, 0)
            os.close(writer)
            return True
        os.write(writer, NUMBER.pack(pid))
        os._exit(0)
    os.close(writer)
    for fd in fds:
        os.close(fd)
    os.waitpid(intermediate, 0)
    answer = os.read(reader, NUMBER.size)
    os.close(reader)
    if answer:
        send(agent_socket, {"pid": NUMBER.unpack(answer)[0]})
    else:
        send(agent_socket, {"refused": "the system's limit of processes is reached"})
    return False


def send(agent_socket: socket.socket, answer: dict[str, Any]) -> None:
    """Send `answer` as a length and that many bytes of JSON."""
    encoded = json.dumps(answer).encode()
    agent_socket.sendall(NUMBER.pack(len(encoded)) + encoded)
