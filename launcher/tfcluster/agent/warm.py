"""An agent between two runs (`up --warm`): it keeps what was imported, and waits for the next one.

Whoever connects to its socket, in this user's own folder, sends a length (4 bytes) and as many
bytes of JSON, and is answered: ``tell`` with what is kept here, ``end`` with nothing but the end,
``run`` with `main.READY` once the agent listens as that run's own.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import time

from tfcluster.agent.net.listener import is_own_user, listen
from tfcluster.agent.net.private_folders import make_private
from tfcluster.agent.processes import reap_orphans, set_process_name
from tfcluster.agent.tasks.preloader import hear

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from tfcluster.agent.guard import Recorder

NAME = "tfcluster-warm"
"""Of the process, while it waits: no orphan of a run."""
_PATIENCE_S = 2.0
_LOOK_S = 5.0
"""Between two looks at our socket."""


class Rest:
    """The wait of one agent for its next run."""

    def __init__(
        self, warm: dict[str, Any], recorder: Recorder, *, wakes: list[int], signals: int
    ) -> None:
        """`warm`: socket, seconds, about. Readable `wakes` end the wait; `signals` yields the
        numbers of signals."""
        self._warm, self._recorder, self._wakes, self._signals = warm, recorder, wakes, signals
        self._until = time.monotonic() + warm["seconds"]

    def wait(self) -> tuple[dict[str, Any], socket.socket] | None:
        """The next run's config, and who awaits `main.READY`; None: nobody came, or ended it."""
        path = self._warm["socket"]
        with _alone_in(os.path.dirname(path)):
            if _is_served(path):
                return None  # by the agent of a run beside ours
            listener = listen(path)
        self._recorder.add_file(path)
        with open("/proc/self/comm") as file:
            name = file.read().strip()
        set_process_name(NAME)
        try:
            return self._serve(listener)
        finally:
            set_process_name(name)
            with _alone_in(os.path.dirname(path)), contextlib.suppress(OSError):
                os.unlink(path)  # while we listen nobody else's is there
                listener.close()
            self._recorder.drop_file(path)

    def _serve(self, listener: socket.socket) -> tuple[dict[str, Any], socket.socket] | None:
        while (left := self._until - time.monotonic()) > 0:
            if not os.path.lexists(self._warm["socket"]):
                return None  # it was cleared away, so nobody can take us up, nor end us
            watched = [listener.fileno(), self._signals, *self._wakes]
            woken = select.select(watched, [], [], min(left, _LOOK_S))[0]
            if any(fd in woken for fd in self._wakes):
                return None
            if self._signals in woken and self._is_told_to_end():
                return None
            if listener.fileno() not in woken:
                continue
            peer, _ = listener.accept()
            request = hear(peer, _PATIENCE_S) if is_own_user(peer) else {}
            if _has_hung_up(peer):  # we stood still, and it has begun without us
                peer.close()
                continue
            if request.get("op") == "run":
                os.environ.clear()
                os.environ.update(request["environ"])
                return request["config"], peer
            with peer, contextlib.suppress(OSError):
                peer.sendall(json.dumps(self._told()).encode())
            if request.get("op") == "end":
                return None
        return None

    def _told(self) -> dict[str, Any]:
        left = max(0.0, self._until - time.monotonic())
        about, guard = self._warm["about"], self._recorder.pid
        return {"pid": os.getpid(), "guard": guard, "seconds": round(left, 1), "about": about}

    def _is_told_to_end(self) -> bool:
        reap_orphans()
        return any(number != signal.SIGCHLD for number in os.read(self._signals, 4096))


@contextlib.contextmanager
def _alone_in(folder: str) -> Iterator[None]:
    """Of all agents whose run ends now."""
    make_private(folder)
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(path) == 0


def _has_hung_up(peer: socket.socket) -> bool:
    peer.setblocking(False)
    try:
        return peer.recv(1) == b""
    except BlockingIOError:
        return False  # it waits for our answer
    except OSError:
        return True
    finally:
        peer.settimeout(_PATIENCE_S)
