"""The agent's main loop: one thread that waits for descriptors and deadlines and never polls."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable

from tfcluster.agent import Any
from tfcluster.agent import catalogue as msg
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.guard import Recorder
from tfcluster.agent.message_fields import parse
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.net.ports import PortHolder, PortInUse
from tfcluster.agent.tasks.children import SUFFIX
from tfcluster.agent.tasks.host_network_spawner import HostNetworkSpawner
from tfcluster.agent.tasks.log_streaming import LogStreams
from tfcluster.agent.tasks.output import echo
from tfcluster.agent.tasks.preloader import Preloader
from tfcluster.agent.tasks.runner import TaskRunner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from tfcluster.agent.files.cache import CacheUse
    from tfcluster.agent.files.file_process import FileClient
    from tfcluster.agent.warm import WarmWait


class Agent:
    """The main loop of one run's agent: starts, watches, stops and reports this node's tasks."""

    def __init__(
        self,
        config: AgentConfig,
        recorder: Recorder,
        guard_alive: int,
        host_spawner: HostNetworkSpawner | None = None,
        previous: Agent | None = None,
    ) -> None:
        """Listen on the agent's socket. `previous` is the last run's agent."""
        self._is_over = self._is_shut_down = False
        self._warm_wait: WarmWait | None = None
        """The wait for the next run, if this agent stays after its own."""
        self._config, self._recorder, self._guard_alive = config, recorder, guard_alive
        identity = {"pid": os.getpid(), "run_id": config.run_id, "node": config.node}
        self._ports = PortHolder(config.ports_dir, identity, recorder)
        self._selector = selectors.DefaultSelector()
        self._preloader: Preloader = previous._preloader if previous else Preloader(recorder)
        self._log_streams = streams = LogStreams(self._selector)
        self._runner = TaskRunner(
            recorder,
            self._selector,
            host_spawner,
            self._preloader,
            streams,
            children=config.socket + SUFFIX,
        )
        self._link = self._runner.link = streams.link = CoordinatorLink(
            config,
            recorder,
            self._selector,
            carry_out=self._carry_out,
            resume_logs=self._resume,
            use_room=streams.stream,
            take_file=self._take_file,
            take_exec=self._runner.take_exec,
        )
        self._preloader.serve(self._link, self._selector)
        self._actions: dict[type[msg.Order], Callable[[Any], None]] = {
            msg.HoldPorts: self._hold_ports,
            msg.Preload: self._preloader.begin,
            msg.SetLease: self._link.set_lease,
            msg.Start: self._runner.start_all,
            msg.Stop: self._runner.stop,
            msg.Signal: self._runner.signal,
            msg.TakeStacks: self._runner.take_stacks,
            msg.TraceSteps: self._runner.trace_steps,
            msg.Exec: self._runner.begin_exec,
            msg.EndExec: self._runner.end_exec,
            msg.Shutdown: self._shut_down,
            msg.KillAgent: lambda order: os.kill(os.getpid(), signal.SIGKILL),
        }
        if config.echo:
            echo.open(config.echo)
        self._cache = config.cache or ""
        self._cache_use = _cache_use(self._cache, config.run_id) if self._cache else None
        self._files: FileClient | None = None
        """Started by the first file order; a local agent never gets one."""
        self._announces = config.is_tied or config.announces
        """Signals only announce that a scheduler will end the agent."""
        self._signals: int = (
            previous._signals if previous else _signals_as_bytes(announces=self._announces)
        )
        self._selector.register(self._signals, selectors.EVENT_READ, self._on_signals)
        self._selector.register(guard_alive, selectors.EVENT_READ, self._on_guard_lost)

    def run(self) -> None:
        """Serve until the coordinator or guard is gone, a signal or a shutdown; end every task."""
        try:
            while not (self._is_over or self._link.is_over):
                self._turn()
        finally:
            if not self._is_shut_down:
                self._runner.end_all()
            if self._files is not None:
                self._files.clean_up()
            self._ports.release()
            self._link.close()
            self._log_streams.pipes.close()
            self._runner.close()
            self._selector.close()
        if self._is_shut_down and self._cache:
            from tfcluster.agent.files.cache import prune

            prune(self._cache)

    def wait_for_next_run(self) -> tuple[Agent, socket.socket] | None:
        """Stay warm: return the next run's agent, which keeps the imports, and who asked for it.

        Return None when this agent does not stay or no next run came.
        """
        if self._warm_wait is None or (next_run := self._warm_wait.wait()) is None:
            return None
        config, peer = next_run
        return Agent(config, self._recorder, self._guard_alive, previous=self), peer

    def _turn(self) -> None:
        at = [when for when in (self._runner.deadline(), self._link.deadline()) if when is not None]
        timeout = max(0.0, min(at) - time.monotonic()) if at else None
        watched = self._selector.get_map()
        self._link.clock.note_turn()
        ready = self._selector.select(timeout)
        self._link.clock.note_turn(timeout)
        for key, events in ready:
            current = watched.get(key.fd)
            if current is not None and current.fileobj == key.fileobj:  # not closed in this turn
                key.data(events)
        moment = time.monotonic()
        self._runner.on_time(moment)
        self._link.on_time(moment)
        self._runner.hold(self._link.is_in_doubt)
        if self._cache_use is not None:
            self._cache_use.on_time(moment)
        if self._files is not None:
            self._files.pump()

    def _resume(self, log_offsets: dict[str, int]) -> None:
        if self._files is not None:
            self._files.forget()
        self._runner.end_all_execs()  # frames may have been lost with the connection
        self._log_streams.resume(log_offsets)

    def _take_file(self, name: str, offset: int, data: bytes) -> None:
        if self._files is not None:
            self._files.take(name, offset, data)

    def _ensure_files(self) -> FileClient:
        if self._files is None or self._files.is_over:
            from tfcluster.agent.files.file_process import FileClient

            self._files = FileClient(self._cache, self._link, self._selector)
            self._runner.other_children = {self._files.pid}
        return self._files

    def _on_signals(self, _events: int) -> None:
        numbers = os.read(self._signals, 4096)
        if signal.SIGCHLD in numbers:
            self._runner.reap()
        for number in numbers:
            if number != signal.SIGCHLD and self._announces:
                self._link.send(msg.EndAnnounced(signal=number))
            elif number != signal.SIGCHLD and not self._is_over:
                # Sent before the exits of the tasks that end with the agent: nobody ordered those.
                self._link.send(msg.AgentEnding(signal=number))
                self._is_over = True

    def _on_guard_lost(self, _events: int) -> None:
        self._link.send(msg.GuardLost())
        self._is_over = True

    def _carry_out(self, message: dict[str, Any]) -> None:
        order = None
        try:
            order = parse(message, msg.Order)
            if isinstance(order, msg.FileOrder):
                self._ensure_files().order(order)
            elif order is None:
                raise ValueError(f"unknown order: {message['type']}")
            else:
                self._actions[type(order)](order)
        except (KeyError, TypeError, ValueError, OSError) as error:
            refusal = f"{message.get('type')}: {type(error).__name__}: {describe_error(error)}"
            if isinstance(order, msg.FileOrder):  # the tasks can go on
                self._link.send(msg.FilesLost(error=refusal))
            else:
                self._link.send(msg.Refused(reason=refusal))

    def _hold_ports(self, order: msg.HoldPorts) -> None:
        try:
            ports = self._ports.hold(order.ports, among=order.among)
        except PortInUse as error:
            self._link.send(error.report)
        else:
            self._link.send(msg.PortsHeld(ports=ports, **_find_host(order.interface)))

    def _shut_down(self, order: msg.Shutdown) -> None:
        stays = order.stays and self._config.warm is not None and self._preloader.is_ready
        self._runner.end_all(spare={self._preloader.pid} if stays else frozenset())
        for folder in order.remove:
            from tfcluster.agent.files.cache import remove

            with contextlib.suppress(OSError):
                remove(folder)
                os.rmdir(os.path.dirname(folder))  # the run's, unless it holds another node's
        if stays:  # before the coordinator hears of the end: the next run may come at once
            self._warm_wait = self._listen_for_next_run()
        self._link.send(msg.Bye(stays=self._warm_wait is not None))
        self._is_over = self._is_shut_down = True

    def _listen_for_next_run(self) -> WarmWait | None:
        """Return the wait for the next run; None if another agent waits, or the system refuses."""
        from tfcluster.agent.warm import AnotherWaits, WarmWait

        assert self._config.warm is not None
        wakes = [self._guard_alive, self._preloader.fileno()]
        try:
            return WarmWait(self._config.warm, self._recorder, wakes=wakes, signals=self._signals)
        except (AnotherWaits, OSError):
            return None


def _cache_use(cache: str, run_id: str) -> CacheUse:
    """Return what marks this agent's bundle and the run's folder as in use."""
    from tfcluster.agent.files.cache import CacheUse

    up = [os.pardir] * 4  # from agent/tfcluster/agent/agent.py
    bundle = os.path.abspath(os.path.join(__file__, *up))
    return CacheUse(bundle, os.path.join(cache, "nodes", run_id))


def _find_host(interface: str | None) -> dict[str, Any]:
    """Return the `host` of this node on an interface, or all its `interfaces` if it has no such."""
    if interface is None:
        return {}
    from tfcluster.agent.net.interfaces import find_host, find_interfaces

    try:
        interfaces = find_interfaces()
    except (OSError, AttributeError):  # a libc without getifaddrs
        interfaces = []
    host = find_host(interface, interfaces, socket.gethostname())
    return {"host": host} if host else {"interfaces": [" ".join(pair) for pair in interfaces]}


def _signals_as_bytes(*, announces: bool) -> int:
    """Return a descriptor that yields the number of every signal the agent acts on."""
    announcing = (signal.SIGUSR1, signal.SIGUSR2) if announces else ()
    wake_read, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(wake_read, False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, *announcing):
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    return wake_read
