"""The user's terminal as that of a command elsewhere: all keys and all sizes go there."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import tty
from types import FrameType, TracebackType
from typing import Any, Self


class RawTerminal:
    """A terminal that is raw inside of the block; see `rundir.exec_stream.UserTerminal`.

    SIGTERM and SIGHUP end the block, so that it is not left raw.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.kind = os.environ.get("TERM", "dumb")
        self.resizes, self._resized = os.pipe()
        os.set_blocking(self._resized, False)
        self._handlers: dict[int, Any] = {}

    def size(self) -> tuple[int, int]:
        columns, rows = os.get_terminal_size(self._descriptor)
        return rows, columns

    def __enter__(self) -> Self:
        self._before = termios.tcgetattr(self._descriptor)
        handlers = {signal.SIGWINCH: self._note_size, signal.SIGTERM: leave, signal.SIGHUP: leave}
        for number, handler in handlers.items():
            self._handlers[number] = signal.signal(number, handler)
        tty.setraw(self._descriptor, termios.TCSADRAIN)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(termios.error, OSError):  # the terminal is gone
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _note_size(self, _number: int, _frame: FrameType | None) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._resized, b"!")


def leave(number: int, _frame: FrameType | None) -> None:
    """Handle a signal: end as a shell says it, after the blocks that tidy the terminal up."""
    sys.exit(128 + number)
