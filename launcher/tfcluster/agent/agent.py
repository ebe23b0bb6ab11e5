"""The agent's main loop: single-threaded, woken by descriptors and deadlines, never by polling."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time

from tfcluster.agent.error_text import describe_error
from tfcluster.agent.net.ports import PortHolder, PortTaken
from tfcluster.agent.net.session import Line
from tfcluster.agent.tasks.log_streaming import LogStreams
from tfcluster.agent.tasks.preloader import Preloader
from tfcluster.agent.tasks.runner import TaskRunner

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any

    from tfcluster.agent.files.cache import CacheUse
    from tfcluster.agent.files.file_process import FileOrders
    from tfcluster.agent.guard import Recorder
    from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner

FILE_ORDERS = ("receive", "scan", "read", "got", "hurry", "cancel", "look")


class Agent:
    """Starts, watches, stops and reports the tasks of one run on this node."""

    def __init__(
        self,
        config: dict[str, Any],
        recorder: Recorder,
        guard_alive: int,
        outside: HostNetworkSpawner | None = None,
        before: Agent | None = None,
    ) -> None:
        """`config`: run_id, node, token, socket, ports_dir (null: all ports are this run's) and
        lease_s (null: ends with the connection); cache: where a remote node keeps what it is
        sent; warm: whether and how it stays for the next run. `before`: it did."""
        self._is_over = self._is_shut_down = self._stays = False
        self._config, self._recorder, self._guard_alive = config, recorder, guard_alive
        identity = {"pid": os.getpid(), "run_id": config["run_id"], "node": config["node"]}
        self._ports = PortHolder(config["ports_dir"], identity, recorder)
        self._selector = selectors.DefaultSelector()
        self._preloader: Preloader = Preloader(recorder) if before is None else before._preloader
        self._outflow = LogStreams(self._selector)
        self._crew = TaskRunner(recorder, self._selector, outside, self._preloader, self._outflow)
        self._line = self._crew.line = self._outflow.line = Line(
            config,
            recorder,
            self._selector,
            obey=self._obey,
            resume_logs=self._resume,
            stream_logs=self._outflow.stream,
            take_file=self._take_file,
        )
        self._preloader.serve(self._line, self._selector)
        self._cache: str = config.get("cache") or ""
        self._in_use = _in_use(self._cache, config["run_id"]) if self._cache else None
        self._files: FileOrders | None = None
        """Made with the first order for it: an agent beside its coordinator is never given one."""
        self._signals: int = _signals_as_bytes() if before is None else before._signals
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        self._selector.register(guard_alive, selectors.EVENT_READ, self._on_guard_lost)

    def run(self) -> None:
        """Until the coordinator or the guard is gone, a signal, or a shutdown; ends every task."""
        try:
            while not (self._is_over or self._line.is_over):
                self._turn()
        finally:
            if not self._is_shut_down:
                self._crew.end_all()
            if self._files is not None:
                self._files.clear_up()
            self._ports.release()
            self._line.close()
            self._outflow.pipes.close()
            self._crew.close()
            self._selector.close()
        if self._is_shut_down and self._cache:
            from tfcluster.agent.files.cache import prune

            prune(self._cache)

    def next(self) -> tuple[Agent, socket.socket] | None:
        """The agent of the next run, which has what this one imported, and who awaits it."""
        if not self._stays:
            return None
        from tfcluster.agent.warm import Rest

        wakes = [self._guard_alive, self._preloader.fileno()]
        rest = Rest(self._config["warm"], self._recorder, wakes=wakes, signals=self._signals)
        if (found := rest.wait()) is None:
            return None
        config, peer = found
        return Agent(config, self._recorder, self._guard_alive, before=self), peer

    def _turn(self) -> None:
        watched = self._selector.get_map()
        for key, events in self._selector.select(self._patience()):
            now = watched.get(key.fd)
            if now is not None and now.fileobj == key.fileobj:  # else closed earlier in this turn
                key.data(events)
        moment = time.monotonic()
        self._crew.on_time(moment)
        self._line.on_time(moment)
        if self._in_use is not None:
            self._in_use.on_time(moment)
        if self._files is not None:
            self._files.pump()

    def _patience(self) -> float | None:
        """Seconds until something must be done without being woken; None: nothing."""
        at = [when for when in (self._crew.deadline(), self._line.deadline()) if when is not None]
        return max(0.0, min(at) - time.monotonic()) if at else None

    def _resume(self, log_offsets: dict[str, int]) -> None:
        if self._files is not None:
            self._files.forget()
        self._outflow.resume(log_offsets)

    def _take_file(self, name: str, offset: int, data: bytes) -> None:
        if self._files is not None:
            self._files.take(name, offset, data)

    def _with_files(self) -> FileOrders:
        if self._files is None or self._files.is_over:
            from tfcluster.agent.files.file_process import FileOrders

            self._files = FileOrders(self._cache, self._line, self._selector)
            self._crew.companions = {self._files.pid}
        return self._files

    def _on_signals(self, _events: int) -> None:
        numbers = os.read(self._signals, 4096)
        if signal.SIGCHLD in numbers:
            self._crew.reap()
        for number in numbers:
            if number != signal.SIGCHLD and not self._is_over:
                # Before the exits of the tasks that end with us: nobody has ordered those.
                self._line.say({"type": "agent_ending", "signal": number})
                self._is_over = True

    def _on_guard_lost(self, _events: int) -> None:
        self._line.say({"type": "guard_lost"})
        self._is_over = True

    def _obey(self, message: dict[str, Any]) -> None:
        orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "hold_ports": self._hold_ports,
            "release_ports": lambda order: self._ports.release(order["tasks"]),
            "preload": lambda order: self._preloader.begin(order),
            "start": lambda order: self._crew.start_all(order["tasks"], order["attempt"]),
            "stop": lambda order: self._crew.stop(order["tasks"], float(order["grace_s"])),
            "signal": lambda order: self._crew.signal(order["tasks"], order["signal"]),
            "shutdown": self._shut_down,
            **dict.fromkeys(FILE_ORDERS, lambda order: self._with_files().order(order)),
            "die": lambda order: os.kill(os.getpid(), signal.SIGKILL),
        }
        order = orders.get(message.get("type", ""))
        if order is None:
            self._line.say({"type": "refused", "reason": f"no such order: {message.get('type')}"})
            return
        try:
            order(message)
        except (KeyError, TypeError, ValueError, OSError) as error:
            reason = f"{message['type']}: {type(error).__name__}: {describe_error(error)}"
            if message["type"] in FILE_ORDERS:  # its tasks can go on
                self._line.say({"type": "files_lost", "error": reason})
            else:
                self._line.say({"type": "refused", "reason": reason})

    def _hold_ports(self, order: dict[str, Any]) -> None:
        try:
            self._line.say({"type": "ports_held", "ports": self._ports.hold(order["ports"])})
        except PortTaken as taken:
            self._line.say({"type": "port_taken", **taken.wanted, **taken.holder})

    def _shut_down(self, order: dict[str, Any]) -> None:
        """`remove`: folders of this run's own on this node, wanted no more."""
        is_warm = order.get("stays") is True and self._config.get("warm") is not None
        self._stays = is_warm and self._preloader.is_ready
        self._crew.end_all(spare={self._preloader.pid} if self._stays else frozenset())
        for folder in order.get("remove", ()):
            from tfcluster.agent.files.cache import remove

            with contextlib.suppress(OSError):
                remove(folder)
                os.rmdir(os.path.dirname(folder))  # the run's, unless another node is in it
        self._line.say({"type": "bye", "stays": self._stays})
        self._is_over = self._is_shut_down = True


def _in_use(cache: str, run_id: str) -> CacheUse:
    from tfcluster.agent.files.cache import CacheUse

    up = [os.pardir] * 4  # of agent/tfcluster/agent/agent.py
    bundle = os.path.abspath(os.path.join(__file__, *up))
    return CacheUse(bundle, os.path.join(cache, "nodes", run_id))


def _signals_as_bytes() -> int:
    """A descriptor that yields the number of every signal the agent acts on."""
    wake_read, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_read, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return wake_read
