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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Final

from tfcluster.ui.raw_terminal import leave
from tfcluster.ui.terminal import Terminal

_CLEARING_S: Final = 0.3
"""The time that a stop waits for the thread that writes; a stopped screen (Ctrl-S) may block it."""
_POLL_S: Final = 0.02
_MOST_KEYS: Final = 64
_LOCAL_MODES: Final = 3
"""The place of the local modes in the settings that `termios.tcgetattr` returns."""


class Keyboard:
    """The keys typed at the terminal of stdin: without Enter, and not shown on the screen.

    Otherwise an Enter would move the cursor out of the footer, and parts of it would stay.
    """

    def __init__(self) -> None:
        self._fd: int | None = None
        if sys.stdin is not None and sys.stdin.isatty():
            with contextlib.suppress(OSError):  # not the terminal that controls this process
                os.tcgetpgrp(sys.stdin.fileno())
                self._fd = sys.stdin.fileno()
        self._before: list[Any] | None = None
        """The settings of the terminal to restore; None while they are as they were."""

    @property
    def is_there(self) -> bool:
        return self._fd is not None

    @property
    def fds(self) -> list[int]:
        """The descriptor that can be read once a key was typed; none while keys are not ours."""
        return [self._fd] if self._fd is not None and self._before is not None else []

    def read(self, wait_s: float = 0.0) -> str:
        """Return the keys that have been typed, or are within `wait_s`.

        None are while this process is in the background: a read would stop it.
        """
        try:
            if self._fd is None or not self._claim():
                time.sleep(wait_s)
                return ""
            if not select.select([self._fd], [], [], wait_s)[0]:
                return ""
            typed = os.read(self._fd, _MOST_KEYS)
        except (OSError, termios.error):
            typed = b""
        if not typed:  # the terminal is closed
            self._fd = self._before = None
        return typed.decode("ascii", "replace")

    def release(self) -> None:
        """Restore the settings of the terminal, until the next `read`."""
        before, self._before = self._before, None
        if self._fd is not None and before is not None and self._is_in_foreground(self._fd):
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(self._fd, termios.TCSANOW, before)

    def _claim(self) -> bool:
        """Set the terminal up, if it is ours: a shell resets it while this process is stopped."""
        assert self._fd is not None
        if not self._is_in_foreground(self._fd):
            self._before = None  # the shell has its own settings now
            return False
        settings = termios.tcgetattr(self._fd)
        if settings[_LOCAL_MODES] & (termios.ECHO | termios.ICANON):
            self._before = termios.tcgetattr(self._fd)
            settings[_LOCAL_MODES] &= ~(termios.ECHO | termios.ICANON)
            # At once: output that waits for Ctrl-Q must not hold up the keys.
            termios.tcsetattr(self._fd, termios.TCSANOW, settings)
        return True

    @staticmethod
    def _is_in_foreground(fd: int) -> bool:
        with contextlib.suppress(OSError):
            return os.tcgetpgrp(fd) == os.getpgrp()
        return False


@contextlib.contextmanager
def tidied_at_end(terminal: Terminal) -> Iterator[None]:
    """Remove the footer after the block, which SIGTERM and SIGHUP end like any other error."""
    before = {
        number: signal.signal(number, leave)
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        terminal.clear_footer()
        for number, handler in before.items():
            signal.signal(number, handler)


class JobControl:
    """The handlers of SIGWINCH and SIGTSTP while a footer may be on the screen."""

    def __init__(self, terminal: Terminal, keyboard: Keyboard, wake: Callable[[], None]) -> None:
        """`wake` has the thread that writes call `stop_if_asked`, and draw again."""
        self._terminal, self._keyboard, self._wake = terminal, keyboard, wake
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
        self._keyboard.release()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        # The process stops in `kill`, which returns after `fg`.
        signal.signal(signal.SIGTSTP, self._stopped)
        self._is_asked = False
        self._wake()
