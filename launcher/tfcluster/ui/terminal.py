"""The terminal: writes data to stdout and messages to stderr, and owns colours and widths.

No other package knows colours, widths or descriptors. `Terminal` also sanitizes (`ui.lines`) all
messages, and all data that a screen gets; only our own colours pass (`Painted`). Data for a pipe
or a file is not changed. The tasks' lines come through `out_lines`, already sanitized by
`MergedLogs` for the stream they are for.

Both streams are written to their descriptors directly: a view's thread that is blocked by a
stopped terminal holds no lock of ``sys.stdout``, and there is nothing to flush (and to fail) when
the interpreter exits.

The footer, lines that are redrawn in place while others scroll above them, is our own cursor
handling. `rich.live.Live` was tried in tmux: it moves up by the rows that it has drawn, and in a
terminal that became narrower they have wrapped, so parts of them stay between the lines of the log.
Ctrl-Z leaves its rows above the shell's prompt and the cursor hidden. And what is written above it
has to be drawn by rich, too; the tasks' lines are raw bytes.
"""

from __future__ import annotations

import io
import json
import os
import select
import stat
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from tfcluster.agent.error_text import reason_of
from tfcluster.ui.formats import wrap_words
from tfcluster.ui.lines import escape_json, sanitize_except_colours, sanitize_text

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text


_HOLD: Final = "\x1b[?2026h"
"""Begins synchronised output: a terminal that knows it shows all changes until `_SHOW` at once."""
_SHOW: Final = "\x1b[?2026l"
_NO_WRAP: Final = "\x1b[?7l"
"""A character that is wider than we think must not move the lines below it."""
_WRAP: Final = "\x1b[?7h"
_ERASE_REST: Final = "\x1b[K"
_ERASE_BELOW: Final = f"{_ERASE_REST}\x1b[C\x1b[J\r"
"""Erases from the beginning of a row on. In two parts: tmux takes an erasure that begins at the top
left for one of the whole screen, and scrolls what is there into its history."""

Line = tuple[str, int]
"""The text of a line, sanitized and painted, and its width in columns."""


class Footer:
    """The lines at the bottom of the screen; each method returns the bytes that `Terminal` writes.

    The cursor rests at the end of the last line and is never hidden: a process that is killed
    leaves a usable terminal behind.
    """

    def __init__(self) -> None:
        self._lines: tuple[Line, ...] = ()
        self._is_held = False

    @property
    def is_in_use(self) -> bool:
        """True if a write needs `make_room` before it."""
        return bool(self._lines) or self._is_held

    def draw(self, lines: Sequence[Line], columns: int) -> str:
        """Return what turns the footer into `lines`; only lines that have changed are written.

        `columns` is the present width of the screen.
        """
        before, after = self._lines, tuple(lines)
        if after == before:
            return ""
        self._lines, self._is_held = after, False
        if len(before) == len(after) == _rows(before, columns):
            text = _to_top(before, columns) + _changed(before, after)
        else:
            text = _erase(before, columns) + "\r\n".join(line for line, _ in after)
        return f"{_HOLD}{_NO_WRAP}{text}{_WRAP}{_SHOW}"

    def make_room(self, columns: int) -> str:
        """Return what removes the footer, so that other text can be written where it began.

        The terminal shows the change together with that text and the next `draw`.
        """
        if not self._lines:
            return self.end()
        before, self._lines, self._is_held = self._lines, (), True
        return _HOLD + _erase(before, columns)

    def end(self) -> str:
        """Return what has to follow `make_room` where no `draw` follows."""
        was_held, self._is_held = self._is_held, False
        return _SHOW if was_held else ""

    def forget(self) -> None:
        """Leave the lines where they are: something else has moved the cursor."""
        self._lines = ()


def _erase(lines: Sequence[Line], columns: int) -> str:
    return _to_top(lines, columns) + _ERASE_BELOW if lines else ""


