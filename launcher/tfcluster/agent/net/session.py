"""The line to the coordinator: who may speak, what is numbered, what waits to be sent.

A line outlives its connections: what was not acknowledged over one is sent again over the next.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import sys
import time

from tfcluster.agent import budgets, fencing, protocol
from tfcluster.agent.guard import file_identity
from tfcluster.agent.net.listener import ENOUGH_QUEUED, Connection, is_own_user, listen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from tfcluster.agent.guard import Recorder

PING_S = 2.0
FIRST_HELLO_S = 10.0
LAST_WORDS_S = 1.0


class Line:
    """Listens on the configured socket and serves one coordinator at a time."""

    def __init__(
        self,
        config: dict[str, Any],
        recorder: Recorder,
        selector: selectors.BaseSelector,
        obey: Callable[[dict[str, Any]], None],
        resume_logs: Callable[[dict[str, int]], None],
        stream_logs: Callable[[], None],
        take_file: Callable[[str, int, bytes], None],
    ) -> None:
        """`obey` gets each new message once, `resume_logs` the offsets of a hello, `take_file`
        the bytes of `F` frames, and `stream_logs` is called whenever there may be room."""
        self._take_file = take_file
        self._config, self._recorder, self._selector = config, recorder, selector
        self._obey, self._resume_logs, self._stream_logs = obey, resume_logs, stream_logs
        self._session = protocol.Session()
        self._connection: Connection | None = None
        self._strangers: list[Connection] = []
        """Those that have not said hello, the oldest first."""
        self._lease_s: float | None = config["lease_s"]
        self._last_heard = time.monotonic()
        self._was_greeted = False
        self._next_ping = 0.0
        self.is_over = False
        """The coordinator is gone for good: its connection without a lease, or its lease."""
        self._listen()

    @property
    def has_lease(self) -> bool:
        """Whether a connection that broke may come back."""
        return self._lease_s is not None

    @property
    def backlog(self) -> int:
        return self._session.backlog

    @property
    def log_room(self) -> int:
        """Bytes of log that may be queued now; 0 where nobody wants them."""
        connection = self._connection
        return connection.room if connection is not None and connection.streams_logs else 0

    @property
    def room(self) -> int:
        """Bytes of files that may be queued now; logs go first, so half of what they may have."""
        if self._connection is None or not self._connection.welcomed:
            return 0
        return max(0, self._connection.room - ENOUGH_QUEUED // 2)

    @property
    def wants_logs(self) -> bool:
        return self._connection is not None and self._connection.streams_logs

    def say(self, message: dict[str, Any]) -> None:
        """Number, keep until acknowledged, send when somebody listens."""
        self.queue(self._session.number(message))

    def queue(self, frame: bytes) -> None:
        if self._connection is not None:
            self._connection.queue(frame)
            self._flush(self._connection)

    def deadline(self) -> float | None:
        """When `on_time` must be called next."""
        due = [own] if (own := self._own_deadline()) is not None else []
        return min([*due, *(stranger.hello_by for stranger in self._strangers)], default=None)

    def _own_deadline(self) -> float | None:
        if self._lease_s is not None and self._was_greeted:
            return min(self._last_heard + self._lease_s, self._next_ping)
        return self._last_heard + FIRST_HELLO_S if self._connection is None else None

    def on_time(self, now: float) -> None:
        for stranger in [one for one in self._strangers if one.hello_by <= now]:
            self._refuse(stranger, f"no hello came within {budgets.HELLO_S:.0f} s")
        deadline = self._own_deadline()
        if deadline is None or now < deadline:
            return
        has_lease = self._lease_s is not None and self._was_greeted
        patience = self._lease_s if has_lease and self._lease_s is not None else FIRST_HELLO_S
        if now >= self._last_heard + patience:
            self.is_over = True
        elif now >= self._next_ping:
            self._next_ping = now + PING_S
            self._listen_again()
            self.queue(protocol.frame(protocol.PING))

    def close(self) -> None:
        """Send what is queued, remove the socket."""
        self._listener.close()
        path = self._config["socket"]
        with contextlib.suppress(OSError):
            if file_identity(path) == self._made:  # else that of an agent that came after us
                os.unlink(path)
        for stranger in self._strangers:
            stranger.socket.close()
        if self._connection is not None:
            self._connection.hang_up(LAST_WORDS_S)

    def _listen(self) -> None:
        path = self._config["socket"]
        self._listener, self._made = listen(path), file_identity(path)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._recorder.add_file(path)

    def _listen_again(self) -> None:
        """Whatever clears the temporary folder has taken the socket, which the next relay needs."""
        if os.path.lexists(self._config["socket"]):
            return
        before = self._listener
        with contextlib.suppress(OSError):  # tried again with the next ping
            self._listen()
            self._selector.unregister(before)
            before.close()

    def _accept(self, _events: int) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError:
            return
        connection = Connection(peer)
        if not is_own_user(peer):
            connection.refuse("another user's connection")
            return
        if len(self._strangers) >= budgets.STRANGERS:
            self._refuse(self._strangers[0], "too many connections wait without a hello")
        self._strangers.append(connection)
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
        self._stream_logs()
        self._flush(connection)

    def _on_frames(self, connection: Connection, frames: list[tuple[bytes, bytes]]) -> None:
        for kind, payload in frames:
            if kind == protocol.CONTROL:
                message = protocol.read_control(payload)
                if message.get("type") == "hello":
                    self._hello(connection, message)
                elif connection.welcomed and self._session.is_new(message):
                    # First: some orders take seconds, and silence would look like a hung agent.
                    self.queue(self._session.acknowledgement())
                    self._obey(message)
            elif kind == protocol.FILE and connection is self._connection:
                self._take_file(*protocol.read_data(payload))
            elif kind == protocol.ACK and connection.welcomed:
                self._session.acknowledged(protocol.read_number(payload))
            elif kind == protocol.PING and connection.welcomed and self._lease_s is None:
                self.queue(protocol.frame(protocol.PING))
            if connection.welcomed:
                self._hear_now()

    def _hear_now(self) -> None:
        """What was said before the lease ended, and read after it, does not renew it: others may
        count on this agent's tasks having gone (it stood still, and wakes)."""
        now = time.monotonic()
        if self._lease_s is not None and now >= self._last_heard + self._lease_s:
            self.is_over = True
        else:
            self._last_heard = now

    def _hello(self, connection: Connection, hello: dict[str, Any]) -> None:
        wrong = self._what_is_wrong(hello)
        if wrong:
            self._refuse(connection, wrong)
            return
        if self._connection is not None:
            self._drop(self._connection)
        self._connection = connection
        connection.welcome()
        self._strangers = [one for one in self._strangers if one is not connection]
        self._was_greeted = True
        connection.streams_logs = bool(hello.get("stream_logs"))
        connection.queue(protocol.control_frame(self._welcome()))
        self._resume_logs(hello.get("log_offsets", {}))
        for encoded in self._session.resume(hello.get("last_seen", 0)):
            connection.queue(encoded)

    def _what_is_wrong(self, hello: dict[str, Any]) -> str:
        if hello.get("protocol") != protocol.VERSION:
            return f"protocol {hello.get('protocol')!r}; this agent speaks {protocol.VERSION}"
        ours = (self._config["run_id"], self._config["node"])
        if (hello.get("run_id"), hello.get("node")) != ours:
            return "this agent serves run {}, node {}".format(*ours)
        if hello.get("token") != self._config["token"]:
            return "wrong token"
        if self._connection is not None and self._lease_s is None:
            return "another coordinator is connected"
        return ""

    def _welcome(self) -> dict[str, Any]:
        return {
            "type": "welcome",
            "n": 0,
            "protocol": protocol.VERSION,
            "pid": os.getpid(),
            "guard_pid": self._recorder.pid,
            "identity": fencing.identity(self._recorder.pid),
            "node": self._config["node"],
            "python": sys.version.split()[0],
            "executable": sys.executable,
            "last_seen": self._session.last_seen,
            "cache": self._config.get("cache"),
        }

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._unwatch(connection)
        connection.refuse(reason)
        self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        if connection is self._connection and self._lease_s is None and not self.is_over:
            # Only its sending half may be closed: the last exits are still written to it.
            self._unwatch(connection)
            self.is_over = True
            return
        self._drop(connection)
        if connection is self._connection:
            self._connection = None

    def _drop(self, connection: Connection) -> None:
        self._strangers = [one for one in self._strangers if one is not connection]
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
