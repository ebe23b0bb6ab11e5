"""Port-forward through an API server: a real websocket over TLS, its other side played here."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
import urllib3
from tests.launcher.backends.kubernetes.conftest import write_one
from websocket import ABNF, frame_buffer

from tfcluster.backends.kubernetes import port_forward
from tfcluster.backends.kubernetes.kube_client import Access, KubeCluster, KubeError, reach
from tfcluster.backends.kubernetes.port_forward import open_port

PORT = 7077
NUMBERS = [bytes([channel]) + PORT.to_bytes(2, "little") for channel in (0, 1)]
"""The first messages, one of each channel."""
HANG_S = 60.0
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

authority = trustme.CA()


def message(data: bytes, opcode: int = ABNF.OPCODE_BINARY) -> bytes:
    return bytes(ABNF(1, 0, 0, 0, opcode, 0, data).format())


def upgrade(request: bytes) -> bytes:
    """Return the answer that makes the connection a websocket (RFC 6455, 4.2.2)."""
    key = re.findall(rb"(?i)sec-websocket-key: (\S+)", request)[0]
    accept = base64.b64encode(hashlib.sha1(key + MAGIC).digest())
    head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    head += b"Sec-WebSocket-Protocol: v4.channel.k8s.io\r\n"
    return head + b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"


def read_head(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += connection.recv(1)
    return head


class Server:
    """An API server for one connection, which `serve` gets with its request."""

    def __init__(
        self,
        serve: Callable[[socket.socket, bytes], None],
        *,
        name: str = "127.0.0.1",
        asks_for_certificates: bool = False,
    ) -> None:
        self._serve, self.request, self.error = serve, b"", ""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(HANG_S)
        self.port: int = self._listener.getsockname()[1]
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self._context)
        if asks_for_certificates:
            authority.configure_trust(self._context)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            accepted, _ = self._listener.accept()
            accepted.settimeout(HANG_S)
            with self._context.wrap_socket(accepted, server_side=True) as connection:
                self.request = read_head(connection)
                self._serve(connection, self.request)
        except (OSError, ssl.SSLError) as error:
            self.error = repr(error)

    def close(self) -> None:
        self.thread.join(HANG_S)
        self._listener.close()


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in os.environ if each.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.fixture
def made() -> Iterator[list[Server]]:
    servers: list[Server] = []
    yield servers
    for server in servers:
        server.close()


@pytest.fixture
def roots(tmp_path: Path) -> str:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return str(tmp_path / "ca.pem")


def cluster_of(server: Server, pool: urllib3.PoolManager) -> KubeCluster:
    access = Access(
        host=f"https://127.0.0.1:{server.port}",
        pool=pool,
        headers=lambda: {"authorization": "Bearer secret"},
        namespace="team",
    )
    return KubeCluster(access, namespace="team", patience_s=1.0)


def connect(server: Server, roots: str) -> socket.socket:
    opened = open_port(cluster_of(server, urllib3.PoolManager(ca_certs=roots)), "pod", PORT)
    opened.settimeout(HANG_S)
    return opened


def answer(*messages: bytes) -> Callable[[socket.socket, bytes], None]:
    """Answer everything in one piece, then wait for the client's end of the connection."""

    def serve(connection: socket.socket, request: bytes) -> None:
        connection.sendall(upgrade(request) + b"".join(map(message, messages)))
        connection.recv(4096)

    return serve


def test_data_that_comes_with_the_answer_is_not_waited_for(made: list[Server], roots: str) -> None:
    """The official client's port-forward waits until something else comes."""
    made.append(server := Server(answer(*NUMBERS, b"\0nonce")))
    with connect(server, roots) as opened:
        assert opened.recv(100) == b"nonce"
    path = b"/api/v1/namespaces/team/pods/pod/portforward?ports=7077"
    assert server.request.startswith(b"GET " + path)
    assert b"authorization: Bearer secret" in server.request


def echo(connection: socket.socket, request: bytes) -> None:
    connection.sendall(upgrade(request) + b"".join(map(message, NUMBERS)))
    connection.sendall(message(b"are you there", ABNF.OPCODE_PING))
    frames, pongs = frame_buffer(connection.recv, skip_utf8_validation=True), []
    while (frame := frames.recv_frame()).opcode != ABNF.OPCODE_CLOSE:
        if frame.opcode == ABNF.OPCODE_PONG:
            pongs.append(frame.data)
        elif frame.data == b"\0end":
            assert pongs == [b"are you there"]
            connection.sendall(message(b"\0end"))
            return
        else:
            connection.sendall(message(frame.data))


def test_large_streams_pass_both_ways_at_once(made: list[Server], roots: str) -> None:
    made.append(server := Server(echo))
    data = os.urandom(20_000_000)
    with connect(server, roots) as opened:

        def send() -> None:
            opened.sendall(data)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        received = bytearray()
        while len(received) < len(data):
            received += opened.recv(1 << 20)
        sender.join(HANG_S)
        assert received == data
        opened.sendall(b"end")
        assert opened.recv(100) == b"end"
        assert opened.recv(100) == b""
    assert server.error == ""


