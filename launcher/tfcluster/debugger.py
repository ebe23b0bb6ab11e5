"""debugpy in a task of a live run, and the tunnel to it (`tfcluster debug`).

Both need only commands beside the task (`Run.exec`): one has debugpy listen in the task's process,
and each connection of a debugger to this machine's port is joined to one that dials debugpy.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import reason_of
from tfcluster.errors import InterpreterError, SetupError, TfclusterError

if TYPE_CHECKING:
    from tfcluster.rundir.exec_stream import ExecEnd

ATTACH = """
import importlib.util, json, os, platform, signal, sys, time

NAMES = ("TFCLUSTER_RUN_ID", "TFCLUSTER_TASK", "TFCLUSTER_ATTEMPT")
MARKS = {("%s=%s" % (name, os.environ.get(name))).encode() for name in NAMES}

def read(*path):
    try:
        with open(os.path.join("/proc", *path), "rb") as file:
            return file.read()
    except OSError:
        return b""

def find_port():
    for pid in filter(str.isdigit, os.listdir("/proc")):
        words = read(pid, "cmdline").split(b"\\0")
        if any(word.endswith(b"debugpy/adapter") for word in words[:3]):
            if MARKS <= set(read(pid, "environ").split(b"\\0")):
                return int(words[words.index(b"--port") + 1])
    return 0

def listens(port):
    rows = [row.split() for row in read("net", "tcp").splitlines()[1:]]
    return any(int(row[1].split(b":")[1], 16) == port and row[3] == b"0A" for row in rows)

def handles(pid, number):
    fields = dict(line.split(b":", 1) for line in read(pid, "status").splitlines())
    return int(fields.get(b"SigCgt", b"0"), 16) >> number - 1 & 1

def tell(**facts):
    print(json.dumps({"python": sys.executable, "cwd": os.getcwd(), **facts}))
    sys.exit()

if not os.path.exists("/proc/self"):
    tell(obstacle="no /proc")
if port := find_port():
    tell(port=port)
if importlib.util.find_spec("debugpy") is None:
    tell(obstacle="no debugpy")
if sys.version_info < (3, 12) and platform.machine() != "x86_64":
    tell(obstacle="no helper")
number = signal.SIGRTMAX - 2
if not handles(sys.argv[1], number):
    tell(obstacle="no hooks")
os.kill(int(sys.argv[1]), number)
until = time.monotonic() + 30
while not listens(port := find_port()):
    if time.monotonic() > until:
        tell(obstacle="silent")
    time.sleep(0.1)
tell(port=port)
"""
"""Has debugpy listen in the process whose id is its argument; prints a JSON object about it.

It sends the signal of `tfcluster_workers.debugging`, which would end a process that lacks these.
"""
RELAY = """
import os, socket, sys, threading

peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))

def send():
    while data := os.read(0, 65536):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)

threading.Thread(target=send, daemon=True).start()
while data := peer.recv(65536):
    while data:
        data = data[os.write(1, data):]
os._exit(0)
"""
"""Joins its stdin and stdout to the port that is its argument."""


class Execute(Protocol):
    """Runs a command beside the task; see `Run.exec`."""

    def __call__(
        self, argv: Sequence[str], *, stdin: int | None, stdout: int, stderr: int
    ) -> ExecEnd: ...


@dataclass(frozen=True, slots=True)
class Listening:
    """A debugpy that listens in a task."""

    port: int
    """The port on 127.0.0.1 of the task's node."""
    folder: str
    """The task's working directory."""


def attach(execute: Execute, task: str, pid: int) -> Listening:
    """Have debugpy listen in the process `pid` of a task, unless it does already.

    Raises InterpreterError if the task's Python finds no debugpy, else SetupError.
    """
    read, write = os.pipe()
    with open(read, "rb") as answer, open(write, "wb") as told:
        # The answer is one line, shorter than the pipe.
        end = execute(
            ["python3", "-c", ATTACH, str(pid)], stdin=None, stdout=told.fileno(), stderr=2
        )
        told.close()
        line = answer.read()
    if end.task_has_ended:
        fix = "`tfcluster logs` shows the end of its output"
        raise SetupError(f"{task} has ended while debugpy attached to it", fix=fix)
    if end.code != 0 or not line:
        raise SetupError(
            f"debugpy cannot be attached to {task}: its Python ended with exit code {end.code}",
            fix=f"`tfcluster exec {task} -- python3 -m debugpy --version` shows whether it runs",
        )
    facts = foreign_json.parse_json_object(line)
    if not (port := facts.get("port")):
        raise _refusal(task, facts)
    return Listening(int(port), str(facts["cwd"]))


def _refusal(task: str, facts: Mapping[str, Any]) -> SetupError:
    by_hand = "start the task under a debugger by hand: tfcluster up SPEC --except TASK"
    match facts["obstacle"]:
        case "no debugpy":
            python = facts["python"]
            return InterpreterError(
                f"{task} cannot be debugged: its Python, {python}, finds no debugpy",
                fix=f"tfcluster exec {task} -- {python} -m pip install debugpy; for a container, in"
                " its image",
            )
        case "no hooks":
            return SetupError(
                f"{task} cannot be debugged: its process runs without hooks (`job.hooks: off`, a"
                " `command`), or has only just begun",
                fix=by_hand,
            )
        case "no helper":
            return SetupError(
                f"{task} cannot be debugged: before Python 3.12, debugpy cannot enter running"
                " threads on its processor",
                fix=by_hand,
            )
        case "no /proc":
            return SetupError(f"{task} cannot be debugged: its machine has no /proc", fix=by_hand)
    return SetupError(
        f"debugpy does not listen in {task}: its main thread is in native code, or debugpy has"
        " failed",
        fix="`tfcluster stacks` shows where it is, its log an error; try again once it goes on",
    )


@contextlib.contextmanager
def tunnel(execute: Execute, remote_port: int, *, port: int = 0) -> Iterator[int]:
    """Join a port of this machine, on 127.0.0.1, to `remote_port` of the task's node.

    Yield its number; 0 chooses a free one. The connections end with the block. Raises SetupError.
    """
    peers: list[socket.socket] = []

    def carry(peer: socket.socket) -> None:
        # The debugger sees the end of its connection.
        with peer, contextlib.suppress(TfclusterError, OSError):
            streams = {"stdin": peer.fileno(), "stdout": peer.fileno(), "stderr": 2}
            execute(["python3", "-c", RELAY, str(remote_port)], **streams)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = listener.accept()
                peers.append(peer)
                threading.Thread(target=carry, args=(peer,), daemon=True).start()

    try:
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        fix = "choose another one with --port, or leave it out"
        raise SetupError(f"the port {port} is not free: {reason_of(error)}", fix=fix) from error
    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        for opened in (listener, *peers):
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        listener.close()


def launch_json(name: str, port: int, *, workdir: str, folder: str) -> str:
    """Return the `launch.json` of VS Code by which its debugger attaches.

    `workdir`: the code on this machine; `folder`: the same on the task's node.
    """
    local = workdir if workdir and Path(workdir).is_dir() else "${workspaceFolder}"
    configuration: Mapping[str, Any] = {
        "name": name,
        "type": "debugpy",
        "request": "attach",
        "connect": {"host": "127.0.0.1", "port": port},
        "pathMappings": [{"localRoot": local, "remoteRoot": folder}],
    }
    return json.dumps({"version": "0.2.0", "configurations": [configuration]}, indent=2)
