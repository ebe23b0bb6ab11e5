"""The failure of one task: its kind, the reason in words, and the hint and page for the user.

`CIRCUMSTANCES` has the hints for failures without a known message; `known_errors` has the others.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import PurePath
from typing import Any, Final

from tfcluster import kinds
from tfcluster.errors import signal_name
from tfcluster.node_loss import LossNature
from tfcluster.plans.keras_settings import SWITCH, KerasPatch
from tfcluster.supervision import log_errors
from tfcluster.supervision.known_errors import MESSAGES, PERMANENT, KnownError

TF_KERAS = "write `import tf_keras as keras`"
WITHOUT_KERAS_3 = (
    "the spec asks for Keras 3, which does not support this: --set keras.version=2 runs the script"
    " with tf_keras"
)
WITHOUT_NETWORK = (
    "the spec asks for a private or simulated network, where tasks reach only each other: download"
    " in `prepare`, which has the network of this machine, or --set runtime.network=host"
)
WHY_UNPATCHED: Mapping[KerasPatch, str] = {
    "no hooks": "the task has no hooks. Start it as a `script` or `module` with hooks on",
    "off": f"{SWITCH} is off. Remove it",
    "on": "`fit` runs in a child of the script that has no hooks. Call it in the script itself, or"
    " keep PYTHONPATH in the child's environment",
}
"""The state of a task's patch → why its Keras 3 failed like an unpatched one, and what to do."""
FIX: Final = ". Fix: {}"
"""The end of an alert's message."""
CIRCUMSTANCES: Mapping[str | int, KnownError] = {
    "SIGKILL": KnownError(
        "sigkill",
        "possible causes: the kernel ran out of memory (see `dmesg`, or the container's limit), a"
        " batch system's limit, `kill -9`",
    ),
    "SIGSEGV": KnownError(
        "native-crash",
        "a crash in native code, usually packages or drivers that do not fit TensorFlow; the end of"
        " its log shows the Python stacks",
    ),
    "SIGABRT": KnownError(
        "native-crash",
        "native code aborted; the last log line that begins with F, or has CHECK failed, says why",
    ),
    "SIGILL": KnownError(
        "illegal-instruction", "TensorFlow was built for a newer processor: its wheels need AVX"
    ),
    "SIGBUS": KnownError(
        "bus-error", "/dev/shm or a disk is full, or a file shrank while it was mapped into memory"
    ),
    "SIGTERM": KnownError(
        "sigterm", "something else stopped it: a batch system, a container engine or a user"
    ),
    "out_of_memory": KnownError(
        "out-of-memory",
        "use fewer tasks on this machine, smaller batches or shuffle buffers, no cache() in memory",
    ),
    "preempted": KnownError(
        "preempted", "its machine is being preempted; the task saved its state"
    ),
    "node_lost": KnownError(
        "node-lost",
        "its host or its agent is gone: check that the machine is up and has free memory",
    ),
    "link_lost": KnownError(
        "link-lost",
        "the host is up, but TensorFlow's connections to it broke: check its network, the"
        " firewalls and the idle time-outs between the hosts",
    ),
    "states_differ": KnownError(
        "states-differ",
        "restore in every worker, what was saved below $TFCLUSTER_CHECKPOINT_DIR, which tfcluster"
        " fills for every task before it starts, or in a folder that all hosts share",
    ),
    "diverged": KnownError(
        "diverged",
        "a smaller learning rate, gradient clipping, or loss scaling with mixed_float16; continue"
        " from a checkpoint before that step: `tfcluster up --resume RUN@STEP`",
    ),
    "suspended": KnownError(
        "suspended",
        "TensorFlow ends tasks that hear nothing of each other for 10 s, and the run goes on from"
        " its newest checkpoint: save often, or use a partition that requeues jobs instead",
    ),
    "frozen": KnownError("frozen", "something stopped the process: SIGSTOP, Ctrl-Z or a debugger"),
    "late": KnownError("late", "the end of its log shows what it did last and its threads' stacks"),
    "unfinished": KnownError(
        "unfinished",
        "give it more time: --set supervision.finish_grace_s=SECONDS; a worker that only serves"
        " should call tf.distribute.Server.join(), and is then stopped after the chief",
    ),
    "stalled": KnownError(
        "stalled",
        "tasks may wait for each other (saving or evaluating on the chief alone, uneven batches):"
        " see the stacks in the logs",
        compares_steps=True,
    ),
    "start_failed": KnownError("start-failed", "`tfcluster plan --task` shows its command"),
    "refused_arguments": KnownError(
        "refused-arguments",
        "the script rejects its arguments: `tfcluster plan --task` shows them, and whether they"
        " come from job.args or job.per_task",
        kind=PERMANENT,
    ),
    "chief_alone": KnownError(
        "chief-alone",
        "all workers must train the same number of steps, and save, evaluate and predict together:"
        " move these calls out of `if index == 0:`; workers other than the chief save into a"
        " folder of their own",
        kind=PERMANENT,
    ),
    "ended_early": KnownError(
        "ended-early",
        "find out why it ended early: an exception that the script catches, `sys.exit` or"
        " `os._exit` in a callback or a library, a condition that only this worker meets. Let it"
        " end with another exit code",
        kind=PERMANENT,
    ),
    "collateral": KnownError(
        "no-cause",
        "every task blames another and none failed by itself: check the network between them",
    ),
    126: KnownError("command-not-found", "the command is not executable"),
    127: KnownError("command-not-found", "the command is not on the task's PATH"),
}
"""Kind of a failure, signal name or exit code → its usual cause."""


