"""The failure of one task: its kind, the reason in words, and the hint and page for the user.

`CIRCUMSTANCES` has the hints for failures without a known message; `known_errors` has the others.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Any

from tfcluster.supervision import log_errors
from tfcluster.supervision.known_errors import MESSAGES as MESSAGES
from tfcluster.supervision.known_errors import PERMANENT as PERMANENT
from tfcluster.supervision.known_errors import PORT_TAKEN as PORT_TAKEN
from tfcluster.supervision.known_errors import Known as Known

WITHOUT_KERAS_3 = (
    "the spec asks for Keras 3, with which this does not work: --set keras.version=2 instead runs"
    " it with tf_keras"
)
CIRCUMSTANCES: Mapping[str, Known] = {
    "SIGKILL": Known(
        "sigkill",
        "usual suspects: the kernel short of memory (`dmesg`, or a container's limit), a batch"
        " system's limit, a person",
    ),
    "SIGSEGV": Known(
        "native-crash",
        "a crash in native code: packages or drivers that do not fit TensorFlow, as a rule;"
        " PYTHONFAULTHANDLER=1 shows where",
    ),
    "SIGABRT": Known(
        "native-crash",
        "native code gave up; the last line that begins with F, or has CHECK failed, says why",
    ),
    "SIGILL": Known(
        "illegal-instruction", "TensorFlow was built for a newer processor: its wheels need AVX"
    ),
    "SIGBUS": Known(
        "bus-error", "/dev/shm or a disk is full, or a file shrank while it was mapped into memory"
    ),
    "SIGTERM": Known(
        "sigterm",
        "something outside asked it to end: a batch system, a container engine, a person",
    ),
    "out_of_memory": Known(
        "out-of-memory",
        "fewer tasks on this machine, smaller batches or shuffle buffers, no cache() in memory",
    ),
    "preempted": Known("preempted", "its machine is about to go; it has saved its state"),
    "node_lost": Known(
        "node-lost", "its host or its agent is gone: look whether the machine is up and has memory"
    ),
    "link_lost": Known(
        "link-lost",
        "the host is up, but TensorFlow's connections to it broke: look at its network, at"
        " firewalls and at idle time-outs between the hosts",
    ),
    "frozen": Known("frozen", "something stopped the process: SIGSTOP, Ctrl-Z, a debugger"),
    "late": Known("late", "the end of its log says what it did last, and where its threads stood"),
    "unfinished": Known(
        "unfinished",
        "a longer time: --set supervision.finish_grace_s=SECONDS; a worker that only serves calls"
        " tf.distribute.Server.join(), and is then ended after the chief",
    ),
    "stalled": Known(
        "stalled",
        "tasks may wait for each other: saving or evaluating on the chief alone, or uneven batches;"
        " their stacks are in the logs",
    ),
    "start_failed": Known("start-failed", "`tfcluster plan --task` shows its command"),
    "refused_arguments": Known(
        "refused-arguments",
        "the script refuses its arguments: `tfcluster plan --task` shows all of them, and which"
        " of job.args and job.per_task they come from",
        kind=PERMANENT,
    ),
    "collateral": Known(
        "no-cause",
        "every task blames another and none failed by itself: the network between them was cut",
    ),
    "exit code 126": Known("command-not-found", "the command is not executable"),
    "exit code 127": Known("command-not-found", "the command is not on the task's PATH"),
}
"""Kind of a failure, name of a signal or code → what is usually behind it."""


def find(said: str, *, log: str = "", traceback: str = "") -> Known | None:
    """The first row that knows `said`, the words a task ended with.

    `log`, for a task that ended without words or still waits: lines of it may tell, too.
    """
    for known in MESSAGES:
        places = [traceback] if known.is_traced else [said, log] if known.is_logged else [said]
        if any(known.matches(place) for place in places):
            return known
    return None


def of_circumstance(name: str) -> Known | None:
    return CIRCUMSTANCES.get(name)


class Kind(StrEnum):
    """What ended a task; what is restarted depends on it."""

    NODE_LOST = "node_lost"
    """Its node's agent or guard is gone."""
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed it for memory, and there is evidence of it."""
    PREEMPTED = "preempted"
    """It saved its state and left because its machine is about to go."""
    PORT_TAKEN = "port_taken"
    PERMANENT = "permanent"
    """It would fail again just so: the script, the packages or the hosts must change."""
    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    LINK_LOST = "link_lost"
    """Other hosts could not reach its host, which goes on."""
    STALLED = "stalled"
    """Nothing was heard of any task for longer than the spec allows."""
    FROZEN = "frozen"
    """A signal stopped its process, which neither ran nor ended."""
    LATE = "late"
    """It did not come, or did not end, when the others did."""
    UNFINISHED = "unfinished"
    """It was ended although it still worked: its time after the chief's end was over."""
    START_FAILED = "start_failed"
    """Its command could not be executed."""
    COLLATERAL = "collateral"
    """It follows another task's end."""


