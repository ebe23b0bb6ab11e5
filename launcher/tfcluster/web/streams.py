"""Live changes of runs as server-sent events: one thread a run reads for all its viewers.

A thread sleeps until the kernel reports a change in a run's folder, reads what is new once, and
hands the same bytes to every viewer. A viewer that does not keep up is sent a `reload` and its
stream ends: the server keeps at most `_MOST_WAITING` bytes for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from starlette.concurrency import run_in_threadpool

from tfcluster.agent import foreign_json
from tfcluster.backends.job_watch import WatchedState
from tfcluster.rundir import registry, series
from tfcluster.rundir.figures import state_json
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import DamagedRunError
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.task_logs import LogSource, RunLogs, end_of_lines
from tfcluster.ui.folder_watch import FolderWatch
from tfcluster.web.run_data import RunIndex, current_status, describe_moment, to_json_bytes

PING_S: Final = 15.0
_MOST_WAITING: Final = 2 << 20
_ROUND_S: Final = 0.1
"""The shortest time between two rounds of reading, so that a busy run costs little."""
_POINTS: Final = frozenset({"progress", "usage", "step_times"})
"""The types of the events that are points of curves."""


def frame(event: str, data: Any) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (event.encode(), to_json_bytes(data))


class FeedSource(Protocol):
    """A reader of changes for a feed; only one thread at a time calls it."""

    is_over: bool
    """True once nothing will follow."""

    def watch(self, folders: FolderWatch) -> None:
        """Name the folders in which changes are to be noticed."""

    def read(self) -> list[bytes]:
        """Return what is new since the last call."""

    def catch_up(self) -> list[bytes]:
        """Return what a new viewer needs before what `read` will return."""


class RunSource:
    """The changes of one run: its state, its events, the size of its logs."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths, self.is_over = paths, False
        self._file = WatchedState(paths)
        self._snapshot: RunSnapshot | None = None
        self._state: dict[str, Any] = {}
        self._events = LogSource(paths.events, offset=end_of_lines(paths.events))
        self._log_bytes = 0
        self._logs = RunLogs(paths.logs)

    def watch(self, folders: FolderWatch) -> None:
        folders.watch(self._paths.root)
        self._logs = RunLogs(self._paths.logs, watch=folders.watch)

    def read(self) -> list[bytes]:
        before, self._state = self._state, self._read_state()
        frames = [frame("state", changes)] if (changes := _changes(before, self._state)) else []
        # Read after the state: a final one follows the last event.
        frames += _describe_events(self._events.lines())
        if self._logs_have_grown():
            frames.append(frame("logs", {"bytes": self._log_bytes}))
        if self._is_final():
            self.is_over = True
            frames.append(frame("end", {}))
        return frames

    def catch_up(self) -> list[bytes]:
        frames = [frame("state", self._state), frame("logs", {"bytes": self._log_bytes})]
        return [*frames, frame("end", {})] if self.is_over else frames

    def _read_state(self) -> dict[str, Any]:
        """Return the state as JSON; empty if the run was deleted."""
        snapshot = self._file.read()
        if snapshot is None or not self._paths.root.exists():
            return {}
        if current_status(snapshot) is not snapshot.status:
            with contextlib.suppress(DamagedRunError):
                snapshot = registry.load(self._paths)
        elif snapshot is self._snapshot:
            return self._state
        self._snapshot = snapshot
        return state_json(snapshot) | {"folder": str(self._paths.root)}

    def _is_final(self) -> bool:
        return self._snapshot is None or not self._state or self._snapshot.status.is_final

    def _logs_have_grown(self) -> bool:
        self._logs.discover()
        before, self._log_bytes = self._log_bytes, sum(log.size() for log in self._logs.files())
        return self._log_bytes != before