def find(
    message: str, *, log: str = "", traceback: str = "", cause: str | None = ""
) -> KnownError | None:
    """Return the known error with this `cause`, or the first that matches `message`, or None.

    `message`: the last output of a task. `log` is searched too for errors that a task writes while
    it still waits (`is_logged`); `traceback` for those that only a traceback identifies
    (`is_traced`).
    """
    if cause and (named := [known for known in MESSAGES if known.cause == cause]):
        return named[0]
    for known in MESSAGES:
        texts = [message, log] if known.is_logged else [message]
        if any(known.matches(text) for text in ([traceback] if known.is_traced else texts)):
            return known
    return None


class Kind(StrEnum):
    """The kinds of failure; the restart policy depends on them."""

    NODE_LOST = "node_lost"
    """The agent or the guard of its node is gone."""
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed it for lack of memory, with evidence for that."""
    PREEMPTED = "preempted"
    """The task saved its state and left because its machine is being preempted."""
    PORT_TAKEN = "port_taken"
    PERMANENT = "permanent"
    """The task would fail the same way again: the script, the packages or the hosts must change."""
    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    LINK_LOST = "link_lost"
    """Other hosts could not reach its host, which is still up."""
    STALLED = "stalled"
    """No task reported anything for longer than the spec allows."""
    DIVERGED = "diverged"
    """A loss is NaN or infinite, and the spec ends such a run."""
    SUSPENDED = "suspended"
    """The whole run was suspended, for longer than its tasks wait for each other."""
    FROZEN = "frozen"
    """A signal stopped its process, which neither runs nor ends."""
    LATE = "late"
    """The task did not join, or did not end, when the others did."""
    UNFINISHED = "unfinished"
    """The task still worked when its time after the chief's end was over, and was stopped."""
    START_FAILED = "start_failed"
    """The command could not be executed."""
    COLLATERAL = "collateral"
    """The failure is the consequence of another task's end."""


_KINDS_OF_LOSS: Mapping[LossNature, Kind] = {
    LossNature.PREEMPTED: Kind.PREEMPTED,
    LossNature.OUT_OF_MEMORY: Kind.OUT_OF_MEMORY,
    LossNature.PERMANENT: Kind.PERMANENT,
}


def kind_of_loss(nature: LossNature) -> Kind:
    """Return the kind of failure of tasks whose node is lost."""
    return _KINDS_OF_LOSS.get(nature, Kind.NODE_LOST)


def kind_of_leaving(nature: LossNature) -> Kind:
    """Return the kind of failure of tasks whose node is taken away, but still answers.

    That is a preemption, unless the node is known to be lost in another way. A machine that was
    silent ends, once it is back, what was given up meanwhile: a preemption, too.
    """
    is_taken = nature in (LossNature.UNKNOWN, LossNature.SILENT)
    return Kind.PREEMPTED if is_taken else kind_of_loss(nature)


PREEMPTED = 42
"""The exit code of PreemptionCheckpointHandler (tensorflow/python/distribute/failure_handling)."""
TERMINATED = 128 + signal.SIGTERM
_SHELL_SIGNALS = frozenset(
    {
        *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGTRAP),
        *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV),
        *(signal.SIGPIPE, signal.SIGALRM),
    }
)
"""Signals that a shell or a container engine reports as exit code 128 + n of its child.

SIGTERM is not among them: a program that obeys it may exit with 143, too."""
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL})
"""Signals for which Python's `faulthandler` writes the stacks."""
_CHILD_SIGNALS = _CRASHES | {signal.SIGKILL}
"""Signals that a Python script which exits with its child's `returncode` reports as 256 - n.

SIGHUP is not among them: a program may well exit with -1."""
_EXTERNAL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM})
"""Signals that come from another process: the task's last output is not their cause."""


