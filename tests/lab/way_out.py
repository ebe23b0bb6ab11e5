"""A way out of an isolated network namespace: an HTTPS proxy that listens on its loopback.

A socket belongs to the namespace in which it was created, no matter which process uses it: the
proxy listens inside and dials outside, without an address, a route or a firewall rule.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
HEAD_BYTES = 8192
DIAL_S = 60.0


@contextmanager
def way_out(pid: int) -> Iterator[str]:
    """Yield the proxy's address in the network namespace of `pid`; it ends with the block."""
    listener = _listen_inside(pid)
    server = threading.Thread(target=_serve, args=(listener,), daemon=True)
    server.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        server.join()
        listener.close()


def _listen_inside(pid: int) -> socket.socket:
    made: list[socket.socket] = []

    def enter_and_listen() -> None:  # needs its own thread, which cannot leave the namespace
        namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) == 0:
                made.append(socket.create_server(("127.0.0.1", 0)))
        finally:
            os.close(namespace)

    thread = threading.Thread(target=enter_and_listen)
    thread.start()
    thread.join()
    if not made:
        raise PermissionError(f"the network of process {pid} cannot be entered")
    return made[0]


def _serve(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the listener was shut down
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client,), daemon=True).start()


def _connect(client: socket.socket) -> None:
    """Answer one CONNECT, then pass bytes both ways until either end closes."""
    with client, contextlib.suppress(OSError, ValueError):
        verb, target, _ = _head(client).split(b" ", 2)
        if verb != b"CONNECT":
            client.sendall(b"HTTP/1.1 405 only CONNECT\r\n\r\n")
            return
        host, _, port = target.decode().rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), DIAL_S) as server:
            server.settimeout(None)
            client.sendall(b"HTTP/1.1 200 connected\r\n\r\n")
            back = threading.Thread(target=_pass, args=(server, client), daemon=True)
            back.start()
            _pass(client, server)
            back.join()


def _head(client: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n") and len(head) < HEAD_BYTES:
        if not (more := client.recv(1)):
            break
        head += more
    return head


def _pass(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    for end, how in ((source, socket.SHUT_RD), (sink, socket.SHUT_WR)):
        with contextlib.suppress(OSError):
            end.shutdown(how)
