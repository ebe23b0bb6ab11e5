"""The process that imports for this node's tasks: started, heard, asked to fork them.

It runs `tfcluster_workers.preload.importer` with the tasks' own Python. What it forks becomes the
agent's child, so such a task is watched, stopped and reaped like any other. A failure here costs
time only: the tasks start cold, and that is reported once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import struct
import time

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.foreign_json import parse_json_object
from tfcluster.agent.processes import IS_LINUX, signal_group, start_time
from tfcluster.agent.protocol import MAX_PAYLOAD
from tfcluster.agent.tasks.output import open_pipe
from tfcluster.agent.tasks.task import environment, fork_and_exec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tfcluster.agent.guard import Recorder
    from tfcluster.agent.net.session import Line

IMPORT_S = 120.0
"""Imports that take longer hang, on a dead file server for example."""
_ANSWER_S = 2.0
"""A fork takes milliseconds: who needs longer stands still, and so do we meanwhile."""
_ROOM = {"TFCLUSTER_ROOM": "_" * 400}
"""Of `preload.ROOM`: where it stood, a fork's marks stand for `leftovers.carries`."""
NUMBER = struct.Struct(">I")
_MOST_SAID = 64 << 10
"""Bytes of what the imports print that each task prints again."""


class Preloader:
    """At most one process at a time; without one, `fork` starts tasks cold."""

    _line: Line
    _selector: selectors.BaseSelector

    def __init__(self, recorder: Recorder) -> None:
        """`serve` comes before `begin`."""
        self._recorder = recorder
        self._socket: socket.socket | None = None
        self._pipe = -1
        self._said = bytearray()
        """What the imports printed."""
        self._started = 0
        self._patience_s = IMPORT_S
        self.is_ready = False
        """Whether `fork` forks it."""
        self._key: str | None = None
        """Two orders with the same key want the same process."""
        self._told: set[str] = set()
        self.pid = 0
        self.deadline: float | None = None
        """When imports that have not ended by then are given up."""

    def serve(self, line: Line, selector: selectors.BaseSelector) -> None:
        """One run's, the first or the next."""
        self._line, self._selector = line, selector
        self._told.clear()

    def fileno(self) -> int:
        """What becomes readable when a process that `is_ready` ends."""
        assert self._socket is not None
        return self._socket.fileno()

    def begin(self, order: dict[str, Any]) -> None:
        """Start the process by `order`: argv, env, unset; within_s, the imports' time if it is not
        `IMPORT_S`; key, where the process of an earlier run may do. Answered by
        ``preload_ready``, with the seconds that the imports took, or ``preload_failed``."""
        if self.is_ready and self._key is not None and self._key == order.get("key"):
            self._line.say({"type": "preload_ready", "seconds": 0.0})
            return
        self._end()
        self._key = order.get("key")
        if not IS_LINUX:  # nothing to tell of: it is Linux's alone
            self._line.say({"type": "preload_ready", "seconds": 0.0})
            return
        try:
            failure = self._start({**order, "env": {**order["env"], **_ROOM}, "cwd": "/"})
        except OSError as error:
            self._give_up(describe_error(error))
            return
        self._started = start_time(self.pid)
        self._recorder.add_group(self.pid, self._started)
        if failure:
            self._give_up(failure)
            return
        self._patience_s = float(order.get("within_s", IMPORT_S))
        self.deadline = time.monotonic() + self._patience_s
        assert self._socket is not None
        self._selector.register(self._socket, selectors.EVENT_READ, lambda _events: self._hear())
        self._selector.register(self._pipe, selectors.EVENT_READ, lambda _events: self._listen())

    def _start(self, order: dict[str, Any]) -> str:
        """What kept its program from running; empty: it runs."""
        self._socket, theirs = socket.socketpair()
        self._pipe, write_end = open_pipe()
        try:
            self.pid, failure = fork_and_exec(order, write_end, theirs.fileno())
        finally:
            theirs.close()
            os.close(write_end)
        with os.fdopen(failure, "rb") as words:
            return words.read().decode(errors="replace")

    def on_time(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self._give_up(f"the imports have not ended after {self._patience_s:g} s")

    def fork(self, spec: dict[str, Any], output: int, events: int) -> tuple[int, int]:
        """As `task.fork_and_exec`; cold where it cannot be a fork of the process."""
        if self.is_ready:
            failed_read, failed_write = os.pipe()
            go_read, go_write = os.pipe()
            fds = [output, events, failed_write, go_read]
            answer = self._ask(spec, fds)
            os.close(failed_write)
            os.close(go_read)
            if "pid" in answer:
                os.write(go_write, b"!")
                os.close(go_write)
                return int(answer["pid"]), failed_read
            os.close(go_write)  # a task that began all the same ends
            os.close(failed_read)
            if "refused" in answer:
                self._tell(str(answer["refused"]))
            else:
                self._give_up("the process that has imported is gone, or stands still")
        return fork_and_exec(spec, output, events)

    def _ask(self, spec: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self._listen()
        order = {"argv": spec["argv"], "cores": spec.get("cores"), "cwd": spec.get("cwd") or "/"}
        order |= {"env": environment(spec), "said": self._said.decode("latin-1")}
        encoded = json.dumps(order).encode()
        assert self._socket is not None
        self._socket.settimeout(_ANSWER_S)
        try:
            socket.send_fds(self._socket, [NUMBER.pack(len(encoded))], fds)
            self._socket.sendall(encoded)
        except OSError:
            return {}
        return hear(self._socket, _ANSWER_S)

    def _listen(self) -> None:
        """To what it prints: a pipe that nobody empties would hold it up."""
        with contextlib.suppress(OSError):
            while data := os.read(self._pipe, _MOST_SAID):
                self._said += data[: _MOST_SAID - len(self._said)]

    def _hear(self) -> None:
        """Its one report."""
        assert self._socket is not None
        self._selector.unregister(self._socket)
        report = hear(self._socket, _ANSWER_S)
        self._listen()
        self._selector.unregister(self._pipe)
        self.deadline = None
        if report.get("ready"):
            self.is_ready = True
            self._line.say({"type": "preload_ready", "seconds": report["seconds"]})
        else:
            self._give_up(str(report.get("why") or self._last_words() or "it said nothing"))

    def _last_words(self) -> str:
        return self._said.decode(errors="replace").strip().rpartition("\n")[2]

    def _give_up(self, why: str) -> None:
        self._end()
        self._tell(why)

    def _tell(self, why: str) -> None:
        """Once: the next task would say the same."""
        if why not in self._told:
            self._told.add(why)
            self._line.say({"type": "preload_failed", "error": why})

    def _end(self) -> None:
        self.is_ready, self.deadline = False, None
        if self._socket is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._socket)
            self._socket.close()
            self._socket = None
        if self.pid:
            signal_group(self.pid, self._started, signal.SIGKILL)
            self._recorder.drop_group(self.pid)
            self.pid = 0
        if self._pipe >= 0:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(self._pipe)
            os.close(self._pipe)
            self._pipe = -1
        self._said.clear()


def hear(line: socket.socket, patience_s: float) -> dict[str, Any]:
    """A length and as many bytes of JSON; empty for what is none, or does not come in time."""
    deadline = time.monotonic() + patience_s
    with contextlib.suppress(OSError, ValueError, struct.error):
        size = NUMBER.unpack(_read_exactly(line, NUMBER.size, deadline))[0]
        if size > MAX_PAYLOAD:
            return {}
        return parse_json_object(_read_exactly(line, size, deadline))
    return {}


def _read_exactly(line: socket.socket, size: int, deadline: float) -> bytes:
    """MSG_WAITALL waits for nothing on a socket with a time-out. Raises TimeoutError."""
    data = b""
    while len(data) < size:
        line.settimeout(max(0.001, deadline - time.monotonic()))
        piece = line.recv(size - len(data))
        if not piece:
            break
        data += piece
    return data
