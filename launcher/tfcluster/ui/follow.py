"""The live view of a run: output, events and a status line, read from the run folder.

The view runs at its own pace and never blocks a run: `up` runs it in a daemon thread beside the
coordinator's loop, `attach` and ``logs -f`` in their own process. Only the view's thread writes to
the terminal, messages of `up` included, so a stopped terminal (Ctrl-S) stops the view and nothing
else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import coordinator_of
from tfcluster.rundir.snapshot import RunSnapshot, TaskSnapshot
from tfcluster.rundir.states import Status
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.folder_watch import FolderWatch
from tfcluster.ui.formats import cut_to_columns, format_duration, format_rate, plural
from tfcluster.ui.history import attempt_of_all, gathering
from tfcluster.ui.lines import harmless_text
from tfcluster.ui.merged_logs import Dress, LogFilter, MergedLogs, log_folders, prepare_label
from tfcluster.ui.tail import LogSource
from tfcluster.ui.terminal import Stream, Terminal

_TASKS_NAMED = 3


def format_status_line(
    snapshot: RunSnapshot, partials: Mapping[str, str], *, now: float, width: int
) -> str:
    """``running 12 s · step 1200 · worker:0 41.2, worker:1 41.0 steps/s · loss 0.31``.

    `partials` are lines still being written (progress bars); the first is shown at the end, with
    what room is left of `width`.
    """
    parts = [
        f"{snapshot.status} {format_duration((snapshot.ended_at or now) - snapshot.started_at)}"
    ]
    if snapshot.status is Status.STOPPING and (snapshot.stop_by or 0) > now:
        left = format_duration((snapshot.stop_by or 0) - now)
        parts.append(f"{left} left, Ctrl-C again kills at once")
    if (attempt := attempt_of_all(snapshot)) > 1:
        parts.append(f"attempt {attempt}")
    if snapshot.gathering:
        parts.append(f"gathering {gathering(snapshot.gathering)}")
    if snapshot.waits_for:
        parts.append(f"waits for {snapshot.waits_for}")
    parts += [f"{task.task} stopped" for task in snapshot.tasks if task.frozen_by is not None]
    if snapshot.status is Status.RESTARTING:
        return cut_to_columns(harmless_text(" · ".join(parts)), width)
    steps = [task.step for task in snapshot.tasks if task.step is not None]
    if steps:
        parts += [f"step {max(steps):,}", *_rates(snapshot.tasks), *_metrics(snapshot.tasks)]
    elif snapshot.status in (Status.STARTING, Status.RUNNING):
        parts += _counts(snapshot.tasks)
    for label, text in list(partials.items())[:1]:
        parts.append(f"{label} │ {text}")
    return cut_to_columns(harmless_text(" · ".join(parts)), width)


def _rates(tasks: list[TaskSnapshot]) -> list[str]:
    known = [(t.task, t.steps_per_second) for t in tasks if t.steps_per_second is not None]
    rates = [rate for _, rate in known]
    if not rates:
        return []
    if len(known) > _TASKS_NAMED:
        low, high = format_rate(min(rates)), format_rate(max(rates))
        return [f"{len(known)} tasks {low}–{high} steps/s"]
    return [", ".join(f"{task} {format_rate(rate)}" for task, rate in known) + " steps/s"]


def _metrics(tasks: list[TaskSnapshot]) -> list[str]:
    metrics = next((task.metrics for task in tasks if task.metrics), {})
    return [f"{name} {value:.4g}" for name, value in list(metrics.items())[:2]]


def _counts(tasks: list[TaskSnapshot]) -> list[str]:
    states: dict[str, int] = {}
    for task in tasks:
        states[task.state] = states.get(task.state, 0) + 1
    return [f"{plural(count, 'task')} {state}" for state, count in states.items()]


SKIP_ABOVE = 64 * 1024 * 1024
"""Bytes a terminal may be behind before it goes on with the newest; a pipe gets everything."""
CLOSED_NOTE = "training goes on, `tfcluster logs -f` shows the lines"
ALWAYS_TOLD = frozenset({"restarting"})
"""Without it nobody would understand the lines that follow."""
_BRING_LOGS = frozenset({"task_started", "prepare_started"})
_STATUS_INTERVAL_S = 0.25
_ROUNDS_BEFORE_TALK = 64


class RunView:
    """Shows one run until `finish`: merged lines, talk about what happens, a status line.

    With `json_lines` stdout is the lines of ``events.jsonl`` and the tasks' lines go to stderr.
    """

    def __init__(
        self,
        paths: RunPaths,
        terminal: Terminal,
        *,
        json_lines: bool = False,
        wanted: LogFilter | None = None,
        collapse: bool = False,
        talks: bool = True,
        events_offset: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._paths, self._terminal, self._clock = paths, terminal, clock
        self._json_lines, self._talks = json_lines, talks
        self._lines_to = terminal.stderr if json_lines else terminal.stdout
        self.logs = MergedLogs(paths, wanted, dress_for(terminal, self._lines_to, collapse))
        self._events = LogSource(paths.events, offset=events_offset)
        self._state = StateFile(paths)
        self._queued: deque[str] = deque()
        self._is_over = threading.Event()
        self._bell = FolderWatch()
        self._thread: threading.Thread | None = None
        self._status, self._status_drawn_at = "", 0.0
        self._fix = ""

    def start(self) -> None:
        """Show from now on, in a daemon thread beside the coordinator's loop."""
        self._terminal.closed_note = CLOSED_NOTE
        self._thread = threading.Thread(target=self.run, name="view", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Talk of the caller's, written by the view in its turn; never blocks."""
        self._queued.append(text)
        self._bell.ring()

    def finish(self, timeout_s: float | None = None) -> bool:
        """The run is over: show all that is left, then end. False: the terminal stands still."""
        self._is_over.set()
        self._bell.ring()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def run(self, is_over: Callable[[], bool] | None = None) -> None:
        """Show until `finish` was called, or `is_over` says so, or nobody reads any more."""
        self._look_for_logs()
        while not self._is_over.is_set() and not (is_over and is_over()):
            moved, has_more = self._show_round()
            self._draw_status()
            if is_over and self._lines_to.error:
                break
            if not has_more and self._bell.wait(moved=moved):
                self._look_for_logs()
        self._show_rest()
        self._bell.close()

    def _look_for_logs(self) -> None:
        """Watched before they are looked for: what comes in between is told."""
        folders = (folder for _, folder in log_folders(self._paths.logs))
        self._bell.watch(self._paths.root, self._paths.logs, *folders)
        self.logs.discover()

    def _show_round(self) -> tuple[bool, bool]:
        """Events first read, then lines, then talk about the events; whether anything came, and
        whether there is more already."""
        self._skip_if_far_behind()
        events = self._read_events()
        rounds = 0
        while rounds < _ROUNDS_BEFORE_TALK and self._write_lines(self.logs.advance()):
            rounds += 1
        self._tell(events)
        said = self._say_queued()
        return bool(events or rounds or said), rounds == _ROUNDS_BEFORE_TALK

    def _show_rest(self) -> None:
        before = -1
        while self._events.offset != before:
            before = self._events.offset
            events = self._read_events()
            self._write_lines(self.logs.advance())
            self._tell(events)
        self._skip_if_far_behind()
        self._write_lines(self.logs.drain())
        self._say_queued()
        self._terminal.clear_status()
        self.logs.close()
        self._events.close()

    def _write_lines(self, blocks: Iterator[bytes]) -> bool:
        moved = False
        for block in blocks:
            moved = True
            if self._lines_to is self._terminal.stdout:
                self._terminal.out_lines(block)
            else:
                self._terminal.say_lines(block)
        return moved

    def _read_events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while block := b"".join(self._events.read()):
            if self._json_lines:
                self._terminal.out(block.decode("utf-8", "surrogateescape"))
            events += [event for line in block.splitlines() if (event := _parse(line))]
        if any(event.get("type") in _BRING_LOGS for event in events):
            self._look_for_logs()  # once for all: a thousand start together
        for event in events:
            self._notice_end(event)
        return events

    def _notice_end(self, event: dict[str, Any]) -> None:
        """A log that is complete: its last line is whole as it is."""
        match event:
            case {"type": "task_exited", "task": str(task), "attempt": int(attempt)}:
                self.logs.end_task(task, attempt)
            case {"type": "prepare_finished", "node": str(node)}:
                self.logs.end_task(prepare_label(node), 0)

    def _tell(self, events: list[dict[str, Any]]) -> None:
        if self._json_lines:
            return
        for event in events:
            is_told = self._talks or event.get("type") in ALWAYS_TOLD
            if is_told and (told := format_event(event)):
                self._terminal.tell(told.text, *told.styles)
            self._tell_cure(event)

    def _tell_cure(self, event: dict[str, Any]) -> None:
        """Below a restart; at the end of a failed run its own panel says it."""
        match event:
            case {"type": "diagnosis", "root_cause": {"hint": str(hint)}}:
                self._fix = hint
            case {"type": "diagnosis"}:
                self._fix = ""
            case {"type": "restarting"} if self._fix:
                self._terminal.tell(f"  → {self._fix}", "dim")

    def _say_queued(self) -> bool:
        said = False
        while self._queued:
            self._terminal.say(self._queued.popleft())
            said = True
        return said

    def _draw_status(self) -> None:
        if not self._talks or not self._terminal.has_status_line:
            return
        now = self._clock()
        if now - self._status_drawn_at >= _STATUS_INTERVAL_S and (snapshot := self._state.read()):
            self._status_drawn_at = now
            self._status = format_status_line(
                snapshot, self.logs.partials(), now=now, width=self._terminal.width - 1
            )
        if self._status:
            self._terminal.show_status(self._status)

    def _skip_if_far_behind(self) -> None:
        if not self._lines_to.is_tty or self.logs.behind() <= SKIP_ABOVE:
            return
        lines = self.logs.skip_to_newest()
        self._terminal.say(f"… {lines:,} lines not shown, the view was far behind: they are in")
        self._terminal.say(f"  {self._paths.logs}")


class StateFile:
    """``state.json``, parsed again only when it was replaced."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._stamp: tuple[int, int] | None = None
        self._snapshot: RunSnapshot | None = None

    def read(self) -> RunSnapshot | None:
        """The newest readable state; None as long as there is none."""
        try:
            stat = self._paths.state.stat()
            if (stat.st_mtime_ns, stat.st_ino) != self._stamp:
                self._snapshot = RunSnapshot.from_json(
                    foreign_json.read_json_object(self._paths.state)
                )
                self._stamp = (stat.st_mtime_ns, stat.st_ino)
        except (OSError, ValueError):
            pass
        return self._snapshot

    def is_over(self) -> bool:
        """Whether the run has ended, its coordinator has gone without a word, or its folder."""
        snapshot = self.read()
        if snapshot is None or snapshot.status.is_final or not self._paths.state.exists():
            return True
        return coordinator_of(snapshot).is_alive() is False


def dress_for(terminal: Terminal, stream: Stream, collapse: bool = False) -> Dress:
    """How tasks' lines look on this stream."""
    return Dress(is_screen=stream.is_tty, colours=terminal.has_colour(stream), collapse=collapse)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return foreign_json.parse_json_object(line)
    except ValueError:
        return None
