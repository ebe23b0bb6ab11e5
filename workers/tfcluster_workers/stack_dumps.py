"""Has a crash in native code, and a signal, write the stacks of all threads to the log.

After the signal the task continues. A crash ends it with the same signal as without the stacks.
"""

from __future__ import annotations

import faulthandler
import signal
import sys

_SIGNALS = [signal.SIGUSR1, *([signal.SIGRTMAX - 1] if hasattr(signal, "SIGRTMAX") else [])]
"""SIGUSR1 for people, and because it would end the task; a script may take it over, so the agent
sends another one where there is one (`agent.tasks.stacks.SIGNAL`)."""


def begin() -> None:
    """Write the task's stacks to stderr. A script's own calls of `faulthandler` replace this."""
    if sys.__stderr__ is not None:  # None when the parent process had closed it
        for number in _SIGNALS:
            faulthandler.register(number, file=sys.__stderr__, all_threads=True)
        faulthandler.enable(file=sys.__stderr__)


def begin_in_child(log: int) -> None:
    """Write the stacks of a child that trains to its task's log, wherever its own stderr goes.

    What the child has set up before stays.
    """
    for number in _SIGNALS:
        if signal.getsignal(number) is signal.SIG_DFL:
            faulthandler.register(number, file=log, all_threads=True)
    if not faulthandler.is_enabled():
        faulthandler.enable(file=log)
