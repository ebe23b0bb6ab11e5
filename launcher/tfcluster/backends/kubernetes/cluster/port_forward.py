"""A connection to a pod's port through the API server, as `kubectl port-forward` makes it.

It is a websocket whose messages begin with a channel: 0 has the port's data, 1 the reason of an
end. The first message of each is the port's number (kubernetes/pkg/kubelet/cri/streaming/
portforward/websocket.go). The official client's own (`kubernetes.stream`) waits for ever if the
first messages arrive together with the answer to its request, as on a busy machine; and its import
takes a third of a second of a core, while the pods start.
"""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from tfcluster.agent import foreign_json
from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.cluster.kube_client import Cluster
from tfcluster.rundir.forked_children import keep_from_children

if TYPE_CHECKING:
    import urllib3
    from websocket import WebSocket

_ANSWER_S: Final = 30.0
"""Seconds for the API server to reach the node's kubelet, and that the pod."""
_PROTOCOL: Final = "v4.channel.k8s.io"
_DATA: Final = 0
_CHUNK: Final = 1 << 18
_WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_TLS: Final = {
    "ssl_context": "context",
    "ca_certs": "ca_certs",
    "cert_file": "certfile",
    "key_file": "keyfile",
    "server_hostname": "server_hostname",
    "assert_hostname": "check_hostname",
}
"""The settings of TLS: the names of urllib3 → those of websocket-client."""


def open_port(cluster: Cluster, pod: str, port: int) -> socket.socket:
    """Return a connection to a pod's port. Raises ConnectionError."""
    import websocket

    path = cluster.url(f"pods/{quote(pod)}/portforward")
    address = cluster.host.replace("http", "ws", 1) + f"{path}?ports={port}"
    pool = cluster.access.pool
    opened = websocket.WebSocket(sslopt=_tls_options(pool), skip_utf8_validation=True)
    try:
        opened.connect(
            address,
            header=cluster.access.headers(),
            subprotocols=[_PROTOCOL],
            timeout=_ANSWER_S,
            **_proxy_options(pool),
        )
    except websocket.WebSocketBadStatusException as error:
        raise ConnectionError(f"no port-forward to the pod {pod}: {_refusal(error)}") from None
    except (websocket.WebSocketException, OSError, ValueError) as error:
        why = describe_error(error)
        raise ConnectionError(f"no port-forward to the pod {pod}: {why}") from None
    near, far = map(keep_from_children, socket.socketpair())
    keep_from_children(opened.sock)
    carrier = _Carrier(opened, far)
    threading.Thread(target=carrier.run, name=f"port-forward to {pod}", daemon=True).start()
    return near


def _tls_options(pool: urllib3.PoolManager) -> dict[str, Any]:
    from urllib3.util.ssl_ import resolve_cert_reqs

    settings = pool.connection_pool_kw
    found = {its: settings[ours] for ours, its in _TLS.items() if settings.get(ours) is not None}
    return found | {"cert_reqs": resolve_cert_reqs(settings.get("cert_reqs"))}


def _proxy_options(pool: urllib3.PoolManager) -> dict[str, Any]:
    """Return the HTTP proxy of a pool that has one, and the user's name and password there."""
    if (proxy := pool.proxy) is None:
        return {}
    found: dict[str, Any] = {"http_proxy_host": proxy.host, "http_proxy_port": proxy.port}
    headers = getattr(pool, "proxy_headers", {})
    kind, _, secret = str(headers.get("proxy-authorization", "")).partition(" ")
    if kind == "Basic":
        found["http_proxy_auth"] = tuple(base64.b64decode(secret).decode().split(":", 1))
    return found


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

    Nothing is read from one side while the other side takes nothing.
    """

    def __init__(self, opened: WebSocket, far: socket.socket) -> None:
        self._opened, self._far = opened, far
        self._socket: socket.socket = opened.sock
        self._to_pod, self._to_us = bytearray(), bytearray()
        self._met: set[int] = set()
        """The channels that have sent the port's number."""
        self._is_closed = False
        """True once our end is closed; what was written to it is still sent."""

    def run(self) -> None:
        """Copy until one side ends; then end the other one."""
        from websocket import WebSocketException

        self._socket.setblocking(False)
        self._far.setblocking(False)
        with self._socket, self._far, contextlib.suppress(OSError, WebSocketException):
            while self._to_pod or not self._is_closed:
                self._turn()

    def _turn(self) -> None:
        # TLS may have read a frame already, which `select` does not know of.
        has_more = not self._to_us and self._receive()
        reads = [] if self._to_us else [self._socket]
        reads += [] if self._to_pod or self._is_closed else [self._far]
        writes = [self._socket] if self._to_pod else []
        writes += [self._far] if self._to_us else []
        readable, writable, _ = select.select(reads, writes, [], 0 if has_more else None)
        if self._far in readable:
            self._take()
        if self._socket in writable:
            with contextlib.suppress(*_WOULD_BLOCK):
                del self._to_pod[: self._socket.send(self._to_pod)]
        if self._far in writable:
            with contextlib.suppress(*_WOULD_BLOCK):
                del self._to_us[: self._far.send(self._to_us)]

    def _receive(self) -> bool:
        """Read a frame; return whether there was one. Raises ConnectionError at the end."""
        try:
            frame = self._opened.recv_frame()
        except _WOULD_BLOCK:
            return False
        if frame.opcode == frame.OPCODE_BINARY and frame.data:
            channel = frame.data[0]
            if channel in self._met and channel == _DATA:
                self._to_us += frame.data[1:]
            elif channel in self._met:
                raise ConnectionError("the kubelet has lost the pod's port")
            self._met.add(channel)
        elif frame.opcode == frame.OPCODE_PING:
            self._to_pod += frame.create_frame(frame.data, frame.OPCODE_PONG).format()
        elif frame.opcode != frame.OPCODE_PONG:
            raise ConnectionError("the API server ends the connection")
        return True

    def _take(self) -> None:
        """Read what goes to the pod."""
        from websocket import ABNF

        if data := self._far.recv(_CHUNK):
            self._to_pod += ABNF.create_frame(bytes([_DATA]) + data, ABNF.OPCODE_BINARY).format()
        else:
            self._is_closed = True