def _changed(before: Sequence[Line], after: Sequence[Line]) -> str:
    """Return the text that rewrites the changed lines from the first to the last, going down."""
    rows = [
        "" if old == new else f"{new[0]}{_ERASE_REST}"
        for old, new in zip(before[:-1], after[:-1], strict=True)
    ]
    # The last line is always written: a typed ^C stands behind it.
    return "\r\n".join([*rows, f"{after[-1][0]}{_ERASE_REST}"])


def _to_top(lines: Sequence[Line], columns: int) -> str:
    """Return the movement from the end of `lines` to the beginning of the first one."""
    up = _rows(lines, columns) - 1
    return f"\x1b[{up}A\r" if up > 0 else "\r"


def _rows(lines: Sequence[Line], columns: int) -> int:
    """Return how many rows the lines take: a terminal that became narrower has wrapped them."""
    return sum(max(1, -(-width // max(columns, 1))) for _, width in lines)


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
    """Text that `ui` has sanitized and then coloured."""

    __slots__ = ()


class Stream:
    """A stream, stdout or stderr, that is written whole, or not at all once it is closed."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream
        self._fd = _descriptor(stream)
        self.error: str | None = None if stream is not None else "closed from the start"
        """The reason why the stream cannot be written any more; None while it can."""
        self.problem = "is closed"
        """`error` as the end of a sentence."""

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
        """Return the columns of the screen, or None without a screen or a known size."""
        return self.size()[0] or None

    def size(self) -> tuple[int, int]:
        """Return the columns and rows of the screen; 0 where they are not known."""
        if self._fd is None or not self.is_tty:
            return 0, 0
        try:
            return os.get_terminal_size(self._fd)
        except OSError:
            # The terminal was closed between the two calls.
            return 0, 0

    def write(self, data: bytes) -> bool:
        """Write all of `data`, waiting for a slow reader; return False if it cannot be written."""
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
        # A replacement without a descriptor: click's test runner, pytest's capture.
        assert self._stream is not None
        self._stream.write(data.decode("utf-8", "replace"))
        self._stream.flush()


class Terminal:
    """The streams of a command: data to stdout, messages to stderr, each in its style."""

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
        """Printed once when stdout turns out to be closed: what continues nevertheless."""
        self._closed_was_reported = False
        self._footer = Footer()

    @property
    def is_plain(self) -> bool:
        """True if the environment asks for text without decoration."""
        return bool(self._environ.get("CI")) or self._environ.get("TERM") == "dumb"

    def has_colour(self, stream: Stream) -> bool:
        return stream.is_tty and not self.is_plain and not self._environ.get("NO_COLOR")

    @property
    def has_footer(self) -> bool:
        """True on a screen, unless a pipe's reader may write to the same screen."""
        return self.stderr.is_tty and not self.is_plain and not self.stdout.is_pipe

    @property
    def can_ask(self) -> bool:
        """True if there is somebody who can read a question, and type the answer."""
        return sys.stdin is not None and sys.stdin.isatty() and self.stderr.is_tty

    @property
    def width(self) -> int:
        """The number of columns: ``COLUMNS``, else of the screen of stderr or stdout, else 100."""
        chosen = self._environ.get("COLUMNS", "")
        if chosen.isdecimal() and int(chosen) > 0:
            return int(chosen)
        return self.stderr.width() or self.stdout.width() or 100

    @property
    def footer_size(self) -> tuple[int, int]:
        """The columns and rows that a footer may take: at most half of the screen's rows."""
        columns, rows = self.stderr.size()
        return (columns or self.width) - 1, max((rows or 24) // 2, 1)

    def out(self, text: str) -> bool:
        """Write a line of data to stdout, sanitized for a screen; return False if it is closed."""
        return self.out_lines(_for_screen(text) if self.stdout.is_tty else _encode(text))

    def out_lines(self, lines: bytes) -> bool:
        """Write data to stdout as it is; return False if it is closed, which is reported once."""
        self._make_room()
        written = self.stdout.write(lines)
        if not written and self.closed_note and not self._closed_was_reported:
            self._closed_was_reported = True
            self.say(f"stdout {self.stdout.problem}; {self.closed_note}")
        return written

    def emit_json(self, value: Any) -> bool:
        """Write a JSON document to stdout: one line for a pipe, indented for a terminal."""
        indent = 2 if self.stdout.is_tty else None
        text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
        return self.out(escape_json(text))

    def say(self, text: str) -> None:
        """Write a line or a panel to stderr, sanitized."""
        self.say_lines(_for_screen(text) if self.stderr.is_tty else _encode(_sanitize(text)))

    def say_wrapped(self, text: str, style: str = "") -> None:
        """Write a sentence to stderr: wrapped between words for a screen, one line for a pipe."""
        text = sanitize_text(text)
        if self.stderr.is_tty:
            text = "\n".join(wrap_words(text, self.width, indent="    "))
        self.say(self.paint(text, style))

    def say_lines(self, lines: bytes) -> None:
        """Write lines to stderr as they are."""
        self._make_room()
        self.stderr.write(lines)

    def show_footer(self, lines: Sequence[Text]) -> None:
        """Show sanitized lines at the bottom of the screen, cut to it; later writes go above."""
        if not self.has_footer:
            return
        from rich.text import Text

        columns = self.footer_size[0]
        for line in lines:
            line.truncate(columns, overflow="ellipsis")
        colours = self.has_colour(self.stderr)
        drawn = draw(Text("\n", no_wrap=True).join(lines), columns + 1, colours=colours)
        rows = zip(drawn.split("\n"), [line.cell_len for line in lines], strict=False)
        self._write_footer(self._footer.draw([*rows], columns + 1))

    def clear_footer(self) -> None:
        """Remove the footer; nothing of it stays on the screen."""
        self._make_room()
        self._write_footer(self._footer.end())

    def forget_footer(self) -> None:
        """Leave the footer where it is, because something else has moved the cursor."""
        self._footer.forget()

    def _make_room(self) -> None:
        if self._footer.is_in_use:
            self._write_footer(self._footer.make_room(self.footer_size[0] + 1))

    def _write_footer(self, text: str) -> None:
        if text:
            self.stderr.write(_encode(text, end="").decode("utf-8", "replace").encode())

    def paint(self, text: str, style: str) -> str:
        """Return `text` in `style` (``bold red``) if stderr has colours, else unchanged."""
        return paint(text, style) if style and self.has_colour(self.stderr) else text


def draw(content: RenderableType, width: int, *, colours: bool) -> Painted:
    """Return sanitized content as rich draws it on a screen; long words are not cut off."""
    from rich.console import Console  # only screens need it: 40 ms, which tasks would wait for

    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=True,
        color_system="standard" if colours else None,
        no_color=not colours,
        highlight=False,
        legacy_windows=False,
    )
    console.print(content, crop=False, overflow="ignore")
    return Painted(file.getvalue().rstrip("\n"))


def paint(text: str, style: str) -> Painted:
    """Return `text`, which must be sanitized, between the escape sequences of `style`."""
    return Painted(f"\x1b[{';'.join(map(_SGR.__getitem__, style.split()))}m{text}\x1b[0m")


def _sanitize(text: str) -> str:
    return sanitize_except_colours(text) if isinstance(text, Painted) else sanitize_text(text)


def _for_screen(text: str) -> bytes:
    """Encode `text` without invalid UTF-8: to some screens a byte 0x9b is a control sequence."""
    return _encode(_sanitize(text)).decode("utf-8", "replace").encode()


def _encode(text: str, *, end: str = "\n") -> bytes:
    line = text if text.endswith("\n") else text + end
    try:
        # Paths may hold bytes that are not UTF-8 (surrogates); they are written unchanged.
        return line.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate, which a task's JSON can hold
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
            # Another process made the shared terminal or pipe non-blocking: wait until writable.
            select.select([], [fd], [])
