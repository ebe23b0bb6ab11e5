"""The routes of `tfcluster ui`: pages, JSON about runs, streams of changes, and the stop button."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from tfcluster.agent import foreign_json
from tfcluster.errors import TfclusterError, UnknownRunError, UsageError
from tfcluster.run_handle import Run
from tfcluster.rundir import prometheus, registry, series
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import describe_failure
from tfcluster.rundir.states import Status
from tfcluster.web import log_pages, rendering
from tfcluster.web.comparison import MOST_RUNS, compare
from tfcluster.web.run_data import RunIndex, describe_history, describe_run, to_json_bytes
from tfcluster.web.security import MAX_BODY_BYTES, METRICS
from tfcluster.web.streams import Feeds

_MOST_POINTS: Final = 5000
_STAYS_S: Final = 600.0
"""The time for which the metrics have a run that has ended, so that several scrapes see how."""


class WebPages:
    """The pages and the API over the runs of one home."""

    def __init__(self, home: Path, *, csrf: str, read_only: bool) -> None:
        self._index = RunIndex(home)
        self.streams = Feeds(self._index)
        self._csrf, self._read_only = csrf, read_only

    def app(self) -> Starlette:
        """Return the application; `security.Guard` decides who may use it."""
        run = "/runs/{run_id}"
        pages = [
            Route("/", self._list_page),
            Route(run, self._run_page),
            Route("/compare", self._compare_page),
        ]
        api = [
            Route("/api/runs", self._list),
            Route("/api/compare", self._compare),
            Route("/api/stream", self._list_stream),
            Route(f"/api{run}", self._run),
            Route(f"/api{run}/history", self._history),
            Route(f"/api{run}/logs", self._logs),
            Route(f"/api{run}/stream", self._run_stream),
            Route(f"/api{run}/stop", self._stop, methods=["POST"]),
        ]
        metrics = Route(METRICS, self._metrics)
        static = Mount("/static", StaticFiles(directory=rendering.STATIC, check_dir=False))
        handlers: dict[Any, Callable[..., Response | Awaitable[Response]]] = {
            TfclusterError: self._failed,
            HTTPException: self._failed,
        }
        return Starlette(routes=[*pages, *api, metrics, static], exception_handlers=handlers)

    def _list_page(self, request: Request) -> Response:
        return self._page("runs")

    def _run_page(self, request: Request) -> Response:
        return self._page("run", run_id=self._find(request).run_id)

    def _compare_page(self, request: Request) -> Response:
        self._chosen(request)
        return self._page("compare")

    def _page(self, name: str, status: int = 200, **context: Any) -> Response:
        shared = {"csrf": self._csrf, "read_only": self._read_only}
        return HTMLResponse(rendering.render(name, **shared, **context), status)

    def _list(self, request: Request) -> Response:
        return _json({"runs": self._index.rows()})

    def _compare(self, request: Request) -> Response:
        return _json(compare(self._chosen(request), now=time.time()).to_page())

    def _run(self, request: Request) -> Response:
        return _json(describe_run(self._find(request)))

    def _history(self, request: Request) -> Response:
        most = _number(request, "most", least=8, most=_MOST_POINTS) or series.POINTS
        return _json(describe_history(self._find(request), most=most))

    def _logs(self, request: Request) -> Response:
        paths, chosen = self._find(request), request.query_params
        query = log_pages.Query(
            task=chosen.get("task") or None,
            attempt=_number(request, "attempt"),
            cursor=chosen.get("offset") or "end",
            backward=chosen.get("direction") != "forward",
            lines=_number(request, "lines", least=1) or log_pages.LINES,
            grep=chosen.get("grep", ""),
            shows_native=chosen.get("native") != "0",
        )
        return _json(log_pages.read_page(paths, registry.load(paths), query))

    def _metrics(self, request: Request) -> Response:
        runs = self._index.snapshots(ended_after=time.time() - _STAYS_S)
        return Response(prometheus.format_metrics(runs), media_type=prometheus.CONTENT_TYPE)

    async def _list_stream(self, request: Request) -> Response:
        return _stream(self.streams, None)

    async def _run_stream(self, request: Request) -> Response:
        paths = await run_in_threadpool(self._find, request)
        return _stream(self.streams, paths)

    async def _stop(self, request: Request) -> Response:
        now = (await _body(request)).get("now") is True
        paths = await run_in_threadpool(self._find, request)
        why = "the page of tfcluster ui" + (": now" if now else "")
        run = Run(paths)
        if await run_in_threadpool(run.ask_to_stop, why=why, now=now):
            return _json({"stopping": True}, 202)
        return _json({"stopping": False, "why": await run_in_threadpool(_why_not_stopped, run)})

    def _find(self, request: Request) -> RunPaths:
        return self._index.find(request.path_params["run_id"])

    def _chosen(self, request: Request) -> list[RunPaths]:
        """Return the runs that are to be compared. Raises UsageError."""
        names = [name for name in request.query_params.get("runs", "").split(",") if name]
        if len(names) > MOST_RUNS:
            raise UsageError(f"a page compares at most {MOST_RUNS} runs")
        return [self._index.find(name) for name in names]

    def _failed(self, request: Request, error: Exception) -> Response:
        """Return an error as JSON or as a page."""
        status, message, fix = 409, str(error), ""
        if isinstance(error, HTTPException):
            status, message = error.status_code, error.detail
        elif isinstance(error, TfclusterError):
            message, fix = error.message, error.fix
            if isinstance(error, UsageError):
                status = 404 if isinstance(error, UnknownRunError) else 400
        if request.scope["path"].startswith("/api/"):
            return _json({"error": message, "fix": fix}, status)
        return self._page("message", status, title=message, fix=fix)


def _why_not_stopped(run: Run) -> str:
    """Return why a run that `Run.ask_to_stop` did not stop has no coordinator."""
    state = run.state()
    if state.status is Status.LOST:
        return ". ".join(filter(None, describe_failure(state)))
    return f"the run has already ended: {state.status.words}"


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json_bytes(value), status, media_type="application/json")


def _stream(streams: Feeds, paths: RunPaths | None) -> Response:
    return StreamingResponse(streams.follow(paths), media_type="text/event-stream")


def _number(request: Request, name: str, *, least: int = 0, most: int = 1 << 48) -> int | None:
    """Return a parameter of the URL, or None without it. Raises UsageError."""
    text = request.query_params.get(name, "")
    if not text:
        return None
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise UsageError(f"{name} is not a number: {text[:80]!r}")
    return max(least, min(int(text), most))


async def _body(request: Request) -> dict[str, Any]:
    """Return the JSON object that a request sent; empty without one. Raises UsageError."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise HTTPException(413, "the request is too large")
    try:
        return foreign_json.parse_json_object(body) if body else {}
    except ValueError as error:
        raise UsageError(f"the request is not a JSON object: {error}") from error
