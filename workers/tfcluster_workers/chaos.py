"""Injects the faults of `tfcluster up --chaos` into this task, at the requested step or event.

TFCLUSTER_SETTINGS (`chaos`) lists them, only in the attempt that they are for. Without faults,
`at_step` and the other `at_…` functions only check an empty list.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Callable, NoReturn

from tfcluster_workers import event_channel


class InjectedFault(Exception):
    """The exception that a `raise` fault raises; nothing is wrong with the job."""


@dataclass(frozen=True)
class Fault:
    """One fault of this task and attempt."""

    text: str
    """The fault as the user wrote it."""
    verb: str
    """kill, stop, term, hang, raise, exit; or report, where the launcher injects the fault."""
    place: str
    """step, start, join or save."""
    number: int = 0
    """The number of the step or of the save."""
    exit_code: int = 0
    task: str | None = None
    """The task that the fault hits; None for this task."""


_steps: list[Fault] = []
"""Remaining faults at steps, the next one first."""
_others: list[Fault] = []
"""Remaining faults at other places."""
_lock = threading.RLock()  # a signal handler may save while this thread holds it
_step: int | None = None
_saves = 0
_before_injection: list[Callable[[], None]] = []
_is_armed = False


def arm(environ: Mapping[str, str]) -> None:
    """Read this task's faults; `boot` calls it before the script."""
    global _is_armed
    _is_armed = True
    for entry in json.loads(environ.get("TFCLUSTER_SETTINGS") or "{}").get("chaos", []):
        number, code = entry.get("number", 0), entry.get("exit_code", 0)
        fault = Fault(entry["fault"], entry["do"], entry["place"], number, code, entry.get("task"))
        (_steps if fault.place == "step" else _others).append(fault)
    _steps.sort(key=lambda fault: fault.number)


def arm_child() -> None:
    """Read the task's faults in a child of it; a fork has those that remained."""
    if not _is_armed:
        arm(os.environ)


def has_step_faults() -> bool:
    """Return whether faults at steps remain."""
    return bool(_steps)


def has_save_faults() -> bool:
    """Return whether faults during saves remain."""
    return any(fault.place == "save" for fault in _others)


def at_step(step: int) -> None:
    """Inject the faults due after `step` steps; call it for every step, in the training thread."""
    if not _steps and not _others:
        return
    global _step
    _step = step
    while (fault := _take(_steps, lambda first: step >= first.number)) is not None:
        inject(fault)


def at_start() -> None:
    """Inject the faults due before the user's code runs."""
    _at("start")


def at_join() -> None:
    """Inject the faults due before this task waits for its peers."""
    _at("join")


def _at(place: str) -> None:
    while _others and (fault := _take(_others, lambda f: f.place == place)) is not None:
        inject(fault)


def begin_save() -> Fault | None:
    """Count one more checkpoint; return the fault to inject while it is written, or None."""
    global _saves
    with _lock:
        _saves += 1
        number = _saves
    return _take(_others, lambda fault: fault.place == "save" and fault.number == number)


def at_saved() -> None:
    """Inject the fault due at a save that a job reports and that no hook has counted."""
    if _others and not _are_saves_watched and (fault := begin_save()) is not None:
        inject(fault)


_are_saves_watched = False


def watch_saves() -> None:
    """Count the saves that the hooks see from now on, and no longer those that jobs report."""
    global _are_saves_watched
    _are_saves_watched = True


def _take(faults: list[Fault], is_due: Callable[[Fault], bool]) -> Fault | None:
    """Remove and return the first due fault; None in a forked child, which is not the task."""
    if not event_channel.current().is_open:
        return None
    with _lock:
        for fault in faults:
            if is_due(fault):
                faults.remove(fault)
                return fault
    return None


def before_injection(report: Callable[[], None]) -> None:
    """Have `report` called before each fault, so that held-back progress is not lost."""
    _before_injection.append(report)


def inject(fault: Fault) -> None:
    """Report the fault, then inject it. Returns if the fault lets this thread continue."""
    for report in _before_injection:
        report()
    event = {"type": "chaos_injected", "fault": fault.text, "step": _step, "task": fault.task}
    event_channel.current().send({key: value for key, value in event.items() if value is not None})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _ACTIONS[fault.verb](fault)


def works_in_any_thread(fault: Fault) -> bool:
    """Return whether any thread can inject it; `hang` and `raise` need the training thread."""
    return fault.verb not in {"hang", "raise"}


def _signal(number: int) -> Callable[[Fault], None]:
    return lambda fault: os.kill(os.getpid(), number)


def _hang(fault: Fault) -> NoReturn:
    while True:
        time.sleep(3600)


def _raise(fault: Fault) -> NoReturn:
    raise InjectedFault(f"injected: {fault.text}")


def _exit(fault: Fault) -> NoReturn:
    # At once and from any thread: no exit handler and no peer can delay it.
    os._exit(fault.exit_code)


_ACTIONS: dict[str, Callable[[Fault], None]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "term": _signal(signal.SIGTERM),
    "hang": _hang,
    "raise": _raise,
    "exit": _exit,
    "report": lambda fault: None,
}
