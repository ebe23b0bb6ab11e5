"""Runs the server of `tfcluster ui` on a port of the loopback interface until Ctrl-C."""

from __future__ import annotations

import asyncio
import errno
import html
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from tfcluster.agent.error_text import reason_of
from tfcluster.agent.net.private_folders import make_private
from tfcluster.agent.processes import IS_LINUX
from tfcluster.errors import SetupError
from tfcluster.rundir.paths import runtime_dir
from tfcluster.web.app import WebPages
from tfcluster.web.security import Guard, Keys, Strangers, new_key

FIRST_PORT: Final = 6020
_PORTS_TRIED: Final = 20
_ACCEPTED_AT_ONCE: Final = 64
_LEAST_TOKEN: Final = 16
_DISPLAYS: Final = {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
_LARGEST_REQUEST_LINE: Final = 256 * 1024
"""The bytes of a request's line and headers: the cursor in the logs of a thousand tasks is long."""


def serve(
    home: Path,
    *,
    port: int | None,
    read_only: bool,
    metrics_token: str | None = None,
    on_ready: Callable[[str], None],
    browse: bool = False,
    say: Callable[[str], None] = lambda sentence: None,
) -> None:
    """Serve the page of the runs in `home` until Ctrl-C, which raises KeyboardInterrupt.

    `port`: None for the first free one from `FIRST_PORT`. `metrics_token`: the file with the token
    of a scraper, see `read_token`. `on_ready` gets the URL with its token
    as soon as a browser can open it; with `browse` one is started, and `say` gets why not. Raises
    SetupError if it cannot listen.
    """
    keys = Keys(
        metrics=None if metrics_token is None else read_token(Path(metrics_token).expanduser())
    )
    with _listen(port) as listener:
        chosen = int(listener.getsockname()[1])
        site = WebPages(home, csrf=keys.csrf, read_only=read_only)
        guard = Guard(site.app(), keys, port=chosen, read_only=read_only)
        server = _Server(_configure(guard))
        url = f"http://127.0.0.1:{chosen}/?token={keys.token}"
        page = _RedirectFile(url, say) if browse else None

        def begin() -> None:
            on_ready(url)
            if page is not None:
                page.show()

        def end() -> None:
            site.streams.close()  # the server waits for all requests to end
            if page is not None:
                page.remove()

        server.begin, server.end = begin, end
        server.run([listener])


def read_token(path: Path) -> str:
    """Return the token in a file; a file that is not there is made, with a new one.

    Raises SetupError.
    """
    try:
        if not path.exists():
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(f"{new_key()}\n")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = reason_of(error) if isinstance(error, OSError) else "it is not ASCII"
        raise SetupError(f"cannot read a token from {path}: {why}") from error
    if len(token) < _LEAST_TOKEN:
        raise SetupError(
            f"the token in {path} has fewer than {_LEAST_TOKEN} characters",
            fix="remove the file, and it is made with a new one",
        )
    return token


def _configure(app: Guard) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=_Connection,
        backlog=_ACCEPTED_AT_ONCE,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # anybody can send an invalid request, and a warning is a line here
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=_LARGEST_REQUEST_LINE,
    )


class _Connection(H11Protocol):
    """A connection that is a stranger until the guard has seen a key."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._strangers.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._strangers.remove(self.client)
        super().connection_lost(exc)

    @property
    def _strangers(self) -> Strangers:
        guard = self.config.app
        assert isinstance(guard, Guard)
        return guard.strangers


class _Server(uvicorn.Server):
    """A server that reports when it listens and when it is about to end."""

    begin: Callable[[], None]
    end: Callable[[], None]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.begin()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.end()
        await super().shutdown(sockets)


def _listen(port: int | None) -> socket.socket:
    """Return a socket that listens on 127.0.0.1. Raises SetupError."""
    candidates = [*range(FIRST_PORT, FIRST_PORT + _PORTS_TRIED), 0] if port is None else [port]
    for candidate in candidates:
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", candidate))
            listener.listen(_ACCEPTED_AT_ONCE)
            return listener
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or candidate == candidates[-1]:
                raise SetupError(
                    f"cannot listen on 127.0.0.1:{candidate}: {reason_of(error)}",
                    fix="leave out --port to use any free one",
                ) from error
    raise AssertionError


class _RedirectFile:
    """A file for a browser, whose command line shows every user what it opens: not the token.

    Only this user can read the file, and it leads to the page.
    """

    def __init__(self, url: str, say: Callable[[str], None]) -> None:
        self._url, self._say = url, say
        self._path = runtime_dir() / f"ui-{os.getpid()}.html"

    def show(self) -> None:
        """Open the user's browser, in a thread: some start slowly."""
        if IS_LINUX and not _DISPLAYS & os.environ.keys():
            self._fail()  # webbrowser would start a text browser in this terminal
            return
        make_private(str(self._path.parent))
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with open(os.open(self._path, flags, 0o600), "w") as file:
            file.write(
                '<!doctype html><title>tfcluster</title><link rel="icon" href="data:,">'
                '<meta name="referrer" content="no-referrer">'
                f'<meta http-equiv="refresh" content="0;url={html.escape(self._url)}">'
            )
        threading.Thread(target=self._open, name="browser", daemon=True).start()

    def _open(self) -> None:
        import webbrowser

        try:
            if webbrowser.open(self._path.as_uri()):
                # That of a snap or flatpak may read no file of ours.
                self._say("if the browser shows an error, open the URL above")
                return
        except (webbrowser.Error, OSError):
            pass
        self._fail()

    def _fail(self) -> None:
        self._say("no browser can be started here: open the URL above")

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)
