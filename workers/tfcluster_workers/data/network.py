"""Keeps downloads from hanging: checks the hosts first, then sets a time-out for every answer.

Without both, TFDS needs 204 s to notice that a name cannot be resolved (ten retries), and waits
forever for a server that does not answer (`requests` has no time-out of its own).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

PROBE_S = 10.0
"""Seconds to check all hosts; name resolution has the resolver's own limits in addition."""
CONNECT_S, ANSWER_S = 5.0, 30.0
"""Time-outs of a download for connecting and for each answer."""
RETRIES = 2
MAX_HOSTS = 4

Address = tuple[str, int]
Connect = Callable[[Address, float], None]


class UnreachableError(OSError):
    """A download none of whose hosts answers."""


def connect(address: Address, timeout_s: float) -> None:
    """Open a connection to the first answering address of a host, and close it."""
    socket.create_connection(address, timeout=timeout_s).close()


def require(urls: Collection[str], *, connect: Connect = connect) -> None:
    """Raise UnreachableError if no host of `urls`, or its proxy, answers in time."""
    addresses = sorted({connect_address(url) for url in urls if urlsplit(url).hostname})[:MAX_HOSTS]
    deadline = time.monotonic() + PROBE_S
    failure = ""
    for address in addresses:
        remaining_s = max(1.0, deadline - time.monotonic())
        try:
            connect(address, min(CONNECT_S, remaining_s))
        except OSError as error:
            failure = failure or f"{address[0]} cannot be reached ({error.strerror or error})"
        else:
            return
    if failure:
        raise UnreachableError(failure)


def connect_address(url: str) -> Address:
    """Return the address that a download of `url` connects to: its host or a proxy."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


@contextmanager
def request_timeouts() -> Iterator[None]:
    """Give `requests` time-outs and TFDS's downloader fewer retries during the block."""
    from requests.adapters import HTTPAdapter
    from tensorflow_datasets.core.download import downloader

    send: Any = HTTPAdapter.send
    retries = downloader.MAX_RETRIES

    def send_with_timeout(self: Any, *args: Any, timeout: Any = None, **kwargs: Any) -> Any:
        return send(self, *args, timeout=timeout or (CONNECT_S, ANSWER_S), **kwargs)

    setattr(HTTPAdapter, "send", send_with_timeout)  # noqa: B010 (mypy forbids the assignment)
    downloader.MAX_RETRIES = RETRIES
    try:
        yield
    finally:
        setattr(HTTPAdapter, "send", send)  # noqa: B010
        downloader.MAX_RETRIES = retries
