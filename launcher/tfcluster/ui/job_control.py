"""The signals of a terminal that shows a footer, resized or stopped with Ctrl-Z, and its keys.

A stop waits until the footer is removed, so that the shell's lines follow the last line of the log,
and `fg` draws it again below them.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from tfcluster.ui.terminal import Terminal

_CLEARING_S: Final = 0.3
"""The time that a stop waits for the thread that writes; a stopped screen (Ctrl-S) may block it."""
_POLL_S: Final = 0.02


class JobControl:
    """The handlers of SIGWINCH and SIGTSTP while a footer may be on the screen."""

    def __init__(self, terminal: Terminal, wake: Callable[[], None]) -> None:
        """`wake` has the thread that writes call `stop_if_asked`, and draw again."""
        self._terminal, self._wake = terminal, wake
        self._before: dict[int, Any] = {}
        self._writer: threading.Thread | None = None
        self._is_asked = False
        self._cleared = threading.Event()

    def install(self) -> None:
        """Handle the signals, if this is the main thread: no other can."""
        if self._before or threading.current_thread() is not threading.main_thread():
            return
        handlers = {signal.SIGWINCH: self._resized, signal.SIGTSTP: self._stopped}
        for number, handler in handlers.items():
            # None: a handler that Python does not know and could not restore.
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._before[number] = signal.signal(number, handler)

    def restore(self) -> None:
        """Restore the handlers from before; only the main thread does."""
        if threading.current_thread() is threading.main_thread():
            while self._before:
                signal.signal(*self._before.popitem())

    def stop_if_asked(self) -> None:
        """Remove the footer before a stop and return after it; called by the thread that writes."""
        self._writer = threading.current_thread()
        if self._is_asked:
            self._terminal.clear_footer()
            self._cleared.set()
            while self._is_asked:
                time.sleep(_POLL_S)

    def _resized(self, number: int, frame: FrameType | None) -> None:
        self._wake()

    def _stopped(self, number: int, frame: FrameType | None) -> None:
        if self._writer is threading.current_thread():
            self._terminal.clear_footer()
        else:
            self._cleared.clear()
            self._is_asked = True
            self._wake()
            if not self._cleared.wait(_CLEARING_S):
                self._terminal.forget_footer()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The process stops in `kill`, which returns after `fg`.
        signal.signal(signal.SIGTSTP, self._stopped)
        self._is_asked = False
        self._wake()


@contextlib.contextmanager
def single_keys(pause_s: float) -> Iterator[Callable[[], bytes]]:
    """Let keys take effect without Enter.

    The block gets a function that waits `pause_s` for a key, and returns b"" if there is none.
    """
    fd = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = termios.tcgetattr(fd) if fd is not None else None

    def next_key() -> bytes:
        if fd is None:
            time.sleep(pause_s)
            return b""
        tty.setcbreak(fd, termios.TCSADRAIN)  # each time: a shell resets it while we are stopped
        return os.read(fd, 1) if select.select([fd], [], [], pause_s)[0] else b""

    try:
        yield next_key
    finally:
        if fd is not None and before is not None:
            termios.tcsetattr(fd, termios.TCSADRAIN, before)
