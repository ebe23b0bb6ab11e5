"""The agent's link to the coordinator: hellos, numbered messages, lease and pings.

A link outlives its connections: messages not acknowledged over one are sent again over the next.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import time
from collections.abc import Callable

from tfcluster.agent import Any, budgets, fencing, protocol
from tfcluster.agent import catalogue as msg
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.guard import Recorder, file_identity
from tfcluster.agent.net.listener import ENOUGH_QUEUED, Connection, is_own_user, listen
from tfcluster.agent.stop_clock import StopClock

PING_S = 2.0
PROOF_S = 15.0
"""The longest time in which a coordinator must answer an agent that was stopped for longer than its
lease: all nodes of a suspended run do not go on in the same moment."""
FIRST_HELLO_S = 10.0
FLUSH_S = 1.0


class CoordinatorLink:
    """The agent's side of the session: one socket, one coordinator at a time."""

    def __init__(
        self,
        config: AgentConfig,
        recorder: Recorder,
        selector: selectors.BaseSelector,
        carry_out: Callable[[dict[str, Any]], None],
        resume_logs: Callable[[dict[str, int]], None],
        use_room: Callable[[], None],
        take_file: Callable[[str, int, bytes], None],
        take_exec: Callable[[str, int, bytes], None],
    ) -> None:
        """Listen on the configured socket.

        `carry_out` gets each new message once, `resume_logs` the offsets of a hello, `take_file`
        the bytes of `F` frames, `take_exec` those of `X` frames; `use_room` is called whenever
        there may be room to send.
        """
        self._take_file, self._take_exec = take_file, take_exec
        self._config, self._recorder, self._selector = config, recorder, selector
        self._carry_out, self._resume_logs, self._use_room = carry_out, resume_logs, use_room
        self._session = protocol.Session()
        self._connection: Connection | None = None
        self._pending: list[Connection] = []
        """The connections without a hello, the oldest first."""
        self._lease_s: float | None = config.lease_s
        self._last_heard = time.monotonic()
        self.clock = StopClock()
        """The time since then in which the agent itself was stopped."""
        self._proof: int | None = None
        """The number of the report whose acknowledgement proves that the coordinator still has this
        agent; None unless the agent was stopped for longer than its lease."""
        self._proof_by = 0.0
        self._was_welcomed = False
        self._next_ping = 0.0
        self.is_over = False
        """True if the coordinator is gone for good: its lease or, without one, connection ended."""
        self._listen()

    @property
    def has_lease(self) -> bool:
        """True if the coordinator may reconnect."""
        return self._lease_s is not None

    @property
    def is_in_doubt(self) -> bool:
        """True while others may rely on the end of the tasks, which therefore must not run."""
        return self._proof is not None

    @property
    def backlog(self) -> int:
        return self._session.backlog

    @property
    def log_room(self) -> int:
        """The bytes of log that may be queued now; 0 if the coordinator wants none."""
        connection = self._connection
        return connection.room if connection is not None and connection.streams_logs else 0

    @property
    def room(self) -> int:
        """The bytes of files that may be queued now; half of the queue is reserved for logs."""
        if self._connection is None or not self._connection.is_welcomed:
            return 0
        return max(0, self._connection.room - ENOUGH_QUEUED // 2)

    @property
    def wants_logs(self) -> bool:
        return self._connection is not None and self._connection.streams_logs

    def send(self, report: msg.Report) -> None:
        """Number a report and send it, now or after the next hello; keep it until acknowledged."""
        self.pass_on(report.to_json())

    def pass_on(self, message: dict[str, Any]) -> None:
        """Send a report that another process of the agent has written."""
        self.queue(self._session.number(message))

    def queue(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.queue(frame)
            self._flush(self._connection)

    def deadline(self) -> float | None:
        """Return the moment when `on_time` must be called next, or None."""
        due = [pending.hello_by for pending in self._pending]
        if (deadline := self._coordinator_deadline()) is not None:
            due.append(deadline)
        return min(due, default=None)

    def _coordinator_deadline(self) -> float | None:
        if self._lease_s is not None and self._was_welcomed:
            lease_ends = self._last_heard + self._lease_s
            return min(self._proof_by if self.is_in_doubt else lease_ends, self._next_ping)
        return self._last_heard + FIRST_HELLO_S if self._connection is None else None

    def on_time(self, now: float) -> None:
        for pending in [other for other in self._pending if other.hello_by <= now]:
            self._refuse(pending, f"no hello within {budgets.HELLO_S:.0f} s")
        deadline = self._coordinator_deadline()
        if deadline is None or now < deadline:
            return
        if self._lease_s is None or not self._was_welcomed:
            self.is_over |= now >= self._last_heard + FIRST_HELLO_S
        else:
            self._check_lease()
        if not self.is_over and now >= self._next_ping:
            self._next_ping = now + PING_S
            self._listen_again()
            self.queue(protocol.frame(protocol.PING))

    def close(self) -> None:
        """Send what is queued and remove the socket."""
        self._listener.close()
        path = self._config.socket
        with contextlib.suppress(OSError):
            if file_identity(path) == self._socket_identity:  # else a later agent made it
                os.unlink(path)
        for pending in self._pending:
            pending.socket.close()
        if self._connection is not None:
            self._connection.hang_up(FLUSH_S)

    def _listen(self) -> None:
        path = self._config.socket
        self._listener, self._socket_identity = listen(path), file_identity(path)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._recorder.add_file(path)

    def _listen_again(self) -> None:
        """Create the socket again if a cleaner of the temporary folder removed it."""
        if os.path.lexists(self._config.socket):
            return
        old = self._listener
        with contextlib.suppress(OSError):  # tried again with the next ping
            self._listen()
            self._selector.unregister(old)
            old.close()

    def _accept(self, _events: int) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        connection = Connection(peer)
        if not is_own_user(peer):
            connection.refuse("another user's connection")
            return
        if len(self._pending) >= budgets.PENDING_CONNECTIONS:
            self._refuse(self._pending[0], "too many connections wait without a hello")
        self._pending.append(connection)
        self._selector.register(
            peer, selectors.EVENT_READ, lambda events: self._on_connection(connection, events)
        )
        self._flush(connection)

    def _on_connection(self, connection: Connection, events: int) -> None:
        try:
            frames = connection.read() if events & selectors.EVENT_READ else []
            if frames is None:
                self._lose(connection)
                return
            self._on_frames(connection, frames)
        except protocol.ProtocolError as error:
            self._refuse(connection, str(error))
        self._use_room()
        self._flush(connection)

    def _on_frames(self, connection: Connection, frames: list[tuple[bytes, bytes]]) -> None:
        for kind, payload in frames:
            if kind == protocol.CONTROL:
                message = protocol.read_control(payload)
                if message.get("type") == "hello":
                    self._on_hello(connection, msg.Hello.read(message))
                elif connection.is_welcomed and self._session.is_new(message):
                    self._renew_lease()  # else an order that came while it was stopped counts
                    # Sent first: some orders take seconds, and the agent would seem to hang.
                    self.queue(self._session.acknowledgement())
                    self._carry_out(message)
            elif kind == protocol.FILE and connection is self._connection:
                self._take_file(*protocol.read_data(payload))
            elif kind == protocol.EXEC and connection is self._connection:
                self._take_exec(*protocol.read_data(payload))
            elif kind == protocol.ACK and connection.is_welcomed:
                self._session.acknowledged(protocol.read_number(payload))
                self._take_proof()
            elif kind == protocol.PING and connection.is_welcomed and self._lease_s is None:
                self.queue(protocol.frame(protocol.PING))
            if connection.is_welcomed:
                self._renew_lease()

    def _renew_lease(self) -> None:
        """Renew the lease, unless it has expired.

        An agent that was stopped may read old frames after its lease has expired, when others
        already rely on its tasks having ended.
        """
        if self._lease_s is None or self._check_lease():
            self._last_heard, self.clock.stopped_s = time.monotonic(), 0.0

    def set_lease(self, order: msg.SetLease) -> None:
        if self._lease_s is not None:
            self._lease_s = order.lease_s

    def _check_lease(self) -> bool:
        """Return whether the lease holds; if not, end, or first ask a coordinator that may have
        been stopped as well.

        Only the time in which the agent itself ran counts: a scheduler suspends all of a run. But
        a coordinator that ran meanwhile has given up the agent, and does not answer.
        """
        assert self._lease_s is not None
        now = time.monotonic()
        self.clock.note_turn()
        if self.is_in_doubt:
            self.is_over |= now >= self._proof_by
        elif now >= self._last_heard + self._lease_s:
            has_run_out = now >= self._last_heard + self._lease_s + self.clock.stopped_s
            if has_run_out or self._connection is None:
                self.is_over = True
            else:
                self.send(msg.WasStopped(seconds=round(self.clock.stopped_s, 1)))
                self._proof = self._session.last_sent
                self._proof_by = now + min(PROOF_S, self._lease_s)
        else:
            return True
        return False

    def _take_proof(self) -> None:
        """End the doubt if the coordinator has acknowledged the report that asked for it."""
        if self._proof is not None and not self._session.waits_for(self._proof):
            self._proof = None
            self._last_heard, self.clock.stopped_s = time.monotonic(), 0.0

    def _on_hello(self, connection: Connection, hello: msg.Hello) -> None:
        reason = self._refusal_reason(hello)
        if reason:
            self._refuse(connection, reason)
            return
        if self._connection is not None:
            self._drop(self._connection)
        self._connection = connection
        connection.welcome()
        self._pending = [other for other in self._pending if other is not connection]
        self._was_welcomed = True
        connection.streams_logs = hello.stream_logs
        connection.queue(protocol.control_frame({**self._welcome().to_json(), "n": 0}))
        self._resume_logs(dict(hello.log_offsets))
        for encoded in self._session.resume(hello.last_seen):
            connection.queue(encoded)

    def _refusal_reason(self, hello: msg.Hello) -> str:
        if hello.protocol != protocol.VERSION:
            return f"protocol {hello.protocol}; this agent speaks {protocol.VERSION}"
        served = (self._config.run_id, self._config.node)
        if (hello.run_id, hello.node) != served:
            return "this agent serves run {}, node {}".format(*served)
        if hello.token != self._config.token:
            return "wrong token"
        if self._connection is not None and self._lease_s is None:
            return "another coordinator is connected"
        return ""

    def _welcome(self) -> msg.Welcome:
        return msg.Welcome(
            pid=os.getpid(),
            guard_pid=self._recorder.pid,
            identity=fencing.identity(self._recorder.pid),
            node=self._config.node,
            python=sys.version.split()[0],
            executable=sys.executable,
            last_seen=self._session.last_seen,
            cache=self._config.cache,
        )

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._unwatch(connection)
        connection.refuse(reason)
        self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        is_last = self._lease_s is None or self.is_in_doubt or self._config.is_tied
        if connection is self._connection and is_last and not self.is_over:
            # Maybe only its sending half is closed: the last exits are still written to it.
            self._unwatch(connection)
            self.is_over = True
            return
        self._drop(connection)
        if connection is self._connection:
            self._connection = None

    def _drop(self, connection: Connection) -> None:
        self._pending = [other for other in self._pending if other is not connection]
        self._unwatch(connection)
        connection.socket.close()

    def _unwatch(self, connection: Connection) -> None:
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.socket)

    def _flush(self, connection: Connection) -> None:
        if connection.socket.fileno() < 0:
            return
        if not connection.flush():
            self._lose(connection)
            return
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.queued else 0)
        key = self._selector.get_map().get(connection.socket.fileno())
        if key is not None and key.events != events:
            self._selector.modify(connection.socket, events, key.data)