def _describe_events(lines: Iterable[bytes]) -> list[bytes]:
    """Return events as points of curves and as moments."""
    points, moments = list[Any](), list[Any]()
    for line in lines:
        with contextlib.suppress(ValueError):
            record = foreign_json.parse_json_object(line)
            if (kind := record.get("type")) in _POINTS:
                points.append(record)
            elif kind in series.TIMELINE:
                moments.append(describe_moment(series.cut(record)))
    groups = [("progress", points), ("timeline", moments)]
    return [frame(event, records) for event, records in groups if records]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that have changed; of the tasks, those that have."""
    changes = {name: value for name, value in now.items() if before.get(name) != value}
    if "tasks" in changes and "tasks" in before:
        known = {task["task"]: task for task in before["tasks"]}
        changes["tasks"] = [task for task in now["tasks"] if known.get(task["task"]) != task]
    return changes


class ListSource:
    """The changes of the list of all runs."""

    def __init__(self, index: RunIndex) -> None:
        self._index, self.is_over = index, False
        self._rows: dict[str, dict[str, Any]] = {}
        self._folders: FolderWatch | None = None

    def watch(self, folders: FolderWatch) -> None:
        self._folders = folders

    def read(self) -> list[bytes]:
        if self._folders is not None:
            self._folders.watch(self._index.folder)
        rows = {row["run"]: row for row in self._index.rows()}
        for run_id, row in rows.items():
            if self._folders is not None and run_id not in self._rows and row["ended_at"] is None:
                self._folders.watch(self._index.folder / run_id)
        changed = [row for run_id, row in rows.items() if self._rows.get(run_id) != row]
        gone = list(self._rows.keys() - rows.keys())
        self._rows = rows
        return [frame("runs", {"runs": changed, "gone": gone})] if changed or gone else []

    def catch_up(self) -> list[bytes]:
        return [frame("runs", {"runs": list(self._rows.values()), "gone": []})]


@dataclass(slots=True, eq=False)
class _Viewer:
    """The bytes that one browser has not been sent yet; used by the event loop's thread only."""

    waiting: deque[bytes] = field(default_factory=deque)
    size: int = 0
    has_ended: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, frames: list[bytes]) -> None:
        self.waiting += frames
        self.size += sum(map(len, frames))
        if self.size > _MOST_WAITING:
            self.waiting.clear()
            self.waiting.append(frame("reload", {}))
            self.has_ended = True
        self.news.set()

    def end(self) -> None:
        self.has_ended = True
        self.news.set()

    async def frames(self) -> AsyncIterator[bytes]:
        """Yield what there is, and a ping whenever there was nothing for a while."""
        while True:
            self.news.clear()
            if self.waiting:
                block = b"".join(self.waiting)
                self.waiting.clear()
                self.size = 0
                yield block
            elif self.has_ended:
                return
            else:
                try:
                    async with asyncio.timeout(PING_S):
                        await self.news.wait()
                except TimeoutError:
                    yield b": ping\n\n"


class _Feed:
    """The thread that reads one source, and its viewers."""

    def __init__(self, source: FeedSource, loop: asyncio.AbstractEventLoop) -> None:
        self._source, self._loop = source, loop
        self.viewers: set[_Viewer] = set()
        self.users = 0
        """The number of viewers, also of those that are about to join."""
        self.has_ended = False
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._folders = FolderWatch()
        source.watch(self._folders)
        threading.Thread(target=self._run, name="feed", daemon=True).start()

    def join(self, viewer: _Viewer) -> list[bytes]:
        """Add a viewer; return what it needs before what follows. Called in any thread."""
        with self._lock:
            self._publish()  # the viewer may know newer events than the last round found
            frames = self._source.catch_up()
            self._call(self._add, viewer)
        return frames

    def _add(self, viewer: _Viewer) -> None:
        self.viewers.add(viewer)
        if self.has_ended:  # while it joined
            viewer.end()

    def stop(self) -> None:
        self._is_stopped.set()
        self._folders.wake()

    def _run(self) -> None:
        try:
            while not self._is_stopped.is_set() and not self._source.is_over:
                with self._lock:
                    found_new = self._publish()
                self._is_stopped.wait(_ROUND_S)
                self._folders.wait(found_new=found_new)
        finally:
            self._folders.close()
            if not self._source.is_over:
                self._call(self.end)  # an internal error: browsers connect again

    def end(self) -> None:
        """End the streams of all viewers; called by the event loop's thread."""
        self.has_ended = True
        for viewer in self.viewers:
            viewer.end()

    def _publish(self) -> bool:
        frames = [] if self._source.is_over else self._source.read()
        if frames:
            self._call(self._send, frames)
        return bool(frames)

    def _send(self, frames: list[bytes]) -> None:
        for viewer in self.viewers:
            viewer.put(frames)

    def _call(self, function: Any, *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended with the server
            self._loop.call_soon_threadsafe(function, *args)


class Feeds:
    """The open streams of the server; a source is read only while somebody watches it."""

    def __init__(self, index: RunIndex) -> None:
        self._index = index
        self._feeds: dict[str, _Feed] = {}
        self._is_closed = False

    async def follow(self, paths: RunPaths | None) -> AsyncIterator[bytes]:
        """Yield the changes of a run, or of the list of all runs if `paths` is None."""
        if self._is_closed:
            return
        key, viewer = "" if paths is None else paths.run_id, _Viewer()
        feed = self._feeds.get(key)
        if feed is None or feed.has_ended:
            source = ListSource(self._index) if paths is None else RunSource(paths)
            feed = self._feeds[key] = _Feed(source, asyncio.get_running_loop())
        feed.users += 1
        try:
            yield b"".join(await run_in_threadpool(feed.join, viewer))
            async for frames in viewer.frames():
                yield frames
        finally:
            feed.viewers.discard(viewer)
            feed.users -= 1
            if not feed.users and self._feeds.get(key) is feed:
                del self._feeds[key]
                feed.stop()

    def close(self) -> None:
        """End all streams, so that the server can end."""
        self._is_closed = True
        for feed in self._feeds.values():
            feed.stop()
            feed.end()
