"""The preloading process: imports TensorFlow once for this node's tasks and forks them.

It runs `tfcluster_workers.preload.importer` with the tasks' own Python. Its forks become the
agent's children, so they are watched, stopped and reaped like other tasks. If it fails, the tasks
start cold, without it, and the failure is reported once.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import time

from tfcluster.agent import Any
from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.guard import Recorder
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.net.listener import NUMBER, read_message
from tfcluster.agent.processes import IS_LINUX, signal_group, start_time
from tfcluster.agent.tasks.output import open_pipe
from tfcluster.agent.tasks.task import environment, fork_and_exec

_ANSWER_S = 2.0
"""The time for an answer: a fork takes milliseconds, and the agent waits for it."""
_ROOM = {"TFCLUSTER_ROOM": "_" * 400}
"""Space in the environment, where each fork (`forked_task`) writes its `stray_processes.marks`."""
_MAX_OUTPUT = 64 << 10
"""The bytes of the imports' output that each task prints again."""


class Preloader:
    """The preloading process of a node, one at most; without it `fork` starts tasks cold."""

    _link: CoordinatorLink
    _selector: selectors.BaseSelector

    def __init__(self, recorder: Recorder) -> None:
        """Prepare; call `serve` before `begin`."""
        self._recorder = recorder
        self._socket: socket.socket | None = None
        self._pipe = -1
        self._output = bytearray()
        self._started = 0
        self._timeout_s = 0.0
        self.is_ready = False
        """True if the imports have succeeded, so that `fork` forks the process."""
        self._key: str | None = None
        """The order's key: an order with the same key may use the same process."""
        self._reported: set[str] = set()
        self.pid = 0
        self.deadline: float | None = None
        """The moment when unfinished imports are given up."""

    def serve(self, link: CoordinatorLink, selector: selectors.BaseSelector) -> None:
        """Report to `link` from now on: a run begins."""
        self._link, self._selector = link, selector
        self._reported.clear()

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when the ready process ends."""
        assert self._socket is not None
        return self._socket.fileno()

    def begin(self, order: msg.Preload) -> None:
        """Start the process, unless one with the same key is there."""
        is_same = self._key is not None and self._key == order.key
        if self.is_ready and is_same:
            self._link.send(msg.PreloadReady(seconds=0.0))
            return
        self._end()
        self._key, self._timeout_s = order.key, order.within_s
        if not IS_LINUX:  # not supported, which is no failure to report
            self._link.send(msg.PreloadReady(seconds=0.0))
            return
        try:
            failure = self._start(order.process)
        except OSError as error:
            self._give_up(describe_error(error))
            return
        self._started = start_time(self.pid)
        self._recorder.add_group(self.pid, self._started)
        if failure:
            self._give_up(failure)
            return
        self._watch()

    def _watch(self) -> None:
        """Wait for the process's report, and read its output meanwhile."""
        self.deadline = time.monotonic() + self._timeout_s
        assert self._socket is not None
        self._selector.register(
            self._socket, selectors.EVENT_READ, lambda _events: self._on_report()
        )
        self._selector.register(
            self._pipe, selectors.EVENT_READ, lambda _events: self._read_output()
        )

    def _start(self, order: msg.Process) -> str:
        """Start the program; return why it does not run, or ""."""
        process = msg.Process(argv=order.argv, env={**order.env, **_ROOM}, unset=order.unset)
        self._socket, theirs = socket.socketpair()
        self._pipe, write_end = open_pipe()
        try:
            self.pid, failure = fork_and_exec(process, write_end, theirs.fileno())
        finally:
            theirs.close()
            os.close(write_end)
        with os.fdopen(failure, "rb") as reason:
            return reason.read().decode(errors="replace")

    def on_time(self, now: float) -> None:
        if self.deadline is not None and now >= self.deadline:
            self._give_up(f"the imports did not finish within {self._timeout_s:g} s")

    def fork(self, task: msg.TaskOrder, output: int, events: int) -> tuple[int, int]:
        """Fork the process into a task, or start the task cold with `task.fork_and_exec`."""
        if self.is_ready:
            failed_read, failed_write = os.pipe()
            go_read, go_write = os.pipe()
            answer = self._request_fork(task, [output, events, failed_write, go_read])
            os.close(failed_write)
            os.close(go_read)
            if "pid" in answer:
                os.write(go_write, b"!")
                os.close(go_write)
                return int(answer["pid"]), failed_read
            os.close(go_write)  # a fork that exists without an answer ends
            os.close(failed_read)
            if "refused" in answer:
                self._report_failure(str(answer["refused"]))
            else:
                self._give_up("the preloading process has ended or does not answer")
        return fork_and_exec(task, output, events)

    def _request_fork(self, task: msg.TaskOrder, fds: list[int]) -> dict[str, Any]:
        self._read_output()
        order: dict[str, object] = {"argv": task.argv, "cores": task.cores, "cwd": task.cwd or "/"}
        order |= {"env": environment(task), "said": self._output.decode("latin-1")}
        encoded = json.dumps(order).encode()
        assert self._socket is not None
        self._socket.settimeout(_ANSWER_S)
        try:
            socket.send_fds(self._socket, [NUMBER.pack(len(encoded))], fds)
            self._socket.sendall(encoded)
        except OSError:
            return {}
        return read_message(self._socket, _ANSWER_S)

    def _read_output(self) -> None:
        """Read the process's output: a full pipe would block it."""
        with contextlib.suppress(OSError):
            while data := os.read(self._pipe, _MAX_OUTPUT):
                self._output += data[: _MAX_OUTPUT - len(self._output)]

    def _on_report(self) -> None:
        """Handle the process's only report."""
        assert self._socket is not None
        self._selector.unregister(self._socket)
        report = read_message(self._socket, _ANSWER_S)
        self._read_output()
        self._selector.unregister(self._pipe)
        self.deadline = None
        if report.get("ready"):
            self.is_ready = True
            self._link.send(msg.PreloadReady(seconds=report["seconds"]))
        else:
            last_line = self._output.decode(errors="replace").strip().rpartition("\n")[2]
            self._give_up(str(report.get("why") or last_line or "no output"))

    def _give_up(self, failure: str) -> None:
        self._end()
        self._report_failure(failure)

    def _report_failure(self, failure: str) -> None:
        """Report a failure once: it would be the same for the next task."""
        if failure not in self._reported:
            self._reported.add(failure)
            self._link.send(msg.PreloadFailed(error=failure))

    def _end(self) -> None:
        self.is_ready = False
        self.deadline = None
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
        self._output.clear()
