"""The transport to a pod: runs a command at its seat (`agent.containers`), with our streams.

``python -I -S pod_dial.py --address 10.0.0.7:7077 --token FILE ARGV...`` connects directly, from
within the cluster. It imports nothing but the standard library.

The exit code is that of the command, 128 + N for a signal; 255 without a connection, with the
reason on stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

STDIN, STDOUT, STDERR, EXIT = b"0123"
HEADER = struct.Struct("!BI")
"""The kinds and the head of frames, as in `pod_connection`; this file runs without its package."""
NO_CONNECTION = 255
_NONCE_BYTES = 32
_CHUNK = 1 << 18
_CONNECT_S = 5.0
_SIGN_IN_S = 10.0


class DialError(ConnectionError):
    """No connection to the seat; the text says why."""


def main() -> NoReturn:
    """Run the command; exit with its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="HOST:PORT")
    parser.add_argument("--token", required=True, help="the file with the run's token")
    parser.add_argument("--done", action="store_true", help="release the seat's program")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        token = Path(options.token).read_bytes().strip()
        connection = _connect(options.address)
        order = {"done": True} if options.done else {"argv": options.argv}
        sign_in(connection, token, order)
        code = join(connection)
    except OSError as error:
        _write_all(2, f"{str(error) or repr(error)}\n".encode())
        code = NO_CONNECTION
    os._exit(code)  # a thread may wait for stdin


def address_argv(address: str, token: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the pod at this address (``HOST:PORT``)."""
    start = [sys.executable, "-I", "-S", __file__]
    return [*start, "--address", address, "--token", str(token), *argv]


def sign_in(connection: socket.socket, token: bytes, order: Mapping[str, Any]) -> None:
    """Prove to have the token, have the seat prove it, and send the order. Raises DialError."""
    connection.settimeout(_SIGN_IN_S)
    try:
        nonce = _read_exactly(connection, _NONCE_BYTES)
        own = os.urandom(_NONCE_BYTES)
        connection.sendall(hmac.new(token, nonce + b"client", "sha256").digest() + own)
        answer = _read_exactly(connection, _NONCE_BYTES)
    except TimeoutError:
        raise DialError(f"the pod did not answer within {_SIGN_IN_S:.0f} s") from None
    except OSError as error:
        raise DialError(f"the pod closed the connection: {error!r}") from None
    if not hmac.compare_digest(answer, hmac.new(token, own + b"server", "sha256").digest()):
        raise DialError("another program than the run's answers there: it lacks the run's token")
    connection.sendall(json.dumps(order).encode() + b"\n")
    connection.settimeout(None)


def join(connection: socket.socket) -> int:
    """Join stdin, stdout and stderr to the command; return its exit code. Raises DialError."""
    threading.Thread(target=_send_stdin, args=[connection], daemon=True).start()
    with connection.makefile("rb", buffering=_CHUNK) as file:
        while len(header := file.read(HEADER.size)) == HEADER.size:
            kind, size = HEADER.unpack(header)
            payload = file.read(size)
            if len(payload) < size:
                break
            if kind == EXIT:
                code = int(payload)
                return code if code >= 0 else 128 - code
            _write_all(1 if kind == STDOUT else 2, payload)
    raise DialError("the connection to the pod broke")


def _send_stdin(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while True:
            data = os.read(0, _CHUNK)
            connection.sendall(HEADER.pack(STDIN, len(data)) + data)
            if not data:
                return


def _connect(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)
    except OSError as error:
        raise DialError(f"cannot connect to the pod at {address}: {error!r}") from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise DialError("it ended")
        data += piece
    return data


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main()
