"""Injects the faults of `tfcluster up --chaos` into this task, exactly where they were asked for.

Which ones stands in TFCLUSTER_SETTINGS (`chaos`), only in the attempt they are for. Without any,
`at_step` and its like cost a look at an empty list.
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


class RehearsedFault(Exception):
    """The exception of a `raise` fault; nothing is wrong with the job."""


@dataclass(frozen=True)
class Fault:
    """One fault of this task and attempt."""

    text: str
    """As the user wrote it."""
    verb: str
    """kill, stop, term, hang, raise, exit; report: the launcher does the rest."""
    place: str
    """step, start, join or save."""
    number: int = 0
    """The step, or which save."""
    exit_code: int = 0
    task: str | None = None
    """Whom it befalls, where that is another than this one."""


_steps: list[Fault] = []
"""Still to come, the next one first."""
_others: list[Fault] = []
_lock = threading.RLock()  # a signal handler may save while this thread holds it
_step: int | None = None
_saves = 0
_before_injection: list[Callable[[], None]] = []


def arm(environ: Mapping[str, str]) -> None:
    """Read this task's faults; `boot` calls it before the script."""
    if '"chaos"' not in environ.get("TFCLUSTER_SETTINGS", ""):
        return
    for told in json.loads(environ["TFCLUSTER_SETTINGS"]).get("chaos", []):
        number, code = told.get("number", 0), told.get("exit_code", 0)
        fault = Fault(told["fault"], told["do"], told["place"], number, code, told.get("task"))
        (_steps if fault.place == "step" else _others).append(fault)
    _steps.sort(key=lambda fault: fault.number)


def awaits_steps() -> bool:
    """Whether a fault is still to come at some step."""
    return bool(_steps)


def awaits_saves() -> bool:
    return any(fault.place == "save" for fault in _others)


def at_step(step: int) -> None:
    """`step` steps are done: to be called with every one, in the thread that does them."""
    if not _steps and not _others:
        return
    global _step
    _step = step
    while (fault := _take(_steps, lambda first: step >= first.number)) is not None:
        inject(fault)


def at_start() -> None:
    """The user's code is about to run."""
    _at("start")


def at_join() -> None:
    """This task is about to wait for its peers."""
    _at("join")


def _at(place: str) -> None:
    while _others and (fault := _take(_others, lambda f: f.place == place)) is not None:
        inject(fault)


def begin_save() -> Fault | None:
    """One more checkpoint begins to be written: the fault to inject while it is, if any."""
    global _saves
    with _lock:
        _saves += 1
        number = _saves
    return _take(_others, lambda fault: fault.place == "save" and fault.number == number)


def at_saved() -> None:
    """A job says that it has saved; one that saves by other means than TensorFlow's is heard."""
    if _others and not _sees_saves and (fault := begin_save()) is not None:
        inject(fault)


_sees_saves = False


def see_saves() -> None:
    """TensorFlow's own saves are watched from now on, so what jobs say of them is not counted."""
    global _sees_saves
    _sees_saves = True


def _take(faults: list[Fault], is_due: Callable[[Fault], bool]) -> Fault | None:
    """Remove and return the first that is due; a forked child is not the task and gets none."""
    if not event_channel.current().is_open:
        return None
    with _lock:
        for fault in faults:
            if is_due(fault):
                faults.remove(fault)
                return fault
    return None


def before_injection(report: Callable[[], None]) -> None:
    """Have `report` called before each fault, so that what it holds back is not lost."""
    _before_injection.append(report)


def inject(fault: Fault) -> None:
    """Tell the launcher, then do it. Returns if the fault lets this thread go on."""
    for report in _before_injection:
        report()
    told = {"type": "chaos", "fault": fault.text, "step": _step, "task": fault.task}
    event_channel.current().send({key: value for key, value in told.items() if value is not None})
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    _DEEDS[fault.verb](fault)


def is_of_process(fault: Fault) -> bool:
    """Whether any thread can inject it; the others befall the thread that gets there."""
    return fault.verb not in {"hang", "raise"}


def _signal(number: int) -> Callable[[Fault], None]:
    return lambda fault: os.kill(os.getpid(), number)


def _hang(fault: Fault) -> NoReturn:
    while True:
        time.sleep(3600)


def _raise(fault: Fault) -> NoReturn:
    raise RehearsedFault(f"rehearsed: {fault.text}")


def _exit(fault: Fault) -> NoReturn:
    # At once and whatever thread this is: no handler of the script's and no peer can delay it.
    os._exit(fault.exit_code)


_DEEDS: dict[str, Callable[[Fault], None]] = {
    "kill": _signal(signal.SIGKILL),
    "stop": _signal(signal.SIGSTOP),
    "term": _signal(signal.SIGTERM),
    "hang": _hang,
    "raise": _raise,
    "exit": _exit,
    "report": lambda fault: None,
}
