"""A process at the seat of a pod (`agent.containers`), as a file to read from and to write to.

It is reached through the API server, in this process: a transport of its own (`pod_dial`) would
sign in there again.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final, Self

from tfcluster.agent.containers.pod_seat import PORT
from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.cluster import pod_dial, port_forward
from tfcluster.backends.kubernetes.cluster.kube_client import Cluster
from tfcluster.backends.kubernetes.cluster.pod_dial import EXIT, HEADER, STDIN, STDOUT

_MOST_ERRORS: Final = 1 << 16


class SeatProcess(io.RawIOBase):
    """``with SeatProcess(cluster, pod, token, argv) as process``: its stdin and stdout.

    The end of the block ends the connection, and with it the process.
    """

    def __init__(
        self,
        cluster: Cluster,
        pod: str,
        token: Path | bytes,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Start the process. Raises ConnectionError, also later if it is silent for `timeout_s`."""
        self._timeout_s = timeout_s
        self._connection = port_forward.open_port(cluster, pod, PORT)
        self.code: int | None = None
        """The exit code; None while it runs, and if the connection broke."""
        self.errors = bytearray()
        """The beginning of its stderr."""
        self.on_errors: Callable[[bytes], None] = self.errors.extend
        """Called with what it writes to stderr."""
        self._pending = memoryview(b"")
        self._file: IO[bytes] = self._connection.makefile("rb")
        try:
            secret = token.read_bytes().strip() if isinstance(token, Path) else token
            order = {"argv": [*argv]} if argv else {"done": True}
            pod_dial.sign_in(self._connection, secret, order)
            self._connection.settimeout(timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def close(self) -> None:
        if not self.closed:
            self._file.close()
            self._connection.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read stdout; 0 at the end of the process, or of the connection."""
        while not self._pending and self.code is None and self._take_frame():
            pass
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size

    def _take_frame(self) -> bool:
        try:
            header = self._file.read(HEADER.size)
            if len(header) < HEADER.size:
                return False
            kind, size = HEADER.unpack(header)
            payload = self._file.read(size)
        except TimeoutError:
            why = f"the pod did not answer within {self._timeout_s:.0f} s"
            raise ConnectionError(why) from None
        if kind == EXIT:
            self.code = int(payload)
        elif kind == STDOUT:
            self._pending = memoryview(payload)
        else:
            self.on_errors(payload[: _MOST_ERRORS - len(self.errors)])
        return bool(len(payload) == size)

    def send(self, data: bytes) -> None:
        """Write to its stdin; raises OSError."""
        self._connection.sendall(HEADER.pack(STDIN, len(data)) + data)

    @property
    def last_words(self) -> str:
        """The last line of its stderr."""
        return self.errors.decode(errors="replace").strip().rpartition("\n")[2]

    def finish(self) -> str:
        """Wait for its end, without its stdout; return "", or why it has failed."""
        try:
            while self.read(1 << 16):
                pass
        except OSError as error:
            return describe_error(error)
        return "" if self.code == 0 else self.last_words or f"it ended with exit code {self.code}"


def run(
    cluster: Cluster, pod: str, token: Path | bytes, argv: Sequence[str], *, timeout_s: float
) -> str:
    """Run a command in a pod to its end; without words, release the seat's program.

    Return "", or why it has failed.
    """
    try:
        with SeatProcess(cluster, pod, token, argv, timeout_s=timeout_s) as process:
            return process.finish()
    except OSError as error:
        return describe_error(error)
