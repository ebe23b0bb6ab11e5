"""What a remote node's agent does with files, in a process of its own beside it.

Reading, hashing and copying gigabytes, and a disk that stands still, hold up neither exits nor
logs nor pings so, and the tasks come first: the process is niced. It is forked with the first
order for it, passes what it sends through the agent's line, and ends with the agent.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket

from tfcluster.agent import protocol
from tfcluster.agent.folders import new_passing, remove
from tfcluster.agent.processes import close_from, die_with_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from tfcluster.agent.line import Line

NICENESS = 10
_READ_BYTES = 256 << 10


class Files:
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
        _become_filer(its_end, cache, passing, agent)
    return pid


def _become_filer(its_end: socket.socket, cache: str, passing: str, agent: int) -> NoReturn:
    try:
        die_with_parent(agent)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        end = os.dup2(its_end.detach(), 3)
        close_from(end + 1)  # held ports and tasks' pipes are not ours
        os.nice(NICENESS)
        from tfcluster.agent.filer import Filer  # a hash is imported here and not by the agent

        Filer(socket.socket(fileno=end), cache, passing).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the agent has gone
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(0)
