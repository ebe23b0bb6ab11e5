"""Decides who may use the server: this user's browser, on this machine, from our own pages.

A loopback port is open to every user of the machine and to every page that the browser shows.
The first needs the token of the printed URL; against the others there are the checks of the Host
header (DNS rebinding), of the page that sent a request, and of a token in each POST (CSRF).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import html
import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES: Final = 4096
"""The largest body of a request."""
_TOKEN_BYTES: Final = 32
_MOST_STRANGERS: Final = 32
_STRANGER_S: Final = 10.0
METRICS: Final = "/metrics"
"""The path that a scraper may read, which has no cookie."""
CSRF_HEADER: Final = "x-csrf-token"
_STYLE: Final = (
    ":root{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}"
    "body{max-width:36em;margin:12vh auto;padding:0 20px}h1{font-size:20px}code{font-size:14px}"
)
"""The style of the page that says why a request was refused: the style sheet needs the cookie."""
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_POLICY: Final = (
    "default-src 'none'; script-src 'self';"
    f" style-src 'self' 'sha256-{_STYLE_HASH}'; img-src 'self' data:;"
    " connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'self';"
    " frame-ancestors 'none'"
)
_HEADERS: Final = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_OLD_LINK: Final = (
    "The token of the link is missing or old",
    "open the link that `tfcluster ui` printed when it last started: each start has a new token. "
    "If it is not running, start it with `tfcluster ui --open`.",
)
"""The reason of a 401, and what to do."""
_REFUSED: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>{title} · tfcluster</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    '<link rel="icon" href="data:,"><style>{style}</style><main><h1>{title}</h1><p>{fix}</p></main>'
)
_TO_THE_PAGE: Final = (
    '<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=/">'
    '<link rel="icon" href="data:,"><title>tfcluster</title><a href="/">tfcluster</a>'
)


def new_key() -> str:
    """Return a random string of 256 bits."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


@dataclass(frozen=True, slots=True)
class Keys:
    """The random strings of one server, which end with it, and a token of the user's; they are
    never logged."""

    token: str = field(default_factory=new_key, repr=False)
    """The token of the printed URL."""
    session: str = field(default_factory=new_key, repr=False)
    """The value of the cookie that a browser gets for the token."""
    csrf: str = field(default_factory=new_key, repr=False)
    """The string that only our own pages can send."""
    metrics: str | None = field(default=None, repr=False)
    """The user's own token for `METRICS` alone; None: only the browser reads them."""


