"""Every failure a user can meet, with the exit code it ends the command with.

::

    TfclusterError                  70  a fault in tfcluster itself
    ├── UsageError                   2  the command line or the spec must change
    │   ├── SpecError                2  all problems of one spec file, each with its place
    │   └── UnknownRunError          2  RUN names no run, or more than one
    ├── SurroundingsError            3  the machine, a node or the run folder must change
    │   ├── PortInUseError           3  a fixed port is held by somebody else
    │   ├── InterpreterError         3  a Python that does not work, or lacks what the job needs
    │   ├── PreflightError           3  a look at the nodes found what would fail
    │   ├── PrepareError             3  the job's prepare step failed
    │   ├── NodeLostError            3  an agent or its guard went away
    │   └── RunFolderError           3  the run folder cannot be written
    ├── DeadlineError                4  a deadline of the spec passed
    └── CollateralError              5  `join`: a task elsewhere failed first

A message says what is wrong, where, and what to do; it is built here, in the class, and
printed once, by ``tfcluster.cli.main``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class TfclusterError(Exception):
    """Base of all; `exit_code` is what the command exits with, `fix` what the user can do."""

    exit_code = 70

    def __init__(self, message: str, *, fix: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.fix}" if self.fix else self.message


class UsageError(TfclusterError):
    """What the user typed or wrote cannot be carried out."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a spec: where it stands, what is wrong, what to write instead."""

    place: str
    """``file:line:column``, or the name of a command-line option."""
    message: str
    fix: str = ""

    def __str__(self) -> str:
        head = f"{self.place}: {self.message}"
        return f"{head}\n  → {self.fix}" if self.fix else head


class SpecError(UsageError):
    """All problems of one spec, reported together."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownRunError(UsageError):
    """RUN names no run, or more than one where exactly one is needed."""


class SurroundingsError(TfclusterError):
    """Something outside the spec stands in the way."""

    exit_code = 3


class PortInUseError(SurroundingsError):
    """A fixed port of the spec is held by another process."""

    def __init__(
        self, address: str, *, pid: int | None, run_id: str | None, command: str | None
    ) -> None:
        holder = f"pid {pid}" if pid else "a process this user cannot see"
        if command:
            holder += f" ({command})"
        if run_id:
            holder += f" of run {run_id}"
        if run_id:
            fix = f"end it with `tfcluster down {run_id}`, or write another port (0 = choose one)"
        elif pid:
            fix = f"end pid {pid}, or write another port in the spec (0 = choose one)"
        else:
            fix = "write another port in the spec (0 = choose one)"
        super().__init__(f"port {address} is in use: held by {holder}", fix=fix)
        self.address, self.pid, self.run_id = address, pid, run_id


class InterpreterError(SurroundingsError):
    """A Python that does not work, or that lacks what the job needs."""


class PreflightError(SurroundingsError):
    """All that a look at the nodes found to be wrong, told together."""

    HEAD = "nothing was started"

    def __init__(self, findings: Sequence[tuple[str, str, str]]) -> None:
        """`findings`: (node, what is wrong, what to do)."""
        lines = [f"{node}: {what}\n  → {fix}" for node, what, fix in findings]
        super().__init__(f"{self.HEAD}:\n" + "\n".join(lines))


class PrepareError(SurroundingsError):
    """The job's prepare step failed, so no task was started."""


class NodeLostError(SurroundingsError):
    """A node's agent, or the guard beside it, went away while the run needed it."""

    @classmethod
    def raise_all(cls, errors: Sequence[SurroundingsError]) -> None:
        """Raise nothing for none, the only one as it is, and several as one, each with its cure."""
        if len(errors) == 1:
            raise errors[0]
        if errors:
            *others, last = errors
            told = dict.fromkeys([*map(str, others), last.message])
            raise cls("\n".join(told), fix=last.fix)


class RunFolderError(SurroundingsError):
    """The run folder cannot be made or written."""


class DeadlineError(TfclusterError):
    """A deadline of ``supervision`` passed."""

    exit_code = 4


class CollateralError(TfclusterError):
    """What failed here only followed a failure on another machine: start all of them again."""

    exit_code = 5