@dataclass(frozen=True)
class Failure:
    """The failure of a task that ended badly, or that tfcluster found unable to go on.

    The properties decide once what it means, and nothing else looks at the task's output: verdicts,
    the restart policy and the texts for the user only read them.
    """

    task: str
    exit_code: int | None
    """The exit code; None where a signal ended the task, or where it has not ended."""
    signal: int | None
    node: str = ""
    attempt: int = 1
    """The task's attempt, which may differ from the gang's."""
    error: Mapping[str, Any] | None = None
    """The exception the task reported: exception, message, file, line, traceback."""
    last_lines: str = ""
    """The end of the task's log."""
    out_of_memory: str | None = None
    """The evidence that the kernel killed it for lack of memory, in words."""
    observed: Kind | None = None
    """The kind where tfcluster itself observed the failure; what the task wrote does not count."""
    description: str = ""
    """The observation in words, where `observed` is set."""
    loss: LossNature | None = None
    """The nature of the loss of its node, if that is lost."""
    known: KnownError | None = None
    """The usual cause, where tfcluster itself observed it."""
    saved: bool = False
    """The job has saved a checkpoint since the attempt began."""
    asks_for_keras_3: bool = False
    """The spec has ``keras.version: 3``."""
    is_cut_off: bool = False
    """The task's network is private or simulated: it reaches only the run's other tasks."""
    keras_patch: KerasPatch = "on"
    backend: str = ""
    """The backend of the task's node, which may have hints of its own."""

    @cached_property
    def kind(self) -> Kind:
        if self.observed is not None:
            return self.observed
        if self._left_after_saving:
            return Kind.PREEMPTED
        if self.killed_by == signal.SIGKILL and self.out_of_memory:
            return Kind.OUT_OF_MEMORY
        if self._blames_a_peer:
            return Kind.COLLATERAL
        if self.killed_by is not None:
            return Kind.SIGNAL
        if self._known_error is not None and self._known_error.kind is not None:
            return Kind(self._known_error.kind)
        return Kind.EXIT_CODE if self.exception is None else Kind.EXCEPTION

    @property
    def is_own_end(self) -> bool:
        """True if its node is lost because the job or the spec has ended it."""
        return self.loss is not None and self.loss.is_own_end

    @property
    def is_collateral(self) -> bool:
        """True if the task's own output says that it failed because of another task's end."""
        return self.kind is Kind.COLLATERAL

    @property
    def _left_after_saving(self) -> bool:
        code = self._child_code or self.exit_code
        return code == PREEMPTED or (code == TERMINATED and self.saved)

    @property
    def _blames_a_peer(self) -> bool:
        if self.killed_by not in (None, signal.SIGABRT):
            return False
        if self._known_error is not None and self._known_error.is_root_cause:
            return False
        if self.exception is not None and self._child_code is None:
            return log_errors.is_lost_peer_error(self.exception, self._traceback)
        return log_errors.has_lost_peer_message(self._own_output)

    @property
    def killed_by(self) -> int | None:
        """The signal that ended the task, or the child in which its script trains.

        A shell exits with 128 + n then, and a Python script with -n, or with an exception.
        """
        if self._child_code is not None and self._child_code < 0:
            return -self._child_code
        if self.signal is not None or self.exit_code is None or self.error is not None:
            return self.signal
        if self.exit_code - 128 in _SHELL_SIGNALS:
            return self.exit_code - 128
        return 256 - self.exit_code if 256 - self.exit_code in _CHILD_SIGNALS else None

    @property
    def _child_code(self) -> int | None:
        """The returncode of the child whose failure made the script raise CalledProcessError."""
        code = (self.error or {}).get("child_code")
        return code if isinstance(code, int) else None

    @cached_property
    def exception(self) -> log_errors.RaisedError | None:
        """The exception that ended the task: as reported, else as found in its log."""
        if self.error is not None:
            return log_errors.exception_from_report(self.error)
        return log_errors.parse_exception(self.last_lines) if self.exit_code == 1 else None

    @property
    def signature(self) -> tuple[str, str | None, int | None] | None:
        """Type, file and line of the exception; equal signatures mean the same cause."""
        raised = self.exception
        return None if raised is None else (raised.exception, raised.file, raised.line)

    @property
    def reason(self) -> str:
        """The reason in one line or a few, for the user."""
        if self.observed is not None:
            return self.description or str(self.observed)
        if self.kind is Kind.OUT_OF_MEMORY:
            return f"out of memory: {self.out_of_memory}"
        if self.kind is Kind.PREEMPTED:
            return f"preempted: it left with exit code {self.exit_code} after saving its state"
        if (raised := self.exception) is not None:
            return describe_exception(raised, self._traceback)
        if self.killed_by is not None:
            code = f" (exit code {self.exit_code})" if self.exit_code is not None else ""
            return f"killed by {signal_name(self.killed_by)}{code}{self._crash}"
        refusal = (
            f": {log_errors.shorten(self.refused_arguments)}" if self.refused_arguments else ""
        )
        return f"exit code {self.exit_code}{refusal}"

    @property
    def has_only_a_code(self) -> bool:
        """True if `reason` says no more than the exit code."""
        has_more = self.observed or self.exception or self.killed_by or self.refused_arguments
        return not has_more and self.kind not in (Kind.OUT_OF_MEMORY, Kind.PREEMPTED)

    @property
    def place(self) -> str:
        """The line of the user's code that raised the exception, such as ``main.py:12``, or ""."""
        return "" if self.exception is None else _location(self.exception)

    @property
    def hint(self) -> str | None:
        """The hint for the user, or None."""
        if (known := self._explanation) is None:
            return None
        if known.is_keras_3_only and self.asks_for_keras_3:
            return WITHOUT_KERAS_3
        if known.is_unpatched_keras_3:
            return f"{known.hint}: {WHY_UNPATCHED[self.keras_patch]}, or {TF_KERAS}"
        if known.needs_network and self.is_cut_off:
            return WITHOUT_NETWORK
        hints = kinds.get(self.backend).hints if self.backend else {}
        return hints.get(known.anchor, known.hint)

    @property
    def compares_steps(self) -> bool:
        """True if the steps of all tasks may explain it."""
        return self._explanation is not None and self._explanation.compares_steps

    @property
    def docs(self) -> str | None:
        """The page that explains the failure (``docs/failures.md#anchor``), or None."""
        return None if (known := self._explanation) is None else known.docs

    @property
    def _traceback(self) -> str:
        return self.last_lines if self.error is None else str(self.error.get("traceback", ""))

    @property
    def _own_output(self) -> str:
        """The end of the log without the stacks of a crash, which hide what the task wrote last."""
        is_crash = self.killed_by in _CRASHES
        return log_errors.before_crash(self.last_lines) if is_crash else self.last_lines

    @property
    def _crash(self) -> str:
        """Describe the crash and its place, as the end of the reason; empty without stacks."""
        crash = log_errors.parse_crash(self.last_lines) if self.killed_by in _CRASHES else None
        return "" if crash is None else f": {crash.exception} in {_location(crash) or '?'}"

    @cached_property
    def refused_arguments(self) -> str | None:
        """The script's message where it ended because it rejects its arguments, else None."""
        if self.exception is not None or self.killed_by is not None:
            return None
        return log_errors.refused_arguments(self.last_lines, self.exit_code)

    @cached_property
    def _known_error(self) -> KnownError | None:
        """The known error whose message the task ended with, or None."""
        if self.known is not None:
            return self.known
        losses = kinds.get(self.backend).losses if self.backend else {}
        if self.loss is not None and self.loss in losses:
            return KnownError(*losses[self.loss])
        if self.observed is not None:
            return find(self.description, log=self.last_lines)
        if self.killed_by in _EXTERNAL_SIGNALS or self._left_after_saving:
            return None
        if (raised := self.exception) is not None:
            cause = (self.error or {}).get("cause")
            message = f"{raised.exception}: {raised.message}"
            return find(message, traceback=self._traceback, cause=cause)
        if self.refused_arguments is not None:
            return CIRCUMSTANCES["refused_arguments"]
        return find(log_errors.tail(self._own_output), log=self.last_lines)

    @property
    def _explanation(self) -> KnownError | None:
        """The known error, else the usual cause of such an end, or None."""
        end: str | int | None = str(self.kind)
        if self.kind is Kind.SIGNAL and self.killed_by is not None:
            end = signal_name(self.killed_by)
        elif self.kind is Kind.EXIT_CODE:
            end = self.exit_code
        return self._known_error or (None if end is None else CIRCUMSTANCES.get(end))


def describe_exception(raised: log_errors.RaisedError, traceback: str = "") -> str:
    """Return name, message and place of an exception; without a message its line of code."""
    text = raised.name
    if log_errors.remove_noise(raised.message).strip():
        text += f": {raised.message}"
    elif code := log_errors.code_at(traceback, raised.file, raised.line):
        text += f" in `{code}`"
    place = _location(raised)
    return log_errors.shorten(text, place=f"({place})" if place and place not in text else "")


def _location(raised: log_errors.RaisedError) -> str:
    return "" if raised.file is None else f"{PurePath(raised.file).name}:{raised.line}"
