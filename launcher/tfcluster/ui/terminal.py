"""The one object that owns all style, so that no other room knows colours, widths or descriptors.

It is also the border to the screen: everything that is said, and all data that a screen gets, is
made harmless here (`ui.lines`). Only colours of ours pass (`Painted`), and what a pipe or a file
gets of data stays as it is. The tasks' lines come through `out_lines`: `MergedLogs`, which knows
the stream that they are for, has made them harmless already.

Data goes to stdout, talk to stderr. Both are written to their descriptors directly: a view's
thread that stands before a stopped terminal holds no lock of ``sys.stdout``, and nothing is left
to flush (and to fail) when the interpreter ends.
"""

from __future__ import annotations

import errno
import json
import os
import select
import stat
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from tfcluster.agent.error_text import reason_of
from tfcluster.ui.formats import cut_to_columns, wrap_words
from tfcluster.ui.lines import escaped_json, harmless_but_colours, harmless_text

RESET = "\x1b[0m"
_SGR = {
    "bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36", "bright_red": "91", "bright_green": "92",
    "bright_yellow": "93", "bright_blue": "94", "bright_magenta": "95", "bright_cyan": "96",
}  # fmt: skip
TASK_COLOURS = (
    "cyan", "yellow", "green", "magenta", "blue",
    "bright_cyan", "bright_yellow", "bright_green", "bright_magenta", "bright_blue",
)  # fmt: skip


class Painted(str):
    """Text that `ui` has coloured, after it had made everything in it harmless."""

    __slots__ = ()


