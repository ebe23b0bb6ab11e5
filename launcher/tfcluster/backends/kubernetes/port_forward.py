"""A connection to a pod's port through the API server, as `kubectl port-forward` makes it.

It is a websocket whose messages begin with a channel: 0 has the port's data, 1 the reason of an
end. The first message of each is the port's number (kubernetes/pkg/kubelet/cri/streaming/
portforward/websocket.go). The official client's own (`kubernetes.stream`) waits for ever if the
first messages arrive together with the answer to its request, as on a busy machine; and its import
takes a third of a second of a core, while the pods start.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from tfcluster.agent import foreign_json
from tfcluster.agent.containers.exec_server import PORT
from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.exec_client import PodProcess
from tfcluster.backends.kubernetes.kube_client import KubeCluster
from tfcluster.rundir.forked_children import keep_from_children

if TYPE_CHECKING:
    from websocket import WebSocket

_ANSWER_S: Final = 30.0
"""Seconds for each step until the API server has answered: it has to reach the node's kubelet."""
_CLOSE_S: Final = 10.0
"""Seconds in which what was written before the end of a connection is sent."""
_PROTOCOL: Final = "v4.channel.k8s.io"
_SWITCHED: Final = 101
_DATA: Final = 0
_BINARY: Final = 2
"""The opcode of binary data (RFC 6455, 11.8)."""
_CHUNK: Final = 1 << 18
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_IN: Final = select.POLLIN | select.POLLHUP | select.POLLERR
_OUT: Final = select.POLLOUT | select.POLLHUP | select.POLLERR


def start(
    cluster: KubeCluster,
    pod: str,
    token: bytes,
    argv: Sequence[str],
    *,
    timeout_s: float | None,
    is_alone: bool = False,
) -> PodProcess:
    """Start a process at the exec server of a pod; see `PodProcess`. Raises ConnectionError."""
    port = open_port(cluster, pod, PORT)
    return PodProcess(port, token, argv, timeout_s=timeout_s, is_alone=is_alone)


def open_port(cluster: KubeCluster, pod: str, port: int) -> socket.socket:
    """Return a connection to a pod's port. Raises ConnectionError."""
    import websocket

    path = cluster.url(f"pods/{pod}/portforward")
    address = cluster.host.replace("http", "ws", 1) + f"{path}?ports={port}"
    opened = websocket.WebSocket(skip_utf8_validation=True)
    try:
        headers = cluster.access.headers()
        opened.connect(
            address,
            socket=_connect(cluster),
            header=headers,
            subprotocols=[_PROTOCOL],
            redirect_limit=0,  # the token is for this server
        )
        if opened.getstatus() != _SWITCHED:
            raise ConnectionError(f"the API server answers HTTP {opened.getstatus()}")
        return _carry(opened, pod)
    except Exception as error:  # also of what signs in: a program of the kubeconfig
        opened.shutdown()
        is_answer = isinstance(error, websocket.WebSocketBadStatusException)
        reason = _refusal(error) if is_answer else describe_error(error)
        raise ConnectionError(f"no port-forward to the pod {pod}: {reason}") from None


def _connect(cluster: KubeCluster) -> socket.socket:
    """Return a connection to the API server as the client's pool makes it: its TLS, its proxy.

    The pool keeps none of it: the connection leaves HTTP.
    """
    pool = cluster.access.pool.connection_from_url(cluster.host)
    connection: Any = pool._new_conn()  # the type that urllib3 declares has no socket
    connection.timeout = _ANSWER_S
    if pool.proxy is not None:
        pool._prepare_proxy(connection)
    else:
        connection.connect()
    connection.sock.settimeout(_ANSWER_S)
    near: socket.socket = connection.sock
    return near


def _carry(opened: WebSocket, pod: str) -> socket.socket:
    near, far = map(keep_from_children, socket.socketpair())
    keep_from_children(opened.sock)
    carrier = _Carrier(opened, far)
    threading.Thread(target=carrier.run, name=f"port-forward to {pod}", daemon=True).start()
    return near


def _refusal(error: Any) -> str:
    """Return why the API server refuses, from its `Status` object if it has sent one."""
    if error.status_code == 403:
        return "this user may not `get` pods/portforward; `tfcluster help kubernetes#rights`"
    said = ""
    with contextlib.suppress(ValueError, KeyError):
        said = str(foreign_json.parse_json_object(error.resp_body or b"")["message"])
    return said or f"the API server answers HTTP {error.status_code}"


