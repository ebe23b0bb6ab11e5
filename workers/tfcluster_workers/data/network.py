"""Keeps a fetch from hanging: a look at the hosts first, a time-out on every answer afterwards.

Without both, TFDS needs 204 s to notice that a name cannot be resolved (ten retries), and waits
for ever on a server that says nothing (`requests` has no time-out of its own).
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

LOOK_S = 10.0
"""For all hosts together; resolving names has the resolver's own limits besides."""
CONNECT_S, ANSWER_S = 5.0, 30.0
RETRIES = 2
MOST_HOSTS = 4

Address = tuple[str, int]
Connect = Callable[[Address, float], None]


class UnreachableError(OSError):
    """None of the hosts answers."""


def connect(address: Address, timeout_s: float) -> None:
    """Open a connection to the first answering address of a host, and close it."""
    socket.create_connection(address, timeout=timeout_s).close()


def require(urls: Collection[str], *, connect: Connect = connect) -> None:
    """Raise UnreachableError where no host of `urls`, or no proxy for it, answers in time."""
    addresses = sorted({gate(url) for url in urls if urlsplit(url).hostname})[:MOST_HOSTS]
    deadline = time.monotonic() + LOOK_S
    failure = ""
    for address in addresses:
        left = max(1.0, deadline - time.monotonic())
        try:
            connect(address, min(CONNECT_S, left))
        except OSError as error:
            failure = failure or f"{address[0]} cannot be reached ({error.strerror or error})"
        else:
            return
    if failure:
        raise UnreachableError(failure)


def gate(url: str) -> Address:
    """Where a fetch of `url` connects to: its host, or the proxy that stands before it."""
    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


@contextmanager
def impatient() -> Iterator[None]:
    """Give `requests` time-outs and TFDS's downloader fewer retries, for the block."""
    from requests.adapters import HTTPAdapter
    from tensorflow_datasets.core.download import downloader

    send: Any = HTTPAdapter.send
    retries = downloader.MAX_RETRIES

    def bounded(self: Any, *args: Any, timeout: Any = None, **rest: Any) -> Any:
        return send(self, *args, timeout=timeout or (CONNECT_S, ANSWER_S), **rest)

    setattr(HTTPAdapter, "send", bounded)  # noqa: B010 (mypy: a method is not to be assigned)
    downloader.MAX_RETRIES = RETRIES
    try:
        yield
    finally:
        setattr(HTTPAdapter, "send", send)  # noqa: B010
        downloader.MAX_RETRIES = retries
