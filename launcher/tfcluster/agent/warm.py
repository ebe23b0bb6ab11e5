"""A warm agent (`up --warm`): it keeps its imports after a run and waits for the next one.

It listens on a socket in a folder of this user. A client sends a length (4 bytes) and that many
bytes of JSON with ``op``: ``tell`` and ``end`` are answered with the agent's status, and ``end``
ends it; ``run`` is answered with `entry.READY` once the agent listens for that run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator

from tfcluster.agent import Any
from tfcluster.agent.agent_config import AgentConfig, WarmStay
from tfcluster.agent.guard import Recorder
from tfcluster.agent.net.listener import is_own_user, listen, read_message
from tfcluster.agent.net.private_folders import make_private
from tfcluster.agent.processes import reap_orphans, set_process_name

PROCESS_NAME = "tfcluster-warm"
"""The process name while it waits, which tells it from an orphan of a run."""
_REQUEST_S = 2.0
_CHECK_S = 5.0
"""The time between two checks that the socket exists."""


class AnotherWaits(Exception):
    """Another warm agent waits for the same runs: two runs ended at once."""


class WarmWait:
    """The wait of an agent for its next run. Clients can connect once this is made."""

    def __init__(
        self, warm: WarmStay, recorder: Recorder, *, wakes: list[int], signals: int
    ) -> None:
        """Listen. Raises AnotherWaits, OSError.

        A readable descriptor of `wakes` ends the wait; `signals` yields the numbers of signals.
        """
        self._warm, self._recorder, self._wakes, self._signals = warm, recorder, wakes, signals
        self._until = time.monotonic() + warm.seconds
        with _locked(os.path.dirname(warm.socket)):
            if _has_listener(warm.socket):
                raise AnotherWaits
            self._listener = listen(warm.socket)
        recorder.add_file(warm.socket)

    def wait(self) -> tuple[AgentConfig, socket.socket] | None:
        """Return the next run's config and the client that awaits `entry.READY`.

        Return None if the time is over, or a client, a signal or a lost process ended the wait.
        """
        path = self._warm.socket
        with open("/proc/self/comm") as file:
            name = file.read().strip()
        set_process_name(PROCESS_NAME)
        try:
            return self._serve()
        finally:
            set_process_name(name)
            with _locked(os.path.dirname(path)), self._listener, contextlib.suppress(OSError):
                os.unlink(path)  # no other agent replaces the socket while this one listens
            self._recorder.drop_file(path)

    def _serve(self) -> tuple[AgentConfig, socket.socket] | None:
        listener = self._listener
        while (remaining := self._until - time.monotonic()) > 0:
            if not os.path.lexists(self._warm.socket):
                return None  # a cleaner removed it, so no client can reach this agent
            watched = [listener.fileno(), self._signals, *self._wakes]
            woken = select.select(watched, [], [], min(remaining, _CHECK_S))[0]
            if any(fd in woken for fd in self._wakes):
                return None
            if self._signals in woken and self._has_end_signal():
                return None
            if listener.fileno() not in woken:
                continue
            peer, _ = listener.accept()
            request = read_message(peer, _REQUEST_S) if is_own_user(peer) else {}
            if select.select([peer], [], [], 0)[0]:
                # Readable without an answer is the end: this process was stopped, and the client
                # gave up waiting.
                peer.close()
                continue
            if request.get("op") == "run":
                os.environ.clear()
                os.environ.update(request["environ"])
                return AgentConfig.read(request["config"]), peer
            with peer, contextlib.suppress(OSError):
                peer.sendall(json.dumps(self._status()).encode())
            if request.get("op") == "end":
                return None
        return None

    def _status(self) -> dict[str, Any]:
        remaining = max(0.0, self._until - time.monotonic())
        about, guard = self._warm.about, self._recorder.pid
        return {"pid": os.getpid(), "guard": guard, "seconds": round(remaining, 1), "about": about}

    def _has_end_signal(self) -> bool:
        reap_orphans()
        return any(number != signal.SIGCHLD for number in os.read(self._signals, 4096))


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Hold the folder's lock, against other agents whose run ends now."""
    make_private(folder)
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _has_listener(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # the queue of one that was stopped may be full
        return probe.connect_ex(path) in (0, errno.EAGAIN)
