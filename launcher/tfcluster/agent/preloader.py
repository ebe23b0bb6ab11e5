"""The process that imports for this node's tasks: started, heard, asked to fork them.

It runs `tfcluster_workers.preload` with the tasks' own Python. What it forks becomes the agent's
child, so such a task is watched, stopped and reaped like any other. Whatever goes wrong with it
costs time only: the tasks are started cold, and that is told once.
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

from tfcluster.agent.processes import IS_LINUX, signal_group, start_time
from tfcluster.agent.task import environment, fork_and_exec

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from tfcluster.agent.guard import Recorder
    from tfcluster.agent.line import Line

IMPORT_S = 120.0
"""Imports that take longer hang, on a dead file server for example."""
_ANSWER_S = 10.0
"""A fork takes milliseconds: who needs longer stands still."""
_NUMBER = struct.Struct(">I")
_MOST_WORDS = 2000


class Preloader:
    """At most one process at a time; without one, `fork` starts tasks cold."""

    _line: Line
    _selector: selectors.BaseSelector

    def __init__(self, recorder: Recorder) -> None:
        """`serve` comes before `begin`."""
        self._recorder = recorder
        self._socket: socket.socket | None = None
        self._said = -1
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
        self._socket, theirs = socket.socketpair()
        self._said = os.memfd_create("tfcluster-preload")
        try:
            self.pid, failure = fork_and_exec({**order, "cwd": "/"}, self._said, theirs.fileno())
        except OSError as error:
            self._give_up(str(error))
            return
        finally:
            theirs.close()
        self._started = start_time(self.pid)
        self._recorder.add_group(self.pid, self._started)
        with os.fdopen(failure, "rb") as words:
            if error_text := words.read():
                self._give_up(error_text.decode(errors="replace"))
                return
        self._patience_s = float(order.get("within_s", IMPORT_S))
        self.deadline = time.monotonic() + self._patience_s
        self._selector.register(self._socket, selectors.EVENT_READ, lambda _events: self._hear())

    def on_time(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self._give_up(f"the imports have not ended after {self._patience_s:g} s")

    def fork(self, spec: dict[str, Any], output: int, events: int) -> tuple[int, int]:
        """As `task.fork_and_exec`; cold where it cannot be a fork of the process."""
        if self.is_ready:
            failed_read, failed_write = os.pipe()
            try:
                answer = self._ask(spec, [output, events, failed_write])
            finally:
                os.close(failed_write)
            if "pid" in answer:
                return int(answer["pid"]), failed_read
            os.close(failed_read)
            if "refused" in answer:
                self._tell(str(answer["refused"]))
            else:
                self._give_up("the process that has imported is gone, or stands still")
        return fork_and_exec(spec, output, events)

    def _ask(self, spec: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        order = {name: spec.get(name) for name in ("argv", "cores")}
        order |= {"env": environment(spec), "cwd": spec.get("cwd") or "/"}
        encoded = json.dumps(order).encode()
        assert self._socket is not None
        try:
            socket.send_fds(self._socket, [_NUMBER.pack(len(encoded))], fds)
            self._socket.sendall(encoded)
        except OSError:
            return {}
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        """Empty: there is none."""
        assert self._socket is not None
        self._socket.settimeout(_ANSWER_S)
        with contextlib.suppress(OSError, ValueError):
            head = self._socket.recv(_NUMBER.size, socket.MSG_WAITALL)
            if len(head) == _NUMBER.size:
                size = _NUMBER.unpack(head)[0]
                answer = json.loads(self._socket.recv(size, socket.MSG_WAITALL))
                return answer if isinstance(answer, dict) else {}
        return {}

    def _hear(self) -> None:
        """Its one report."""
        assert self._socket is not None
        self._selector.unregister(self._socket)
        report = self._answer()
        self.deadline = None
        if report.get("ready"):
            self.is_ready = True
            self._line.say({"type": "preload_ready", "seconds": report["seconds"]})
        else:
            self._give_up(str(report.get("why") or self._last_words() or "it said nothing"))

    def _last_words(self) -> str:
        said = os.pread(self._said, 1 << 20, 0)[-_MOST_WORDS:].decode(errors="replace")
        return said.strip().rpartition("\n")[2]

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
        if self._said >= 0:
            os.close(self._said)
            self._said = -1
