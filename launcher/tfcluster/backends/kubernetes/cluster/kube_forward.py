"""Connections to pods from outside the cluster: a socket of this process that leads to them.

A transport (`pod_dial`) connects to the socket, names a pod, and is joined to that pod's seat
through the API server (`port_forward`). Credentials stay in this process, which has imported what
TLS and sign-in need: in each transport that would take a tenth of a second.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from tfcluster.agent.error_text import describe_error
from tfcluster.backends.kubernetes.cluster.kube_client import Cluster, soon
from tfcluster.backends.kubernetes.cluster.port_forward import open_port

_CHUNK = 1 << 18


class Forwarder:
    """The socket at `path`, for pods of one cluster."""

    def __init__(self, cluster: Cluster, path: Path, port: int) -> None:
        self._cluster, self.path, self._port = cluster, path, port
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises OSError."""
        self._server = await asyncio.start_unix_server(self._serve, self.path, limit=_CHUNK)
        self.path.chmod(0o600)

    async def close(self) -> None:
        """Listen no more; connections end with their transports."""
        if self._server is not None:
            self._server.close()
            self.path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pod = (await reader.readline()).decode().strip()
            try:
                forwarded = await soon(open_port, self._cluster, pod, self._port)
            except ConnectionError as error:
                writer.write(
                    f"{describe_error(error)}\n".replace("\n", " ").strip().encode() + b"\n"
                )
                return
            writer.write(b"\n")
            far = await asyncio.open_connection(sock=forwarded, limit=_CHUNK)
            with contextlib.closing(far[1]):
                copies = {
                    asyncio.create_task(_copy(reader, far[1])),
                    asyncio.create_task(_copy(far[0], writer)),
                }
                _, others = await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
                for other in others:
                    other.cancel()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the transport sees the end of its connection
        finally:
            writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