class _Carrier:
    """Copies between the websocket and our end of the connection, in a thread.

    Nothing is read from one side while the other side takes nothing. What was written before our
    end was closed is still sent.
    """

    def __init__(self, opened: WebSocket, far: socket.socket) -> None:
        from websocket import ABNF

        self._frames = ABNF
        self._opened, self._far = opened, far
        self._socket: socket.socket = opened.sock
        self._to_pod, self._to_us = bytearray(), bytearray()
        self._announced: set[int] = set()
        """The channels that have sent the port's number."""
        self._channel = _DATA
        """The channel of the message that is being received."""
        self._has_end = False
        """True once the end of our side was read and is on its way."""
        self._closes_at: float | None = None
        """The deadline for what is left, once our end is closed."""

    def run(self) -> None:
        """Copy until one side ends; then end the other one."""
        from websocket import WebSocketException

        self._socket.setblocking(False)
        self._far.setblocking(False)
        with self._socket, self._far, contextlib.suppress(OSError, WebSocketException):
            while self._closes_at is None or time.monotonic() < self._closes_at:
                self._turn()

    def _turn(self) -> None:
        # TLS may have read a frame already, which `poll` does not know of.
        has_more = not self._to_us and self._receive()
        ours = 0 if self._to_pod or self._has_end else select.POLLIN
        ours |= select.POLLOUT if self._to_us else 0
        theirs = 0 if self._to_us else select.POLLIN
        theirs |= select.POLLOUT if self._to_pod else 0
        poll = select.poll()
        if theirs:
            poll.register(self._socket, theirs)
        if ours or self._closes_at is None:
            poll.register(self._far, ours)
        ready = dict(poll.poll(0 if has_more else self._wait_ms()))
        if theirs & select.POLLOUT and ready.get(self._socket.fileno(), 0) & _OUT:
            with contextlib.suppress(*_WOULD_BLOCK):
                del self._to_pod[: self._socket.send(self._to_pod)]
        if (state := ready.get(self._far.fileno(), 0)) & select.POLLHUP:
            self._note_close()
        if ours & select.POLLIN and state & _IN:
            self._read_ours()
        if ours & select.POLLOUT and state & _OUT:
            self._write_ours()

    def _wait_ms(self) -> float | None:
        if self._closes_at is None:
            return None
        return max(0.0, self._closes_at - time.monotonic()) * 1000

    def _note_close(self) -> None:
        if self._closes_at is None:
            self._closes_at = time.monotonic() + _CLOSE_S

    def _read_ours(self) -> None:
        try:
            data = self._far.recv(_CHUNK)
        except ConnectionResetError:  # it was closed with data in it that nobody has read
            data = b""
        if data:
            self._send(bytes([_DATA]) + data)
        else:
            self._note_close()
            self._has_end = True
            self._send(b"", self._frames.OPCODE_CLOSE)  # the server closes when it has read that

    def _write_ours(self) -> None:
        try:
            del self._to_us[: self._far.send(self._to_us)]
        except BlockingIOError:
            pass
        except OSError:  # closed
            self._note_close()
            self._to_us.clear()

    def _receive(self) -> bool:
        """Read a frame; return whether there was one. Raises ConnectionError at the end."""
        try:
            frame = self._opened.recv_frame()
        except _WOULD_BLOCK:
            return False
        if frame.opcode == frame.OPCODE_BINARY and frame.data:
            self._channel = frame.data[0]
            if self._channel in self._announced:
                self._take(frame.data[1:])
            self._announced.add(self._channel)
        elif frame.opcode == frame.OPCODE_CONT:
            self._take(frame.data)
        elif frame.opcode == frame.OPCODE_PING:
            self._send(frame.data, frame.OPCODE_PONG)
        elif frame.opcode == frame.OPCODE_CLOSE:
            raise ConnectionError("the API server ends the connection")
        return True

    def _take(self, data: bytes) -> None:
        if self._channel != _DATA:
            raise ConnectionError("the kubelet has lost the pod's port")
        if self._closes_at is None:
            self._to_us += data

    def _send(self, data: bytes, opcode: int = _BINARY) -> None:
        self._to_pod += self._frames.create_frame(data, opcode).format()
