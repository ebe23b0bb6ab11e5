"""A way into an isolated network namespace: a port of this machine's loopback that leads there.

As in `way_out`, a socket belongs to the namespace of the thread that made it: the listener is
outside, and the thread that accepts, with all threads that it starts, is inside.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading

from .way_out import CLONE_NEWNET, DIAL_S, _pass


class Door:
    """Connections to 127.0.0.1:PORT of this machine reach `target` in the network of `pid`."""

    def __init__(self, pid: int, target: tuple[str, int]) -> None:
        self._pid, self._target = pid, target
        # Bound for good, it keeps others from the port while the door is closed.
        self._port = socket.socket()
        self._port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port.bind(("127.0.0.1", 0))
        self.port: int = self._port.getsockname()[1]
        self._listener: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._silent = contextlib.ExitStack()

    def open(self) -> None:
        """Listen, on the same port as before."""
        self.close()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self._thread = threading.Thread(target=self._serve, args=(self._listener,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Refuse new connections; those that are open stay."""
        self._silent.close()
        if self._listener is None or self._thread is None:
            return
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        self._listener = self._thread = None

    def remove(self) -> None:
        """Close it and give its port back."""
        self.close()
        self._port.close()

    def fall_silent(self) -> None:
        """Neither accept nor refuse new connections, as if their packets were lost."""
        self.close()
        place = ("127.0.0.1", self.port)
        # The kernel drops the first packet of a connection for which a queue has no room.
        self._silent.enter_context(socket.create_server(place, backlog=0))
        self._silent.enter_context(socket.create_connection(place))

    def _serve(self, listener: socket.socket) -> None:
        namespace = os.open(f"/proc/{self._pid}/ns/net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET):
                raise PermissionError(f"the network of process {self._pid} cannot be entered")
        finally:
            os.close(namespace)
        with contextlib.suppress(OSError):  # the listener was shut down
            while True:
                client, _ = listener.accept()
                threading.Thread(target=self._connect, args=(client,), daemon=True).start()

    def _connect(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(self._target, DIAL_S) as server,
        ):
            server.settimeout(None)
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            _pass(client, server)
            back.join()