def test_a_port_that_the_kubelet_cannot_reach_ends_the_connection(
    made: list[Server], roots: str
) -> None:
    made.append(server := Server(answer(*NUMBERS, b"\1connection refused")))
    with connect(server, roots) as opened:
        assert opened.recv(100) == b""


@pytest.mark.parametrize("unread", [0, 10, 1_000_000])
def test_what_was_written_before_the_end_arrives(
    made: list[Server], roots: str, unread: int
) -> None:
    """Also where the pod has sent what nobody reads, and goes on sending."""
    came: list[bytes] = []

    def serve(connection: socket.socket, request: bytes) -> None:
        first = [*NUMBERS, *([b"\0" + bytes(unread)] if unread else [])]
        connection.sendall(upgrade(request) + b"".join(map(message, first)))
        frames = frame_buffer(connection.recv, skip_utf8_validation=True)
        while (frame := frames.recv_frame()).opcode != ABNF.OPCODE_CLOSE:
            came.append(frame.data)
            connection.sendall(message(b"\0more"))

    made.append(server := Server(serve))
    with connect(server, roots) as opened:
        opened.sendall(b"first")
        if unread:
            assert opened.recv(1) == b"\0"
        opened.sendall(b"last words" * 100_000)
    server.thread.join(HANG_S)
    assert server.error == ""
    assert b"".join(data[1:] for data in came) == b"first" + b"last words" * 100_000


def test_a_pod_that_reads_nothing_is_left_after_a_while(
    made: list[Server], roots: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "_CLOSE_S", 0.2)
    is_over = threading.Event()

    def serve(connection: socket.socket, request: bytes) -> None:
        connection.sendall(upgrade(request) + b"".join(map(message, NUMBERS)))
        is_over.wait(HANG_S)

    made.append(server := Server(serve))
    before = threading.enumerate()  # with those of earlier tests that are just ending
    opened = connect(server, roots)
    new = [each for each in threading.enumerate() if each not in before]
    (carrier,) = [each for each in new if each.name == "port-forward to pod"]
    opened.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        opened.sendall(bytes(50_000_000))
    opened.close()
    carrier.join(HANG_S)
    assert not carrier.is_alive()
    is_over.set()


def test_a_message_in_fragments_and_an_empty_one_are_read(made: list[Server], roots: str) -> None:
    def serve(connection: socket.socket, request: bytes) -> None:
        connection.sendall(upgrade(request) + b"".join(map(message, [*NUMBERS, b"", b"\0a"])))
        for part, opcode, fin in (
            *((b"\0b", ABNF.OPCODE_BINARY, 0), (b"c", ABNF.OPCODE_CONT, 0)),
            (b"d", ABNF.OPCODE_CONT, 1),
        ):
            connection.sendall(ABNF(fin, 0, 0, 0, opcode, 0, part).format())

    made.append(server := Server(serve))
    with connect(server, roots) as opened, opened.makefile("rb") as file:
        assert file.read() == b"abcd"


