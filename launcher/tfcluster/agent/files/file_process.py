"""The file process: receives, lists and sends files of its machine.

Beside a remote node's agent it sends through the agent's link, so large files and a hanging disk
delay neither exits nor logs nor pings; it is niced because the tasks come first. It is forked at
the first file order and ends with the agent. `FileClient` is the agent's end of it.

``python -m tfcluster.agent.files.file_process`` serves its stdin and stdout in the same way, where
no agent is needed.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import time
from collections.abc import Callable

from tfcluster.agent import Any, NoReturn, protocol
from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.files.cache import new_transit_folder, remove
from tfcluster.agent.files.incoming import Incoming
from tfcluster.agent.files.outgoing import Outgoing, find_marked_folder
from tfcluster.agent.message_fields import parse
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.processes import leave_agent

NICENESS = 10
ALIVE_S = 2.0
"""The time between two signs of life; the coordinator waits many times longer."""
_READ_BYTES = 256 << 10


class FileClient:
    """The agent's end: passes orders and bytes on, and answers back while the link has room."""

    def __init__(self, cache: str, link: CoordinatorLink, selector: selectors.BaseSelector) -> None:
        self._link, self._selector = link, selector
        self._transit = new_transit_folder(cache)
        self._decoder = protocol.Decoder()
        self._outgoing = bytearray()
        self._watched = 0
        self.is_over = False
        """True if the process has ended: unfinished orders will not be answered."""
        self._socket, its_end = socket.socketpair()
        agent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            _become_file_process(its_end, cache, self._transit, agent)
        its_end.close()
        self._socket.setblocking(False)

    def order(self, order: msg.Order) -> None:
        self._outgoing += protocol.control_frame(order.to_json())

    def take(self, digest: str, offset: int, data: bytes) -> None:
        """Pass on bytes of a file; the sender limits their number by a window (`took`)."""
        self._outgoing += protocol.data_frame(protocol.FILE, digest, offset, data)

    def forget(self) -> None:
        """Drop all orders after a lost connection: the coordinator repeats them."""
        self.order(msg.DropFileOrders())

    def pump(self) -> None:
        """Send what the socket takes, and listen while the link has room; called every turn."""
        if self.is_over:
            return
        with contextlib.suppress(BlockingIOError):
            try:
                while self._outgoing:
                    del self._outgoing[: self._socket.send(self._outgoing)]
            except (BrokenPipeError, ConnectionResetError):
                self._end()
                return
        events = selectors.EVENT_READ if self._link.room > 0 else 0
        self._watch(events | (selectors.EVENT_WRITE if self._outgoing else 0))

    def clean_up(self) -> None:
        """Remove the files that a killed process left."""
        with contextlib.suppress(OSError):
            remove(self._transit)

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
            return  # the socket takes more: `pump` sends
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
                self._link.queue(protocol.frame(protocol.FILE, payload))
            else:
                self._link.pass_on(protocol.read_control(payload))

    def _end(self) -> None:
        self._watch(0)
        self._socket.close()
        self.is_over = True
        self.clean_up()
        self._link.send(msg.FilesLost(error="the node's file process was killed"))


def _become_file_process(its_end: socket.socket, cache: str, transit: str, agent: int) -> NoReturn:
    try:
        end = leave_agent(its_end.detach(), agent)
        os.nice(NICENESS)
        FileProcess(end, end, cache, transit).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the agent has ended
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)


class FileProcess:
    """The process's main loop, which exchanges frames over blocking descriptors."""

    def __init__(self, orders: int, answers: int, cache: str, transit: str = "") -> None:
        self._orders, self._answers = orders, answers
        self._decoder = protocol.Decoder()
        self._said_at = time.monotonic()
        self._incoming = Incoming(cache, self._send, transit=transit, keep_alive=self._keep_alive)
        self._outgoing = Outgoing(self._send, self._send_bytes, self._keep_alive)

    def run(self) -> None:
        """Serve until the other side ends."""
        while True:
            wait = self._outgoing.patience(time.monotonic())
            if select.select([self._orders], [], [], wait)[0]:
                data = os.read(self._orders, _READ_BYTES)
                if not data:
                    return
                for kind, payload in self._decoder.feed(data):
                    self._handle(kind, payload)
            self._outgoing.turn(time.monotonic())

    def _handle(self, kind: bytes, payload: bytes) -> None:
        if kind == protocol.FILE:
            self._incoming.take(*protocol.read_data(payload))
            return
        order = parse(protocol.read_control(payload), msg.Order)
        assert order is not None
        orders: dict[type[msg.Order], Callable[[Any], None]] = {
            msg.Receive: self._incoming.receive,
            msg.Scan: self._outgoing.scan,
            msg.Read: self._outgoing.read,
            msg.Written: self._outgoing.got,
            msg.LiftRate: self._outgoing.hurry,
            msg.FindMarkedFolder: lambda order: self._send(find_marked_folder(order)),
            msg.Cancel: self._cancel,
            msg.DropFileOrders: self._forget,
        }
        try:
            orders[type(order)](order)
        except (KeyError, TypeError, ValueError, OSError) as error:
            if isinstance(order, msg.FileOrder):
                why = f"{type(error).__name__}: {describe_error(error)}"
                self._send(msg.FileFailed(id=order.id, error=why))

    def _cancel(self, order: msg.Cancel) -> None:
        self._incoming.cancel(order.id)
        self._outgoing.cancel(order.id)

    def _forget(self, _order: msg.DropFileOrders) -> None:
        self._incoming.forget()
        self._outgoing.forget()

    def _send(self, report: msg.FileReport) -> None:
        self._write(protocol.control_frame(report.to_json()))

    def _send_bytes(self, name: str, offset: int, data: bytes) -> None:
        self._write(protocol.data_frame(protocol.FILE, name, offset, data))

    def _write(self, frame: bytes) -> None:
        view = memoryview(frame)
        while view:
            view = view[os.write(self._answers, view) :]
        self._said_at = time.monotonic()

    def _keep_alive(self, number: int) -> None:
        """Report, from time to time, that a long order makes progress."""
        if time.monotonic() > self._said_at + ALIVE_S:
            self._send(msg.StillWorking(id=number))


if __name__ == "__main__":
    FileProcess(0, 1, os.path.expanduser("~/.cache/tfcluster")).run()