PREEMPTED = 42
"""tensorflow/python/distribute/failure_handling: PreemptionCheckpointHandler's exit code."""
TERMINATED = 128 + signal.SIGTERM
_SHELL_SIGNALS = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP),
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV),
        *(signal.SIGPIPE, signal.SIGALRM),
    }
)
"""A shell or a container engine says 128 + n for a child that signal n has killed. SIGTERM is not
among them: 143 is also how a program leaves that was asked to and obeyed."""
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM})
"""What a task said before such a signal is not what ended it."""
_NAMED = 3
"""Of the tasks that had ended, how many are listed."""
_OBSERVED_WORDS = {
    Kind.NODE_LOST: "its node is lost",
    Kind.LINK_LOST: "link to its host lost",
    Kind.FROZEN: "stopped by a signal",
    Kind.LATE: "it did not end while the others failed because of it",
    Kind.STALLED: "nothing was heard of it",
    Kind.START_FAILED: "its command could not be started",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """A task that ended badly by itself, or of which tfcluster saw that it will not go on."""

    task: str
    exit_code: int | None
    """None where a signal ended it, or where it has not ended."""
    signal: int | None
    node: str = ""
    attempt: int = 1
    """The task's own."""
    error: Mapping[str, Any] | None = None
    """The exception it reported: exception, message, file, line, traceback."""
    last_lines: str = ""
    """The end of its log."""
    out_of_memory: str | None = None
    """How it is known that the kernel killed it for memory, in words."""
    observed: Kind | None = None
    """What tfcluster itself saw: NODE_LOST, LINK_LOST, FROZEN, LATE, STALLED, UNFINISHED or
    START_FAILED."""
    words: str = ""
    """What was seen, in words, where `observed` is set."""
    saved: bool = False
    """The job has saved a checkpoint since the attempt began."""
    asks_for_keras_3: bool = False
    """The spec has ``keras.version: 3``."""

    @property
    def kind(self) -> Kind:
        if self.observed is not None:
            return self.observed
        if self.killed_by is not None:
            return self._kind_of_kill()
        if self._left_after_saving:
            return Kind.PREEMPTED
        if self.is_collateral:
            return Kind.COLLATERAL
        if self._known is not None and self._known.kind is not None:
            return Kind(self._known.kind)
        return Kind.EXIT_CODE if self.exception is None else Kind.EXCEPTION

    def _kind_of_kill(self) -> Kind:
        if self.killed_by == signal.SIGKILL and self.out_of_memory:
            return Kind.OUT_OF_MEMORY
        return Kind.COLLATERAL if self.is_collateral else Kind.SIGNAL

    @property
    def _left_after_saving(self) -> bool:
        return self.exit_code == PREEMPTED or (self.exit_code == TERMINATED and self.saved)

    @property
    def killed_by(self) -> int | None:
        """The signal that ended it, also where a shell in between made an exit code of it."""
        if self.signal is not None or self.exit_code is None or self.error is not None:
            return self.signal
        return self.exit_code - 128 if self.exit_code - 128 in _SHELL_SIGNALS else None

    @property
    def is_collateral(self) -> bool:
        """Whether its own words say that it only follows another task's end."""
        if self.observed is not None or self._left_after_saving:
            return False
        if self.killed_by not in (None, signal.SIGABRT):
            return False
        if self._known is not None and self._known.is_own:
            return False
        if (raised := self.exception) is not None:
            return log_errors.blames_a_peer(raised, self._traceback)
        return log_errors.tells_of_a_lost_peer(self.last_lines)

    @property
    def exception(self) -> log_errors.Raised | None:
        """The exception that ended it: as it reported it, else as its log shows it."""
        if self.error is not None:
            return log_errors.reported(self.error)
        return log_errors.read(self.last_lines) if self.exit_code == 1 else None

    @property
    def signature(self) -> tuple[str, str | None, int | None] | None:
        """Type, file and line of its exception: the same again means the same cause."""
        raised = self.exception
        return None if raised is None else (raised.exception, raised.file, raised.line)

    @property
    def reason(self) -> str:
        """One line or few, for people."""
        kind = self.kind
        if self.observed is not None:
            return self.words or _OBSERVED_WORDS.get(self.observed, str(self.observed))
        if kind is Kind.OUT_OF_MEMORY:
            return f"out of memory: {self.out_of_memory}"
        if kind is Kind.PREEMPTED:
            return f"preempted: it left with exit code {self.exit_code} after saving its state"
        if (raised := self.exception) is not None:
            return _describe(raised)
        if self.killed_by is not None:
            code = f" (exit code {self.exit_code})" if self.exit_code is not None else ""
            return f"killed by {signal_name(self.killed_by)}{code}"
        said = self.refused_arguments
        return f"exit code {self.exit_code}" + (f": {log_errors.brief(said)}" if said else "")

    @property
    def hint(self) -> str | None:
        """What helps, where that is known."""
        known = self._known or self._usual
        if known is not None and known.is_of_keras_3 and self.asks_for_keras_3:
            return WITHOUT_KERAS_3
        return None if known is None else known.hint

    @property
    def docs(self) -> str | None:
        """Where it is explained: ``docs/failures.md#anchor``."""
        known = self._known or self._usual
        return None if known is None else known.docs

    @property
    def _traceback(self) -> str:
        if self.error is not None:
            return str(self.error.get("traceback", ""))
        return self.last_lines

    @property
    def refused_arguments(self) -> str | None:
        """What the script said of its arguments where it ended because of them."""
        if self.exception is not None or self.killed_by is not None:
            return None
        return log_errors.refused_arguments(self.last_lines, self.exit_code)

    @property
    def _known(self) -> Known | None:
        """The known message it ended with."""
        if self.observed is not None:
            return find(self.words, log=self.last_lines)
        if self.killed_by in _FROM_OUTSIDE or self._left_after_saving:
            return None
        if (raised := self.exception) is not None:
            said = f"{raised.exception}: {raised.message}"
            return find(said, traceback=self._traceback)
        if self.refused_arguments is not None:
            return of_circumstance("refused_arguments")
        return find(log_errors.tail(self.last_lines), log=self.last_lines)

    @property
    def _usual(self) -> Known | None:
        """What is usually behind such an end when no message tells."""
        kind = self.kind
        if kind is Kind.SIGNAL and self.killed_by is not None:
            return of_circumstance(signal_name(self.killed_by))
        if kind is Kind.EXIT_CODE:
            return of_circumstance(f"exit code {self.exit_code}")
        return of_circumstance(kind)


def _describe(raised: log_errors.Raised) -> str:
    said = f"{raised.name}: {raised.message}" if raised.message else raised.name
    place = _place(raised)
    return log_errors.brief(said, place=f"({place})" if place and place not in said else "")


def _place(raised: log_errors.Raised) -> str:
    return "" if raised.file is None else f"{PurePath(raised.file).name}:{raised.line}"


def alone_with(peers: Sequence[str], failure: Failure) -> str:
    """How a task failed that needed its peers, which had ended well before."""
    more = f" and {len(peers) - _NAMED} more" if len(peers) > _NAMED else ""
    names = ", ".join(peers[:_NAMED]) + more
    place = _place(failure.exception) if failure.exception is not None else ""
    where = f" ({place})" if place else ""
    return f"{failure.task} did alone what all workers must do{where}: {names} had ended before"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