class Strangers:
    """The connections that have not shown a key yet: few at a time, and each for seconds only.

    Otherwise another user of the machine could hold all connections that this process may have.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}
        """Address of the client → its connection, oldest first."""

    def add(self, transport: asyncio.Transport) -> None:
        """Note a new connection, and end the oldest ones if there are too many."""
        client, loop = transport.get_extra_info("peername"), asyncio.get_running_loop()
        end = loop.call_later(_STRANGER_S, self._end, client)
        self._waiting[client] = transport, end
        while len(self._waiting) > _MOST_STRANGERS:
            self._end(next(iter(self._waiting)))

    def remove(self, client: object) -> None:
        """Forget a connection that has shown a key or has ended; do nothing for others."""
        if (waiting := self._waiting.pop(client, None)) is not None:
            waiting[1].cancel()

    def _end(self, client: object) -> None:
        transport, _ = self._waiting[client]
        self.remove(client)
        transport.abort()


class Guard:
    """The ASGI application that answers what is refused, and passes everything else to `app`."""

    def __init__(self, app: ASGIApp, keys: Keys, *, port: int, read_only: bool) -> None:
        self._app, self._keys, self._read_only = app, keys, read_only
        self.strangers = Strangers()
        self._cookie = f"tfcluster-{port}"  # browsers send a cookie to all ports of a host
        self._hosts = (f"127.0.0.1:{port}", f"localhost:{port}")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return  # uvicorn was started without web sockets and lifespan events

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(_HEADERS)
                is_static = scope["path"].startswith("/static/")
                headers["cache-control"] = "no-cache" if is_static else "no-store"
            await send(message)

        refusal = self._answer(Request(scope))
        if refusal is None:
            self.strangers.remove(scope.get("client"))
        await (refusal or self._app)(scope, receive, send_secured)

    def _answer(self, request: Request) -> Response | None:
        """Return the answer to a request that does not reach the application, else None."""
        if request.headers.getlist("host") not in [[host] for host in self._hosts]:
            names = " and ".join(self._hosts)
            return _refuse(request, 421, f"This server has only the names {names}")
        if request.method not in ("GET", "HEAD", "POST"):
            return _refuse(request, 405, "This server knows GET and POST only")
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            return _refuse(request, 413, "The request is too large")
        if "token" in request.query_params and request.scope["path"] == "/":
            return self._log_in(request)
        if request.scope["path"] == METRICS and self._is_scraper(request):
            return None
        if not _equal(request.cookies.get(self._cookie, ""), self._keys.session):
            return _refuse(request, 401, *_OLD_LINK)
        if not _is_from_own_page(request):
            return _refuse(request, 403, "The request came from another page")
        return self._check_post(request) if request.method == "POST" else None

    def _is_scraper(self, request: Request) -> bool:
        """Return whether a request to read `METRICS` has the token for it."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        is_known = self._keys.metrics is not None and _equal(token.strip(), self._keys.metrics)
        return is_known and scheme.lower() == "bearer" and request.method != "POST"

    def _log_in(self, request: Request) -> Response:
        """Return the cookie for the token, and the way to the page, whose URL has no token."""
        if not _equal(request.query_params["token"], self._keys.token):
            return _refuse(request, 401, *_OLD_LINK)
        # After a redirect a browser keeps a strict cookie back if the click was on another site's
        # page (a terminal in the browser, a chat); what our own page then loads gets it.
        is_foreign = request.headers.get("sec-fetch-site") in ("cross-site", "same-site")
        response = HTMLResponse(_TO_THE_PAGE) if is_foreign else RedirectResponse("/", 303)
        response.set_cookie(self._cookie, self._keys.session, httponly=True, samesite="strict")
        return response

    def _check_post(self, request: Request) -> Response | None:
        if request.headers.get("origin") != f"http://{request.headers['host']}":
            return _refuse(request, 403, "The request came from another page")
        if not _equal(request.headers.get(CSRF_HEADER, ""), self._keys.csrf):
            return _refuse(request, 403, "The page is of an earlier `tfcluster ui`: load it again")
        if self._read_only:
            return _refuse(request, 403, "This page was started with --read-only")
        return None


def _is_from_own_page(request: Request) -> bool:
    """Return whether the user, or a page of ours, sent the request.

    Other sites and other ports of this machine are "cross-site" and "same-site" to a browser. Only
    a page may be opened from there, as from a bookmark: what it answers is shown, never given out.
    """
    headers = request.headers
    if request.scope["path"].startswith(("/api/", "/static/")):
        own = (None, f"http://{headers['host']}")
        is_own_site = headers.get("sec-fetch-site") in (None, "same-origin", "none")
        return is_own_site and headers.get("origin") in own
    return headers.get("sec-fetch-dest") in (None, "document")


def _equal(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def _refuse(request: Request, status: int, why: str, fix: str = "") -> Response:
    """Return why a request is refused, and what to do: JSON of the API, a page for a browser."""
    if request.scope["path"].startswith("/api/"):
        return JSONResponse({"error": why, "fix": fix}, status)
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(": ".join(filter(None, (why, fix))) + "\n", status)
    title, text = html.escape(why), html.escape(fix[:1].upper() + fix[1:])
    text = re.sub(r"`(.+?)`", r"<code>\1</code>", text)
    return HTMLResponse(_REFUSED.format(title=title, style=_STYLE, fix=text), status)
