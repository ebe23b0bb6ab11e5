"""The live view of a run: output, events and the frame below them, read from the run folder.

The view runs at its own pace and never blocks a run: `up` runs it in a daemon thread beside the
coordinator's loop, `attach` and ``logs -f`` in their own process. Only the view's thread writes to
the terminal, messages of `up` included, so a stopped terminal (Ctrl-S) stops the view and nothing
else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from socket import gethostname
from typing import Any

from rich.text import Text

from tfcluster.agent import foreign_json
from tfcluster.backends.job_watch import WatchedState
from tfcluster.rundir.figures import figures_of
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.rundir.task_logs import LogSource, prepare_label
from tfcluster.ui.event_lines import format_event
from tfcluster.ui.figure_text import Trend
from tfcluster.ui.folder_watch import BATCH_S, FolderWatch
from tfcluster.ui.job_control import JobControl, Keyboard
from tfcluster.ui.live_panel import LEAST_ROWS, Scene, draw_frame, format_status_line
from tfcluster.ui.merged_logs import LastLines, LineStyle, LogFilter, MergedLogs
from tfcluster.ui.terminal import Stream, Terminal

SKIP_ABOVE = 64 * 1024 * 1024
"""Bytes a terminal may be behind before the view skips to the newest; a pipe gets everything."""
CLOSED_NOTE = "training continues, `tfcluster logs -f` shows the output"
ALWAYS_SHOWN = frozenset({"restarting"})
"""Types of events shown by ``logs -f`` too: without them the output that follows is unclear."""
_FRAME_INTERVAL_S = 0.25
_ROUNDS_BEFORE_EVENTS = 64


@dataclass(frozen=True, slots=True)
class Leaving:
    """The ways out of a live view: the key d calls `leave`; the texts are about the others."""

    leave: Callable[[], None]
    ctrl_c: str
    """The effect of Ctrl-C, such as ``stop the run``."""
    closing: str
    """The effect of closing the terminal, such as ``ends the run``."""

    def lines(self, *, with_keys: bool) -> list[str]:
        """Return the last line of the frame or, `with_keys`, those that explain all keys."""
        closing = f"closing the terminal {self.closing}"
        if not with_keys:
            return [f"d detach · ? keys · {closing}"]
        return [
            "d       detach: the run continues in the background",
            f"Ctrl-C  {self.ctrl_c}",
            "Ctrl-Z  suspend this view, `fg` shows it again; the run continues",
            "?       hide the keys",
            f"{closing[0].upper()}{closing[1:]}.",
        ]


class RunView:
    """The view of one run until `finish`: the tasks' output, lines about events, the frame.

    With `json_lines`, stdout gets the lines of ``events.jsonl`` and stderr the tasks' output. With
    `shows_messages` False there is neither a frame nor a line about any event but those in
    `ALWAYS_SHOWN`. `leaving`: None where nothing but the end of the run ends the view.
    """

    def __init__(
        self,
        paths: RunPaths,
        terminal: Terminal,
        *,
        json_lines: bool = False,
        log_filter: LogFilter | None = None,
        collapse: bool = False,
        native: bool = False,
        times: bool = False,
        shows_messages: bool = True,
        events_offset: int = 0,
        leaving: Leaving | None = None,
    ) -> None:
        self._paths, self._terminal = paths, terminal
        self._json_lines, self._shows_messages = json_lines, shows_messages
        self._lines_stream = terminal.stderr if json_lines else terminal.stdout
        line_style = line_style_for(terminal, self._lines_stream, collapse, native, times)
        self._has_frame = shows_messages and terminal.has_footer
        self._folder_watch = FolderWatch(batch_s=_FRAME_INTERVAL_S if self._has_frame else BATCH_S)
        for folder in (paths.root, paths.logs):
            self._folder_watch.watch(folder)
        self.logs = MergedLogs(paths, log_filter, line_style, self._folder_watch.watch)
        self._events = LogSource(paths.events, offset=events_offset)
        self._state = WatchedState(paths)
        self._messages: deque[str] = deque()
        self._is_finishing = threading.Event()
        self._thread: threading.Thread | None = None
        self._trend, self._frame = Trend(), list[Text]()
        self._frame_size, self._frame_drawn_at = (0, 0), 0.0
        self._keyboard, self._leaving = Keyboard(), leaving
        self._job_control = JobControl(terminal, self._keyboard, self._folder_watch.wake)
        self._shows_keys, self._answer = False, ""
        self._has_ended = True
        self._last_lines = LastLines(paths)
        self._host = gethostname()
        self._fix = self._question = ""

    def start(self) -> None:
        """Start showing the run, in a daemon thread beside the coordinator's loop."""
        self._terminal.closed_note = CLOSED_NOTE
        self._watch_screen()
        self._thread = threading.Thread(target=self.run, name="view", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """Have the view's thread write `text` to stderr; never blocks."""
        self._messages.append(text)
        self._folder_watch.wake()

    def finish(self, timeout_s: float | None = None, *, has_ended: bool = True) -> bool:
        """Show all remaining output and end; return False if that takes longer than `timeout_s`.

        It does when the terminal is stopped (Ctrl-S); `finish` can be called again. Of a run that
        has not `has_ended` what is there now is shown, to its last whole lines.
        """
        self._has_ended = has_ended
        self._is_finishing.set()
        self._folder_watch.wake()
        if self._thread is None:
            return True
        try:
            self._thread.join(timeout_s)
        finally:  # also of a Ctrl-C
            self._keyboard.release()
        if not self._thread.is_alive():
            self._job_control.restore()
        return not self._thread.is_alive()

    def run(self, is_over: Callable[[], bool] | None = None) -> None:
        """Show the run until `finish` is called, `is_over` returns True or stdout is closed."""
        self._watch_screen()
        try:
            self._skip_if_far_behind()
            self._write_lines(self.logs.catch_up())
            while not self._is_finishing.is_set() and not (is_over and is_over()):
                found_new, has_more = self._show_round()
                self._show_job()
                self._obey_keys()
                self._draw_frame()
                if is_over and self._lines_stream.error:
                    break
                if not has_more:
                    self._folder_watch.wait(found_new=found_new)
            self._show_rest()
        finally:
            self._keyboard.release()
            self._job_control.restore()
            self._folder_watch.close()

    def _watch_screen(self) -> None:
        """Redraw at once when the terminal is resized, and leave it tidy while it is stopped."""
        if self._has_frame:
            self._job_control.install()

    def _show_round(self) -> tuple[bool, bool]:
        """Read events, write output, then show the events, so that a task's exit follows its lines.

        Returns whether anything was new, and whether more is known to be waiting.
        """
        self._skip_if_far_behind()
        events = self._read_events()
        rounds = 0
        while rounds < _ROUNDS_BEFORE_EVENTS and self._write_lines(self.logs.advance()):
            rounds += 1
        self._show_events(events)
        had_messages = self._write_messages()
        return bool(events or rounds or had_messages), rounds == _ROUNDS_BEFORE_EVENTS

    def _show_rest(self) -> None:
        before = -1
        while self._events.offset != before:
            before = self._events.offset
            events = self._read_events()
            self._write_lines(self.logs.advance())
            self._show_events(events)
        self._skip_if_far_behind()
        self._write_lines(self.logs.drain() if self._has_ended else self.logs.catch_up())
        self._write_messages()
        self._terminal.clear_footer()

    def _write_lines(self, blocks: Iterator[bytes]) -> bool:
        found_new = False
        for block in blocks:
            found_new = True
            if self._lines_stream is self._terminal.stdout:
                self._terminal.out_lines(block)
            else:
                self._terminal.say_lines(block)
        return found_new

    def _read_events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        while block := b"".join(self._events.read()):
            if self._json_lines:
                self._terminal.out(block.decode("utf-8", "surrogateescape"))
            events += [event for line in block.splitlines() if (event := _parse(line))]
        for event in events:
            self._mark_ended(event)
        return events

    def _mark_ended(self, event: dict[str, Any]) -> None:
        """Mark the log of a task that has ended as complete: its last line needs no newline."""
        match event:
            case {"type": "task_exited", "task": str(task), "attempt": int(attempt)}:
                by_itself = event.get("ended_by") == "itself"
                has_failed = by_itself and event.get("exit_code") != 0
                self.logs.mark_ended(task, attempt, has_failed=has_failed)
            case {"type": "prepare_finished", "node": str(node)}:
                self.logs.mark_ended(prepare_label(node), 0)

    def _show_events(self, events: list[dict[str, Any]]) -> None:
        if self._json_lines:
            return
        for event in events:
            is_shown = self._shows_messages or event.get("type") in ALWAYS_SHOWN
            if is_shown and (line := format_event(event)):
                self._terminal.say_wrapped(line.text, line.style)
            self._show_fix(event)

    def _show_fix(self, event: dict[str, Any]) -> None:
        """Show the fix below a restart; for a failed run, the root cause panel shows it."""
        match event:
            case {"type": "diagnosis", "root_cause": {"hint": str(hint)}}:
                self._fix = hint
            case {"type": "diagnosis"}:
                self._fix = ""
            case {"type": "restarting"} if self._fix:
                self._terminal.say_wrapped(f"  → {self._fix}", "dim")

    def _show_job(self) -> None:
        """Show what the scheduler says about the run's job where that has changed."""
        if self._shows_messages and not self._json_lines:
            for sentence in self._state.news():
                self._terminal.say_wrapped(sentence, "yellow")

    def ask(self, question: str) -> bool:
        """Show a question below the frame, or once where there is no frame; "" takes it away.

        Return False if nobody can answer. The next key is the `answer`.
        """
        if not (self._keyboard.is_there and self._terminal.stderr.is_tty):
            return False
        self._question, self._answer = question, ""
        if question and not self._has_frame:
            self.say(question)
        self._folder_watch.wake()
        return True

    @property
    def answer(self) -> str:
        """The key that was typed last since the question; empty if there was none."""
        return self._answer

    def _obey_keys(self) -> None:
        """Do what the typed keys say."""
        if self._question or (self._has_frame and self._leaving is not None):
            for key in self._keyboard.read().lower():
                self._obey_key(key)
        else:
            self._keyboard.release()
        self._folder_watch.inputs = self._keyboard.fds

    def _obey_key(self, key: str) -> None:
        if self._question:
            self._answer = key
        elif key == "?":
            self._shows_keys = not self._shows_keys
            self._frame_drawn_at = 0.0
        elif key == "d" and self._leaving is not None:
            self._leaving.leave()

    def _write_messages(self) -> bool:
        had_messages = bool(self._messages)
        while self._messages:
            self._terminal.say(self._messages.popleft())
        return had_messages

    def _draw_frame(self) -> None:
        if not self._has_frame:
            return
        self._job_control.stop_if_asked()
        now, size = time.time(), self._terminal.footer_size
        is_due = now - self._frame_drawn_at >= _FRAME_INTERVAL_S or size != self._frame_size
        if is_due and (snapshot := self._state.read()):
            self._frame_drawn_at, self._frame_size = now, size
            columns, rows = size
            below = self._lines_below(rows)
            self._frame = [*self._make_frame(snapshot, now, columns, rows - len(below)), *below]
        if self._frame:
            self._terminal.show_footer(self._frame)

    def _lines_below(self, rows: int) -> list[Text]:
        """Return the question, else the keys; a screen without room for the keys has a frame."""
        if self._question:
            return [Text(self._question, "bold yellow")]
        if self._leaving is None or (rows <= LEAST_ROWS and not self._shows_keys):
            return []
        lines = self._leaving.lines(with_keys=self._shows_keys)
        return [Text(line, "dim") for line in lines[: rows - 1]]

    def _make_frame(self, snapshot: RunSnapshot, now: float, columns: int, rows: int) -> list[Text]:
        if rows < LEAST_ROWS:
            partials = self.logs.partials()
            line = format_status_line(snapshot, now=now, width=columns, partials=partials)
            return [Text(line)]
        figures = figures_of(snapshot)
        self._trend.note(figures, now)
        scene = Scene(snapshot, figures, now, self._trend.samples, self._host)
        return draw_frame(scene, columns, rows, self._last_lines.of)

    def _skip_if_far_behind(self) -> None:
        if not self._lines_stream.is_tty or self.logs.behind() <= SKIP_ABOVE:
            return
        lines = self.logs.skip_to_newest()
        self._terminal.say(f"… {lines:,} lines not shown, the terminal was too slow: they are in")
        self._terminal.say(f"  {self._paths.logs}")


def line_style_for(
    terminal: Terminal, stream: Stream, collapse: bool, native: bool = False, times: bool = False
) -> LineStyle:
    """Return the style of the tasks' lines on `stream`; `native`: with all native lines."""
    is_screen, colours = stream.is_tty, terminal.has_colour(stream)
    return LineStyle(is_screen, colours, collapse, folds=not native, times=times)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        return foreign_json.parse_json_object(line)
    except ValueError:
        return None
