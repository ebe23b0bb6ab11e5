"""Traces of this task's steps by TensorFlow's profiler, when `tfcluster profile` asks for one.

The agent sends the request over the task's event socket. A task that trains looks for it at the end
of a step, twenty times a second at most, and traces whole steps. A task that only serves (a ps, a
worker of a parameter-server job) takes no steps: a thread waits for the request, and traces for a
time.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import shutil
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, Protocol

from tfcluster_workers import event_channel

LOOK_EVERY_S = 0.05
"""Shortest time between two looks for a request: one costs some microseconds. A trace begins 2 s
after its request (`coordinator.task_profiles`)."""


@dataclass(frozen=True)
class Request:
    """A request for one trace."""

    id: str
    file: str
    """The path of the trace, an `XSpace` (tsl/profiler/protobuf/xplane.proto)."""
    until: float
    """The time on CLOCK_MONOTONIC, which the agent shares, after which nobody waits for it."""
    first: int = 0
    """The trace begins at the end of this step, or of the next one that is reported."""
    steps: int = 0
    delay_s: float = 0.0
    """The time until the trace of a task that takes no steps begins."""
    seconds: float = 0.0
    """The length of the trace of such a task."""


class Recorder(Protocol):
    """The profiler; both methods raise an exception whose text is the reason of a failure."""

    def start(self, file: str) -> None: ...
    def stop(self, file: str) -> None: ...


class TensorflowRecorder:
    """TensorFlow's profiler, of which a process has one."""

    def start(self, file: str) -> None:
        """Begin to record. Raises RuntimeError, also if the script profiles itself meanwhile."""
        tf = sys.modules.get("tensorflow")
        if tf is None:
            raise RuntimeError("it does not use TensorFlow")
        try:
            tf.profiler.experimental.start(f"{file}.parts")
        except tf.errors.AlreadyExistsError as error:
            raise RuntimeError("the script itself is using TensorFlow's profiler") from error

    def stop(self, file: str) -> None:
        """End the recording and write it to `file`. Raises OSError, RuntimeError."""
        parts = f"{file}.parts"
        try:
            sys.modules["tensorflow"].profiler.experimental.stop()
            written = glob.glob(f"{glob.escape(parts)}/plugins/profile/*/*.xplane.pb")
            if not written:
                raise RuntimeError("TensorFlow's profiler has written no trace")
            os.replace(written[0], file)
        finally:
            shutil.rmtree(parts, ignore_errors=True)


class StepProfiler:
    """The traces of one task: at most one at a time, a newer request replaces one that waits."""

    def __init__(
        self,
        receive: Callable[[], Mapping[str, Any] | None],
        send: Callable[..., object],
        *,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`receive` returns a request that waits in the socket; `send` reports a trace."""
        self._receive, self._send = receive, send
        self._recorder, self._clock = recorder, clock
        self._lock = threading.Lock()
        self._waiting: Request | None = None
        self._running: Request | None = None
        self._pid = 0
        """The process whose trace runs."""
        self._look_at = self._began_at = 0.0
        self._began_after = self._ends_after = self._step = 0

    def at_step(self, step: Any) -> None:
        """Begin or end a trace if it is due after `step`; call it at the end of each step."""
        now = self._clock()
        if now < self._look_at and self._waiting is None and self._running is None:
            return
        if not self._lock.acquire(blocking=False):
            return  # a signal handler, or another thread, reports a step meanwhile
        self._look_at = now + LOOK_EVERY_S
        try:
            if (message := self._receive()) is not None:
                self._waiting = read_request(message)
            if self._is_inherited():
                self._running = None
            if self._running is not None:
                self._step = int(step)
                if not self._began_after <= self._step < self._ends_after:
                    self._end_steps(self._running)
            elif self._waiting is not None:
                self._begin_if_due(self._waiting, int(step))
        finally:
            self._lock.release()

    def _begin_if_due(self, request: Request, step: int) -> None:
        if self._clock() > request.until:
            self._waiting = None
        elif step >= request.first:
            self._waiting = None
            # All tasks end after the same step, unless this one is too late for that.
            ends = request.first + request.steps
            self._ends_after = ends if step < ends else step + request.steps
            self._began_after = self._step = step
            if self._start(request):
                self._running, self._pid = request, os.getpid()

    def _end_steps(self, request: Request) -> None:
        self._running = None
        self._end(request, first=self._began_after + 1, last=self._step)

    def end_early(self) -> None:
        """End a trace that runs, because the task ends."""
        if not self._is_inherited() and self._running is not None:
            self._end_steps(self._running)

    def _is_inherited(self) -> bool:
        """Return whether the trace that runs is that of the process which this one is a fork of."""
        return self._running is not None and self._pid != os.getpid()

    def trace_for_a_time(self, request: Request) -> None:
        """Trace a task that takes no steps."""
        time.sleep(request.delay_s)
        if self._clock() <= request.until and self._start(request):
            time.sleep(request.seconds)
            self._end(request)

    def _start(self, request: Request) -> bool:
        try:
            os.makedirs(os.path.dirname(request.file), exist_ok=True)
            self._recorder.start(request.file)
        except Exception as error:  # whatever it is, the training goes on
            self._fail(request, error)
            return False
        self._began_at = self._clock()
        return True

    def _end(self, request: Request, **steps: int) -> None:
        seconds = self._clock() - self._began_at
        try:
            self._recorder.stop(request.file)
        except Exception as error:
            self._fail(request, error)
        else:
            self._send(id=request.id, seconds=round(seconds, 6), **steps)

    def _fail(self, request: Request, error: Exception) -> None:
        self._send(id=request.id, problem=str(error) or repr(error))


def read_request(message: Mapping[str, Any]) -> Request | None:
    """Return the request in a message of the agent; None for one of a newer agent."""
    with contextlib.suppress(TypeError):
        return Request(**message)
    return None


def _send(**fields: Any) -> None:
    event_channel.current().send({"type": "profiled", **fields})


_profiler = StepProfiler(
    lambda: event_channel.current().receive(), _send, recorder=TensorflowRecorder()
)
at_step = _profiler.at_step
atexit.register(_profiler.end_early)


def serve() -> None:
    """Answer requests from now on in a thread, because this task takes no steps."""
    if event_channel.current().is_open:
        threading.Thread(target=_serve, name="tfcluster-profiler", daemon=True).start()


def _serve() -> None:
    channel = event_channel.current()
    while channel.wait():
        message = channel.receive()
        request = read_request(message) if message is not None else None
        if request is not None:
            _profiler.trace_for_a_time(request)