class Stream:
    """stdout or stderr: bytes in, whole or not at all once the other end is gone."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._fd = _descriptor(stream)
        self.error: str | None = None if stream is not None else "closed from the start"
        """Why nothing can be written any more; None while it can."""
        self.problem = "is closed"
        """The same as the end of a sentence."""

    @property
    def is_tty(self) -> bool:
        return self._fd is not None and os.isatty(self._fd)

    @property
    def is_pipe(self) -> bool:
        if self._fd is None:
            return False
        mode = os.fstat(self._fd).st_mode
        return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)

    def width(self) -> int | None:
        """Columns of the screen, None where there is none (or it does not say)."""
        if self._fd is None or not self.is_tty:
            return None
        try:
            return os.get_terminal_size(self._fd).columns or None
        except OSError:
            # It was hung up between the two calls.
            return None

    def write(self, data: bytes) -> bool:
        """Write all of `data`, waiting for a slow reader; False when it cannot be written."""
        if self.error is not None:
            return False
        try:
            if self._fd is not None:
                _write_all(self._fd, data)
            else:
                self._write_text(data)
        except (OSError, ValueError) as problem:
            self.error = reason_of(problem)
            if isinstance(problem, OSError) and not isinstance(problem, BrokenPipeError):
                self.problem = f"cannot be written ({self.error})"
            return False
        return True

    def _write_text(self, data: bytes) -> None:
        # A stand-in without a descriptor: click's test runner, pytest's capture.
        assert self._stream is not None
        self._stream.write(data.decode("utf-8", "replace"))
        self._stream.flush()


class Terminal:
    """Where a command's data and talk go, and how they look there."""

    def __init__(
        self,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        *,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._environ = environ
        self.stdout = Stream(stdout if stdout is not None else sys.stdout)
        self.stderr = Stream(stderr if stderr is not None else sys.stderr)
        self.closed_note = ""
        """Said once when stdout turns out to be closed: what goes on nevertheless."""
        self._closed_was_said = False
        self._status = ""

    @property
    def is_plain(self) -> bool:
        """Whether the user's surroundings ask for text without decoration."""
        return bool(self._environ.get("CI")) or self._environ.get("TERM") == "dumb"

    def has_colour(self, stream: Stream) -> bool:
        return stream.is_tty and not self.is_plain and not self._environ.get("NO_COLOR")

    @property
    def has_status_line(self) -> bool:
        """A line kept at the bottom: not where a pipe's reader may write to the same screen."""
        return self.stderr.is_tty and not self.is_plain and not self.stdout.is_pipe

    @property
    def width(self) -> int:
        """Columns of the screen that talk goes to; ``COLUMNS`` or 100 where there is none."""
        chosen = self._environ.get("COLUMNS", "")
        if chosen.isdecimal() and int(chosen) > 0:
            return int(chosen)
        return self.stderr.width() or self.stdout.width() or 100

    def out(self, text: str) -> bool:
        """A line of data, harmless on a screen; False when stdout is closed."""
        return self.out_lines(_for_screen(text) if self.stdout.is_tty else _encode(text))

    def out_lines(self, lines: bytes) -> bool:
        """Data that is made for this stream; False when it is closed (said once, never raised)."""
        self.clear_status()
        written = self.stdout.write(lines)
        if not written and self.closed_note and not self._closed_was_said:
            self._closed_was_said = True
            self.say(f"stdout {self.stdout.problem}; {self.closed_note}")
        return written

    def emit_json(self, value: Any) -> bool:
        """One JSON document of data: a line on a pipe, indented on a terminal."""
        indent = 2 if self.stdout.is_tty else None
        text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
        return self.out(escaped_json(text))

    def say(self, text: str) -> None:
        """A line (or a panel) of talk, harmless wherever it goes."""
        self.say_lines(_for_screen(text) if self.stderr.is_tty else _encode(_never_fails(text)))

    def tell(self, text: str, *styles: str) -> None:
        """A sentence of talk: a screen breaks it between words, a pipe gets one line."""
        text = harmless_text(text)
        if self.stderr.is_tty:
            text = "\n".join(wrap_words(text, self.width, indent="    "))
        self.say(self.paint(text, *styles))

    def say_lines(self, lines: bytes) -> None:
        """Talk that is made for this stream."""
        self.clear_status()
        self.stderr.write(lines)

    def show_status(self, text: str) -> None:
        """Put `text` (one line, cut to the screen) at the bottom; later writes go above it."""
        text = cut_to_columns(harmless_text(text).replace("\n", " "), self.width - 1)
        if text == self._status or not self.has_status_line:
            return
        self.stderr.write(_encode("\r" + text + "\x1b[K", end=""))
        self._status = text

    def clear_status(self) -> None:
        if self._status:
            self._status = ""
            self.stderr.write(b"\r\x1b[K")

    def paint(self, text: str, *styles: str, on: Stream | None = None) -> str:
        """`text` in `styles` where the stream (default stderr) shows colours, else as it is."""
        if not styles or not self.has_colour(on or self.stderr):
            return text
        return paint(text, *styles)


def paint(text: str, *styles: str) -> Painted:
    """`text`, which is harmless, between the escape sequences of `styles`."""
    return Painted(f"\x1b[{';'.join(_SGR[style] for style in styles)}m{text}{RESET}")


def _never_fails(text: str) -> str:
    return harmless_but_colours(text) if isinstance(text, Painted) else harmless_text(text)


def _for_screen(text: str) -> bytes:
    """Without single bytes either: to some screens 0x9b begins a control sequence."""
    return _encode(_never_fails(text)).decode("utf-8", "replace").encode()


def _encode(text: str, *, end: str = "\n") -> bytes:
    line = text if text.endswith("\n") else text + end
    try:
        # Paths may hold bytes that are no UTF-8 (surrogates); they go out as they came in.
        return line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # half a character, which JSON of a task can hold
        return line.encode("utf-8", "replace")


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return stream.fileno() if stream is not None else None
    except (OSError, ValueError, AttributeError):
        return None


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            # Somebody made the shared terminal or pipe non-blocking; wait as a blocking one would.
            select.select([], [fd], [])
        except OSError as problem:
            if problem.errno != errno.EINTR:
                raise
