"""A process of a pod's exec server (`agent.containers.exec_server`), as a file to read and write.

``python -I -S exec_client.py --address 10.0.0.7:7077 --token FILE ARGV...`` joins one to its own
streams: that is the transport to an agent, from within the cluster. It imports nothing but the
standard library. Its exit code is that of the process, 128 + N for a signal; 255 without a
connection, with the reason on stderr. `port_forward.start` connects from outside of the cluster.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import io
import json
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

STDIN, STDOUT, STDERR, EXIT = b"0123"
HEADER = struct.Struct("!BI")
"""The kinds and the head of frames, as in `exec_server`; this file runs without its package."""
NO_CONNECTION = 255
_NONCE_BYTES = 32
_CHUNK = 1 << 18
_CONNECT_S = 5.0
_SIGN_IN_S = 10.0
_MOST_ERRORS = 1 << 16


class DialError(ConnectionError):
    """No connection to the exec server; the text says why."""


class PodProcess(io.RawIOBase):
    """``with PodProcess(connection, token, argv) as process``: its stdin and stdout.

    The end of the block ends the connection, and with it the process.
    """

    def __init__(
        self,
        connection: socket.socket,
        token: bytes,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        is_alone: bool = False,
    ) -> None:
        """Start the process; with `is_alone`, all others in the container are killed before.

        Raises ConnectionError, also later if it is silent for `timeout_s`.
        """
        self._connection, self._timeout_s = connection, timeout_s
        self.code: int | None = None
        """The exit code; None while it runs, and if the connection broke."""
        self.errors = bytearray()
        """The beginning of its stderr."""
        self.on_errors: Callable[[bytes], object] = self._keep
        """Called with what it writes to stderr."""
        self._pending = memoryview(b"")
        self._file = connection.makefile("rb", buffering=_CHUNK)
        try:
            _sign_in(connection, token)
            order = {"argv": [*argv], "is_alone": is_alone}
            connection.sendall(json.dumps(order).encode() + b"\n")
            connection.settimeout(timeout_s)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(OSError):  # a thread that reads would keep the file's lock
                self._connection.shutdown(socket.SHUT_RDWR)
            self._file.close()
            self._connection.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read stdout; 0 at the end of the process, or of the connection."""
        piece = self._pending or self.next_piece()
        size = min(len(buffer), len(piece))
        buffer[:size] = piece[:size]
        self._pending = piece[size:]
        return size

    def next_piece(self) -> memoryview:
        """Return what comes next of stdout, as it was sent; empty at the end."""
        self._pending = memoryview(b"")
        while not self._pending and self.code is None and self._take_frame():
            pass
        piece, self._pending = self._pending, memoryview(b"")
        return piece

    def _take_frame(self) -> bool:
        """Read a frame; return whether there was a whole one."""
        try:
            header = self._file.read(HEADER.size)
            if len(header) < HEADER.size:
                return False
            kind, size = HEADER.unpack(header)
            payload = self._file.read(size)
        except TimeoutError:
            why = f"the pod did not answer within {self._timeout_s:.0f} s"
            raise DialError(why) from None
        if len(payload) < size:
            return False
        if kind == EXIT:
            self.code = int(payload)
        elif kind == STDOUT:
            self._pending = memoryview(payload)
        else:
            self.on_errors(payload)
        return True

    def _keep(self, errors: bytes) -> None:
        self.errors += errors[: _MOST_ERRORS - len(self.errors)]

    def send(self, data: bytes) -> None:
        """Write to its stdin, which nothing ends; raises OSError."""
        self._connection.sendall(HEADER.pack(STDIN, len(data)) + data)

    @property
    def last_words(self) -> str:
        """The last line of its stderr."""
        return self.errors.decode(errors="replace").strip().rpartition("\n")[2]

    def finish(self) -> str:
        """Wait for its end, without its stdout; return "", or why it has failed."""
        try:
            while self.read(_CHUNK):
                pass
        except OSError as error:
            return str(error) or repr(error)
        return "" if self.code == 0 else self.last_words or f"it ended with exit code {self.code}"


def _sign_in(connection: socket.socket, token: bytes) -> None:
    """Prove to have the token, and have the exec server prove it. Raises DialError."""
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


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise DialError("it ended")
        data += piece
    return data


def connect(address: str) -> socket.socket:
    """Return a connection to an exec server at ``HOST:PORT``. Raises DialError."""
    host, _, port = address.rpartition(":")
    try:
        connection = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)
    except OSError as error:
        raise DialError(f"cannot connect to the pod at {address}: {error!r}") from None
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def address_argv(address: str, token: Path, argv: Sequence[str]) -> list[str]:
    """Return the command that runs `argv` in the pod at this address (``HOST:PORT``)."""
    start = [sys.executable, "-I", "-S", __file__]
    return [*start, "--address", address, "--token", str(token), *argv]


def main() -> NoReturn:
    """Run the command; exit with its exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True, help="HOST:PORT")
    parser.add_argument("--token", required=True, help="the file with the run's token")
    parser.add_argument("argv", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        token = Path(options.token).read_bytes().strip()
        code = _join(PodProcess(connect(options.address), token, options.argv))
    except OSError as error:
        _write_all(2, f"{str(error) or repr(error)}\n".encode())
        code = NO_CONNECTION
    os._exit(code)  # a thread may wait for stdin


def _join(process: PodProcess) -> int:
    """Join stdin, stdout and stderr to a process; return its exit code. Raises DialError."""

    def send_stdin() -> None:
        with contextlib.suppress(OSError):
            while data := os.read(0, _CHUNK):
                process.send(data)
            process.send(b"")

    process.on_errors = lambda errors: _write_all(2, errors)
    threading.Thread(target=send_stdin, daemon=True).start()
    while piece := process.next_piece():
        _write_all(1, piece)
    if process.code is None:
        raise DialError("the connection to the pod broke")
    return process.code if process.code >= 0 else 128 - process.code


def as_socket(process: PodProcess) -> socket.socket:
    """Return a socket that threads join to a process; it ends with the process."""
    near, far = socket.socketpair()

    def receive() -> None:
        with contextlib.suppress(OSError, ValueError):  # ValueError: it was closed here
            while piece := process.next_piece():
                far.sendall(piece)
        with contextlib.suppress(OSError):
            far.shutdown(socket.SHUT_RDWR)

    def send() -> None:
        receiving = threading.Thread(target=receive, daemon=True)
        receiving.start()
        with far:
            with contextlib.suppress(OSError):
                while data := far.recv(_CHUNK):
                    process.send(data)
                process.send(b"")
            receiving.join()

    threading.Thread(target=send, daemon=True).start()
    return near


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


if __name__ == "__main__":
    main()
