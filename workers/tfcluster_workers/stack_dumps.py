"""Has a crash in native code, and ``kill -USR1``, write the stacks of all threads to the log.

After SIGUSR1 the task continues. A crash ends it with the same signal as without the stacks.
"""

from __future__ import annotations

import faulthandler
import signal
import sys


def begin() -> None:
    """Write the task's stacks to stderr. A script's own calls of `faulthandler` replace this."""
    if sys.__stderr__ is not None:  # None when the parent process had closed it
        faulthandler.register(signal.SIGUSR1, file=sys.__stderr__, all_threads=True)
        faulthandler.enable(file=sys.__stderr__)


def begin_in_child(log: int) -> None:
    """Write the stacks of a child that trains to its task's log, wherever its own stderr goes.

    What the child has set up before stays.
    """
    if signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL:
        faulthandler.register(signal.SIGUSR1, file=log, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=log)
