"""The agent's main loop: single-threaded, woken by descriptors and deadlines, never by polling."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import sys
import time

from tfcluster.agent import protocol, stop
from tfcluster.agent.connection import ENOUGH_QUEUED, Connection, is_own_user, listen
from tfcluster.agent.output import drain
from tfcluster.agent.ports import PortHolder, PortTaken
from tfcluster.agent.processes import kill_descendants
from tfcluster.agent.task import MAX_EVENT, StartError, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tfcluster.agent.guard import Recorder

PING_S = 2.0
FIRST_HELLO_S = 10.0
GATHER_S = 0.004
"""Pause after small reads: the pipes fill meanwhile, and one wake-up moves many lines."""
SMALL_READ = 256 << 10
PROGRESS_BACKLOG = 1000
"""Unacknowledged messages above which progress (replaced by the next anyway) is dropped."""


class Agent:
    """Starts, watches, stops and reports the tasks of one run on this node."""

    def __init__(self, config: dict[str, Any], recorder: Recorder, guard_alive: int) -> None:
        """`config`: run_id, node, token, socket, ports_dir and lease_s (null: ends with the
        connection)."""
        self._config = config
        self._recorder = recorder
        self._session = protocol.Session()
        self._tasks: dict[str, Task] = {}
        self._connection: Connection | None = None
        self._running = True
        self._lease_s: float | None = config["lease_s"]
        self._last_heard = time.monotonic()
        self._next_ping = 0.0
        self._moved = 0
        identity = {"pid": os.getpid(), "run_id": config["run_id"], "node": config["node"]}
        self._ports = PortHolder(config["ports_dir"], identity, recorder)
        self._selector = selectors.DefaultSelector()
        recorder.add_file(config["socket"])
        self._listener = listen(config["socket"])
        self._watch(self._listener, self._accept)
        self._watch(guard_alive, self._guard_died)
        self._signals = _signals_as_bytes()
        self._watch(self._signals, self._on_signals)

    # -- the loop

    def run(self) -> None:
        """Until the end of the connection, the lease, the guard, or a shutdown."""
        try:
            while self._running:
                self._moved = 0
                for key, events in self._selector.select(self._next_deadline()):
                    if key.fileobj in self._selector.get_map():
                        key.data(events)
                self._on_time(time.monotonic())
                if 0 < self._moved < SMALL_READ:
                    time.sleep(GATHER_S)
        finally:
            self._end_everything()

    def _watch(self, fileobj: Any, callback: Callable[[int], object]) -> None:
        self._selector.register(fileobj, selectors.EVENT_READ, callback)

    def _unwatch(self, fileobj: Any) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(fileobj)

    def _next_deadline(self) -> float | None:
        """Seconds until something must be done without being woken; None: nothing."""
        at: list[float] = []
        for task in self._tasks.values():
            if task.usage is not None:
                at.append(task.drain_until)
            elif task.kill_at is not None:
                at.append(task.kill_at)
        if self._lease_s is not None:
            at.append(self._last_heard + self._lease_s)
            at.append(self._next_ping)
        elif self._connection is None:
            at.append(self._last_heard + FIRST_HELLO_S)
        return max(0.0, min(at) - time.monotonic()) if at else None

    def _on_time(self, now: float) -> None:
        for task in list(self._tasks.values()):
            stop.climb(task, now)
            if task.usage is not None and now >= task.drain_until:
                self._finish(task)
        patience = FIRST_HELLO_S if self._lease_s is None else self._lease_s
        nobody_listens = self._connection is None or self._lease_s is not None
        if nobody_listens and now >= self._last_heard + patience:
            self._running = False
        if self._lease_s is not None and now >= self._next_ping:
            self._next_ping = now + PING_S
            self._queue(protocol.frame(protocol.PING))

    def _on_signals(self, _events: int) -> None:
        numbers = os.read(self._signals, 4096)
        if signal.SIGCHLD in numbers:
            self._reap()
        if any(number != signal.SIGCHLD for number in numbers):
            self._running = False

    def _guard_died(self, _events: int) -> None:
        self._say({"type": "guard_lost"})
        self._running = False

    # -- the coordinator

    def _accept(self, _events: int) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        connection = Connection(peer)
        if not is_own_user(peer):
            connection.refuse("another user's connection")
            return
        self._watch(peer, lambda events: self._on_connection(connection, events))
        self._flush(connection)

    def _on_connection(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_READ:
            try:
                frames = connection.read()
            except protocol.ProtocolError as error:
                connection.queue(_unnumbered({"type": "refused", "reason": str(error)}))
                connection.flush()
                frames = None
            if frames is None:
                self._lose(connection)
                return
            self._on_frames(connection, frames)
        self._stream_logs()
        self._flush(connection)

    def _on_frames(self, connection: Connection, frames: list[tuple[bytes, bytes]]) -> None:
        numbered = False
        for kind, payload in frames:
            self._last_heard = time.monotonic()
            if kind == protocol.ACK:
                self._session.acknowledged(protocol.read_number(payload))
            elif kind == protocol.CONTROL:
                message = protocol.read_control(payload)
                if message.get("type") == "hello":
                    self._hello(connection, message)
                elif connection.welcomed and self._session.is_new(message):
                    numbered = True
                    self._obey(message)
        if numbered:
            self._queue(self._session.acknowledgement())

    def _hello(self, connection: Connection, hello: dict[str, Any]) -> None:
        wrong = self._what_is_wrong(hello)
        if wrong:
            self._unwatch(connection.socket)
            connection.refuse(wrong)
            return
        if self._connection is not None:
            self._unwatch(self._connection.socket)
            self._connection.socket.close()
        self._connection = connection
        connection.welcomed = True
        connection.streams_logs = bool(hello.get("stream_logs"))
        for task in self._tasks.values():
            task.streamed = hello.get("log_offsets", {}).get(task.stream_name, task.streamed)
        connection.queue(_unnumbered(self._welcome()))
        for encoded in self._session.resume(hello.get("last_seen", 0)):
            connection.queue(encoded)

    def _what_is_wrong(self, hello: dict[str, Any]) -> str:
        if hello.get("protocol") != protocol.VERSION:
            return f"protocol {hello.get('protocol')!r}; this agent speaks {protocol.VERSION}"
        if (hello.get("run_id"), hello.get("node")) != (
            self._config["run_id"],
            self._config["node"],
        ):
            return f"this agent serves run {self._config['run_id']}, node {self._config['node']}"
        if hello.get("token") != self._config["token"]:
            return "wrong token"
        if self._connection is not None and self._lease_s is None:
            return "another coordinator is connected"
        return ""

    def _welcome(self) -> dict[str, Any]:
        return {
            "type": "welcome",
            "protocol": protocol.VERSION,
            "pid": os.getpid(),
            "guard_pid": self._recorder.pid,
            "node": self._config["node"],
            "python": sys.version.split()[0],
            "last_seen": self._session.last_seen,
        }

    def _lose(self, connection: Connection) -> None:
        self._unwatch(connection.socket)
        connection.socket.close()
        if connection is self._connection:
            self._connection = None
            self._running = self._running and self._lease_s is not None

    def _say(self, message: dict[str, Any]) -> None:
        self._queue(self._session.number(message))

    def _queue(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.queue(frame)
            self._flush(self._connection)

    def _flush(self, connection: Connection) -> None:
        if connection.socket.fileno() < 0:
            return
        if not connection.flush():
            self._lose(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.queued else 0)
        key = self._selector.get_key(connection.socket)
        if key.events != events:
            self._selector.modify(connection.socket, events, key.data)

    # -- what it is told

    def _obey(self, message: dict[str, Any]) -> None:
        orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "hold_ports": self._hold_ports,
            "release_ports": lambda order: self._ports.release(order["tasks"]),
            "start": self._start,
            "stop": self._stop,
            "signal": self._signal,
            "shutdown": lambda order: self._shut_down(),
        }
        order = orders.get(message.get("type", ""))
        if order is None:
            self._say({"type": "refused", "reason": f"unknown order {message.get('type')!r}"})
            return
        try:
            order(message)
        except (KeyError, TypeError) as error:
            reason = f"{message['type']}: {type(error).__name__}: {error}"
            self._say({"type": "refused", "reason": reason})

    def _hold_ports(self, order: dict[str, Any]) -> None:
        try:
            self._say({"type": "ports_held", "ports": self._ports.hold(order["ports"])})
        except PortTaken as taken:
            entry = next(e for e in order["ports"] if e["port"] == taken.port)
            place = {"task": entry["task"], "host": entry["host"], "port": taken.port}
            self._say({"type": "port_taken", **place, **taken.holder})

    def _start(self, order: dict[str, Any]) -> None:
        for spec in order["tasks"]:
            named = {"task": spec["task"], "attempt": order["attempt"]}
            if spec["task"] in self._tasks:
                self._say({"type": "start_failed", **named, "error": "it is still running"})
                continue
            try:
                task = Task(spec, order["attempt"])
            except (StartError, OSError) as error:
                self._say({"type": "start_failed", **named, "error": str(error)})
                continue
            self._recorder.add_group(task.pid, task.start_time)
            self._tasks[task.name] = task
            self._attend(task)
            self._say({"type": "task_started", **named, "pid": task.pid})

    def _attend(self, task: Task) -> None:
        self._watch(task.pipe, lambda _events: self._drain(task))
        self._watch(task.events, lambda _events: self._hear(task))

    def _stop(self, order: dict[str, Any]) -> None:
        for name in order["tasks"]:
            if name in self._tasks:
                stop.ask_to_end(self._tasks[name], float(order["grace_s"]))

    def _signal(self, order: dict[str, Any]) -> None:
        for name in order["tasks"]:
            task = self._tasks.get(name)
            if task is not None and task.usage is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(task.pid, order["signal"])

    def _shut_down(self) -> None:
        for task in self._tasks.values():
            task.stopping = True
        self._end_tasks()
        self._say({"type": "bye"})
        self._running = False

    # -- what tasks do

    def _drain(self, task: Task) -> bool:
        """Move waiting output to the log; False at the end of the pipe, or when it was empty."""
        count, ended, unwritten = drain(task.pipe, task.log)
        self._moved += count
        if ended:
            self._unwatch(task.pipe)
            task.drain_until = 0.0
        if unwritten and self._connection is not None and self._connection.streams_logs:
            name, where = task.stream_name, protocol.NOT_IN_FILE
            if self._connection.queued < ENOUGH_QUEUED:
                self._queue(protocol.data_frame(protocol.LOG, name, where, unwritten))
        if task.log.lost_bytes and task.loss_report.is_due():
            self._report_loss(task)
        self._stream_logs()
        return count > 0

    def _stream_logs(self) -> None:
        connection = self._connection
        if connection is None or not connection.streams_logs:
            return
        for task in self._tasks.values():
            self._stream(connection, task)

    def _stream(self, connection: Connection, task: Task, limit: int = ENOUGH_QUEUED) -> None:
        while connection.queued < limit:
            data = task.log.read(task.streamed, 256 << 10)
            if not data:
                return
            self._queue(protocol.data_frame(protocol.LOG, task.stream_name, task.streamed, data))
            task.streamed += len(data)

    def _report_loss(self, task: Task) -> None:
        named = {"task": task.name, "attempt": task.attempt}
        lost, reason = task.log.take_loss(), task.log.lost_because
        self._say({"type": "log_lost", **named, "bytes": lost, "reason": reason})

    def _hear(self, task: Task) -> None:
        """Pass on what the task reports; malformed messages are dropped, they are the task's."""
        while True:
            try:
                raw = task.events.recv(MAX_EVENT + 1)
            except BlockingIOError:
                return
            except OSError:
                raw = b""
            if not raw:
                self._unwatch(task.events)
                return
            with contextlib.suppress(ValueError):
                self._pass_on(task, json.loads(raw))

    def _pass_on(self, task: Task, event: Any) -> None:
        if not isinstance(event, dict):
            return
        if event.get("type") == "progress" and self._session.backlog > PROGRESS_BACKLOG:
            return
        named = {"task": task.name, "attempt": task.attempt}
        self._say({"type": "task_event", **named, "event": event})

    # -- ends

    def _reap(self) -> None:
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for task in self._tasks.values():
                if task.pid == pid and task.usage is None:
                    task.note_end(status, usage.ru_maxrss)
                    self._read_the_rest(task)

    def _read_the_rest(self, task: Task) -> None:
        self._hear(task)
        task.drain_until = time.monotonic() + stop.DRAIN_S
        while self._drain(task):
            pass

    def _finish(self, task: Task) -> None:
        stop.clear_group(task)
        while self._drain(task):
            pass
        self._unwatch(task.pipe)
        self._unwatch(task.events)
        if self._connection is not None and self._connection.streams_logs:
            self._stream(self._connection, task, limit=1 << 62)
        if task.log.lost_bytes:
            self._report_loss(task)
        del self._tasks[task.name]
        task.close()
        self._recorder.drop_group(task.pid)
        self._say(task.exited_message())

    def _end_tasks(self) -> None:
        """SIGKILL every group and every descendant outside of them, reap, report."""
        for task in self._tasks.values():
            stop.clear_group(task)
        deadline = time.monotonic() + 1.5
        while any(task.usage is None for task in self._tasks.values()):
            self._reap()
            if time.monotonic() > deadline:
                break
            time.sleep(0.002)
        kill_descendants(1.5)
        for task in list(self._tasks.values()):
            if task.usage is not None:
                self._finish(task)

    def _end_everything(self) -> None:
        self._end_tasks()
        self._ports.release()
        self._listener.close()
        with contextlib.suppress(OSError):
            os.unlink(self._config["socket"])
        if self._connection is not None:
            self._connection.socket.settimeout(1.0)
            self._connection.flush()
            self._connection.socket.close()


def _signals_as_bytes() -> int:
    """A descriptor that yields the number of every signal the agent acts on."""
    wake_read, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_read, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return wake_read


def _unnumbered(message: dict[str, Any]) -> bytes:
    return protocol.control_frame({**message, "n": 0})
