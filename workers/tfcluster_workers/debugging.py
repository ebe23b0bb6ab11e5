"""Has debugpy listen in this task when `tfcluster debug` asks for it, by a signal.

A signal needs no right to trace the process. gdb, by which debugpy enters another process up to
Python 3.13, needs that right, and its releases before 14 can end the process: on processors with
AMX they call a function in it but cannot give it back its registers.
"""

from __future__ import annotations

import _thread
import contextlib
import signal
import socket

TYPE_CHECKING = False  # see boot
if TYPE_CHECKING:
    from typing import Any

SIGNAL = signal.SIGRTMAX - 2 if hasattr(signal, "SIGRTMAX") else None
"""The signal that `launcher/tfcluster/debugger.py` sends, if it finds that a task handles it."""
_lock = _thread.allocate_lock()
_listens = False


def begin() -> None:
    """Handle the signal from now on; call it in the main thread."""
    if SIGNAL is not None:
        signal.signal(SIGNAL, _hear)


def _hear(*_: Any) -> None:
    import threading  # noqa: F401 - here it takes the right thread for the main one

    # Not in this thread: it may be in the middle of an import, or hold a lock, which `Thread.start`
    # may need, too.
    with contextlib.suppress(RuntimeError):  # no thread can be started
        _thread.start_new_thread(_listen, ())


def _listen() -> None:
    global _listens
    with _lock:
        if _listens:
            return
        import debugpy  # type: ignore[import-not-found, unused-ignore]

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = free.getsockname()
        debugpy.listen(address)
        _listens = True