def test_many_open_files_are_no_obstacle(made: list[Server], roots: str) -> None:
    """`select` knows descriptors up to 1023 only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.dup(0))
        made.append(server := Server(answer(*NUMBERS, b"\0data")))
        with connect(server, roots) as opened:
            assert opened.fileno() > 1023
            assert opened.recv(100) == b"data"


def refuse(status: int, body: bytes) -> Callable[[socket.socket, bytes], None]:
    def serve(connection: socket.socket, request: bytes) -> None:
        head = f"HTTP/1.1 {status} No\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)

    return serve


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (403, b"{}", "this user may not `get` pods/portforward"),
        (404, json.dumps({"message": 'pods "pod" not found'}).encode(), 'pods "pod" not found'),
        (503, b"<html>", "the API server answers HTTP 503"),
        (500, b"", "the API server answers HTTP 500"),
        (200, b"", "the API server answers HTTP 200"),
    ],
)
def test_a_refusal_is_an_error_in_words(
    made: list[Server], roots: str, status: int, body: bytes, words: str
) -> None:
    made.append(server := Server(refuse(status, body)))
    with pytest.raises(ConnectionError, match=re.escape(words)):
        connect(server, roots)


def test_a_server_that_does_not_answer_is_given_up(
    made: list[Server], roots: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_forward, "_ANSWER_S", 0.5)
    is_over = threading.Event()
    made.append(server := Server(lambda connection, request: void(is_over.wait(HANG_S))))
    with pytest.raises(ConnectionError, match=r"(?i)timed out"):
        connect(server, roots)
    is_over.set()


def void(value: object) -> None:
    pass


def test_a_server_with_an_unknown_certificate_is_not_trusted(made: list[Server]) -> None:
    made.append(server := Server(answer(*NUMBERS)))
    with pytest.raises(ConnectionError, match=r"(?i)certificate"):
        open_port(cluster_of(server, urllib3.PoolManager()), "pod", PORT)
    assert server.request == b""
    made.append(again := Server(answer(*NUMBERS, b"\0data")))
    pool = urllib3.PoolManager(cert_reqs=ssl.CERT_NONE, assert_hostname=False)
    with open_port(cluster_of(again, pool), "pod", PORT) as opened:
        assert opened.recv(100) == b"data"


def test_the_name_of_the_server_is_checked_unless_another_is_given(
    made: list[Server], roots: str
) -> None:
    made.append(server := Server(answer(*NUMBERS), name="api.example"))
    with pytest.raises(ConnectionError, match=r"(?i)certificate"):
        connect(server, roots)
    assert server.request == b""
    made.append(named := Server(answer(*NUMBERS, b"\0data"), name="api.example"))
    pool = urllib3.PoolManager(ca_certs=roots, server_hostname="api.example")
    with open_port(cluster_of(named, pool), "pod", PORT) as opened:
        assert opened.recv(100) == b"data"


@pytest.mark.parametrize("kept", ["data", "files"])
def test_a_kubeconfigs_certificates_sign_in(
    made: list[Server], kubeconfig: Path, kept: str
) -> None:
    made.append(server := Server(answer(*NUMBERS, b"\0data"), asks_for_certificates=True))
    own = authority.issue_cert("me@example")
    texts = {
        "certificate-authority": authority.cert_pem.bytes(),
        "client-certificate": own.cert_chain_pems[0].bytes(),
        "client-key": own.private_key_pem.bytes(),
    }
    if kept == "data":
        values = {f"{key}-data": base64.b64encode(text).decode() for key, text in texts.items()}
    else:
        values = {key: f"{key}.pem" for key in texts}
        for key, text in texts.items():
            kubeconfig.with_name(f"{key}.pem").write_bytes(text)
    user = {key: value for key, value in values.items() if key.startswith("client")}
    trust = {key: value for key, value in values.items() if key not in user}
    write_one(kubeconfig, user, server=f"https://127.0.0.1:{server.port}", **trust)
    place = reach(SimpleNamespace(context=None, namespace=None))
    with open_port(place, "pod", PORT) as opened:
        assert opened.recv(100) == b"data"


def test_the_token_is_sent_to_no_other_server(made: list[Server], roots: str) -> None:
    made.append(other := Server(answer(*NUMBERS)))

    def redirect(connection: socket.socket, request: bytes) -> None:
        head = f"HTTP/1.1 307 There\r\nLocation: wss://127.0.0.1:{other.port}/\r\n\r\n"
        connection.sendall(head.encode())

    made.append(server := Server(redirect))
    with pytest.raises(ConnectionError, match="no port-forward"):
        connect(server, roots)
    socket.create_connection(("127.0.0.1", other.port)).close()
    other.thread.join(HANG_S)
    assert other.request == b""


def test_a_failing_sign_in_is_an_error_in_words(made: list[Server], roots: str) -> None:
    made.append(server := Server(answer(*NUMBERS)))
    place = cluster_of(server, urllib3.PoolManager(ca_certs=roots))

    def fail() -> dict[str, str]:
        raise KubeError("the token is gone")

    place.access = replace(place.access, headers=fail)
    with pytest.raises(ConnectionError, match="the token is gone"):
        open_port(place, "pod", PORT)
    socket.create_connection(("127.0.0.1", server.port)).close()


def test_only_the_proxy_of_the_pool_is_used(
    made: list[Server], roots: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    made.append(server := Server(answer(*NUMBERS, b"\0data")))
    with connect(server, roots) as opened:
        assert opened.recv(100) == b"data"


def test_a_proxy_of_the_kubeconfig_is_used_with_its_password(
    made: list[Server], roots: str
) -> None:
    made.append(server := Server(answer(*NUMBERS, b"\0data")))
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        asked: list[bytes] = []

        def pass_on() -> None:
            accepted, _ = proxy.accept()
            with accepted, socket.create_connection(("127.0.0.1", server.port)) as far:
                asked.append(read_head(accepted))
                accepted.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=copy, args=[far, accepted], daemon=True)
                back.start()
                copy(accepted, far)
                back.join(HANG_S)

        through = threading.Thread(target=pass_on, daemon=True)
        through.start()
        pool = urllib3.ProxyManager(
            f"http://127.0.0.1:{proxy.getsockname()[1]}",
            proxy_headers=urllib3.make_headers(proxy_basic_auth="me:pass:word"),
            ca_certs=roots,
        )
        with open_port(cluster_of(server, pool), "pod", PORT) as opened:
            assert opened.recv(100) == b"data"
        through.join(HANG_S)
    assert asked[0].startswith(f"CONNECT 127.0.0.1:{server.port} ".encode())
    assert base64.b64encode(b"me:pass:word") in asked[0]


def copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(4096):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
