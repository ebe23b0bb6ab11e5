"""The file process beside a remote node's agent: receives, lists and sends files.

So large files and a hanging disk delay neither exits nor logs nor pings of the agent; the process
is niced because the tasks come first. It is forked at the first file order, sends through the
agent's link, and ends with the agent. `FileOrders` is the agent's end of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time

from tfcluster.agent import protocol
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.files.cache import new_passing, remove
from tfcluster.agent.files.incoming import Incoming
from tfcluster.agent.files.outgoing import Outgoing, look
from tfcluster.agent.processes import close_from, die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from typing import Any, NoReturn

    from tfcluster.agent.net.session import Line


NICENESS = 10
_READ_BYTES = 256 << 10


class FileOrders:
    """The agent's end: orders and bytes go in, answers come out while the line has room."""

    def __init__(self, cache: str, line: Line, selector: selectors.BaseSelector) -> None:
        self._line, self._selector = line, selector
        self._passing = new_passing(cache)
        self._decoder = protocol.Decoder()
        self._outgoing = bytearray()
        self._watched = 0
        self.is_over = False
        """It has ended by itself: what was under way will not be answered."""
        self._socket, its_end = socket.socketpair()
        self.pid = _fork(its_end, cache, self._passing)
        its_end.close()
        self._socket.setblocking(False)

    def order(self, message: dict[str, Any]) -> None:
        self._outgoing += protocol.control_frame(message)

    def take(self, digest: str, offset: int, data: bytes) -> None:
        """Bytes of a file that it wants; who sends them keeps to a window (`took`)."""
        self._outgoing += protocol.data_frame(protocol.FILE, digest, offset, data)

    def forget(self) -> None:
        """The connection broke: readings and trees under way are ordered again."""
        self.order({"type": "forget"})

    def pump(self) -> None:
        """Once in each turn of the agent's loop: send, and listen while the line has room."""
        if self.is_over:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                while self._outgoing:
                    del self._outgoing[: self._socket.send(self._outgoing)]
            except (BrokenPipeError, ConnectionResetError):
                self._end()
                return
        events = selectors.EVENT_READ if self._line.room > 0 else 0
        self._watch(events | (selectors.EVENT_WRITE if self._outgoing else 0))

    def clear_up(self) -> None:
        """It was killed, alone or with all that the agent had started."""
        with contextlib.suppress(OSError):
            remove(self._passing)

    def _watch(self, events: int) -> None:
        if events == self._watched:
            return
        if not events:
            self._selector.unregister(self._socket)
        elif self._watched:
            self._selector.modify(self._socket, events, self._on_events)
        else:
            self._selector.register(self._socket, events, self._on_events)
        self._watched = events

    def _on_events(self, events: int) -> None:
        if not events & selectors.EVENT_READ:
            return  # there is room to send: `pump` does
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._end()
            return
        for kind, payload in self._decoder.feed(data):
            if kind == protocol.FILE:
                self._line.queue(protocol.frame(protocol.FILE, payload))
            else:
                self._line.say(protocol.read_control(payload))

    def _end(self) -> None:
        self._watch(0)
        self._socket.close()
        self.is_over = True
        self.clear_up()
        self._line.say({"type": "files_lost", "error": "what handled its files was killed"})


def _fork(its_end: socket.socket, cache: str, passing: str) -> int:
    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become_file_process(its_end, cache, passing, agent)
    return pid


def _become_file_process(its_end: socket.socket, cache: str, passing: str, agent: int) -> NoReturn:
    try:
        die_with_parent(agent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        end = os.dup2(its_end.detach(), 3)
        close_from(end + 1)  # held ports and tasks' pipes are not ours
        os.nice(NICENESS)

        FileProcess(socket.socket(fileno=end), cache, passing).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the agent has gone
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


ALIVE_S = 2.0
"""Whoever waits gives up after many times that (`wire.file_transfer.SILENCE_S`)."""
_ORDER_READ_BYTES = 256 << 10
_FAILED: dict[str, dict[str, Any]] = {
    "receive": {"type": "receive_failed"},
    "scan": {"type": "scanned", "entries": []},
    "read": {"type": "read_end"},
    "look": {"type": "looked", "folder": None},
}
"""Order → how it is answered, with an `error`, where it fails: the node itself goes on. Nobody
waits for an answer to the others."""


class FileProcess:
    """Speaks frames with the agent over a socket that blocks."""

    def __init__(self, agent: socket.socket, cache: str, passing: str) -> None:
        self._agent = agent
        self._decoder = protocol.Decoder()
        self._said_at = time.monotonic()
        self._incoming = Incoming(cache, self._say, passing=passing, alive=self._alive)
        self._outgoing = Outgoing(self._say, self._send_bytes, self._alive)

    def run(self) -> None:
        """Until the agent is gone."""
        while True:
            wait = self._outgoing.patience(time.monotonic())
            if select.select([self._agent], [], [], wait)[0]:
                data = self._agent.recv(_ORDER_READ_BYTES)
                if not data:
                    return
                for kind, payload in self._decoder.feed(data):
                    self._heed(kind, payload)
            self._outgoing.turn(time.monotonic())

    def _heed(self, kind: bytes, payload: bytes) -> None:
        if kind == protocol.FILE:
            self._incoming.take(*protocol.read_data(payload))
            return
        order = protocol.read_control(payload)
        orders: dict[str, Callable[[dict[str, Any]], None]] = {
            "receive": self._incoming.receive,
            "scan": self._outgoing.scan,
            "read": self._outgoing.read,
            "got": self._outgoing.got,
            "hurry": self._outgoing.hurry,
            "look": lambda order: self._say(look(order)),
            "cancel": self._cancel,
            "forget": self._forget,
        }
        try:
            orders[order["type"]](order)
        except (KeyError, TypeError, ValueError, OSError) as error:
            self._fail(order, f"{type(error).__name__}: {describe_error(error)}")

    def _fail(self, order: dict[str, Any], reason: str) -> None:
        answer = _FAILED.get(order.get("type", ""))
        if answer is not None and isinstance(order.get("id"), int):
            self._say({**answer, "id": order["id"], "error": reason})

    def _cancel(self, order: dict[str, Any]) -> None:
        self._incoming.cancel(order["id"])
        self._outgoing.cancel(order["id"])

    def _forget(self, _order: dict[str, Any]) -> None:
        self._incoming.forget()
        self._outgoing.forget()

    def _say(self, message: dict[str, Any]) -> None:
        self._agent.sendall(protocol.control_frame(message))
        self._said_at = time.monotonic()

    def _send_bytes(self, name: str, offset: int, data: bytes) -> None:
        self._agent.sendall(protocol.data_frame(protocol.FILE, name, offset, data))
        self._said_at = time.monotonic()

    def _alive(self, number: int) -> None:
        """Something takes long, but goes on: who waits for it hears that from time to time."""
        if time.monotonic() > self._said_at + ALIVE_S:
            self._say({"type": "moving", "id": number})
