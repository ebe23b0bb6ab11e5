"""The exceptions for every failure a user can meet, each with the exit code of the command.

::

    TfclusterError                  70  an internal error of tfcluster
    ├── UsageError                   2  the command line or the spec must change
    │   ├── SpecError                2  all problems of one spec file, each with its place
    │   ├── UnknownRunError          2  RUN names no run, or more than one
    │   └── FunctionError            2  a function, its arguments or its value cannot be sent
    ├── SetupError                   3  the environment: the machine, a node, the run folder
    │   ├── PortInUseError           3  another process holds a fixed port
    │   ├── InterpreterError         3  a Python does not work, or lacks what the job needs
    │   ├── PreflightError           3  the checks of the nodes found what would fail
    │   ├── PrepareError             3  the job's prepare step failed
    │   ├── NodeLostError            3  an agent or its guard died
    │   └── RunFolderError           3  the run folder cannot be written
    ├── DeadlineError                4  a deadline of the spec passed
    ├── CollateralError              5  `join`: a task on another machine failed first
    ├── NoProgressError              1  the scheduler ends the job again and again before it saves
    └── JobEndedError              143  the scheduler ended the job that the run was in

A message says what is wrong, where, and what to do. It is built in the exception class and
printed once, by ``tfcluster.cli.main``.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tfcluster.control_characters import remove_controls
from tfcluster.node_loss import LossNature


class TfclusterError(Exception):
    """The base of all errors: a message, what the user can do (`fix`), and an exit code."""

    exit_code = 70
    """The exit code of the command that ends with this error."""

    def __init__(self, message: str, *, fix: str = "") -> None:
        self.message = remove_controls(message)  # Python prints what a program does not catch
        self.fix = remove_controls(fix)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message}\n  → {self.fix}" if self.fix else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the finished message, because subclasses are built from other arguments."""
        return _restore, (type(self), self.args, self.__dict__)


def _restore(
    kind: type[TfclusterError], args: tuple[object, ...], values: dict[str, Any]
) -> TfclusterError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(values)
    return error


class UsageError(TfclusterError):
    """A command line or a spec that cannot be carried out."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in a spec: where it is, what is wrong, what to write instead."""

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

    @classmethod
    def at(cls, place: str, message: str, fix: str = "") -> SpecError:
        """Return the error of a spec with one problem."""
        return cls([Problem(place, message, fix)])


class UnknownRunError(UsageError):
    """A RUN argument that names no run, or more than one where exactly one is needed."""


class FunctionError(UsageError):
    """A function, its arguments or its value that cannot be sent between processes."""


class SetupError(TfclusterError):
    """An environment or setup error: something outside the spec prevents the run."""

    exit_code = 3

    def __init__(self, message: str, *, fix: str = "", node: str = "") -> None:
        """Build the message from what is wrong, after the name of the `node` that it is about."""
        super().__init__(f"{node} {message}" if node else message, fix=fix)
        self.problem = remove_controls(message)
        """The message without the node, for a table whose column says it."""


_EXTRAS = {"ui": "the web page", "kubernetes": "the backend kubernetes"}
"""Extra of tfcluster → what needs its packages."""


def require_extra(extra: str, *modules: str) -> None:
    """Raise SetupError unless the `modules` of an extra of tfcluster are installed."""
    from importlib.util import find_spec

    for module in modules:
        found = find_spec(module)
        if found is None or found.origin is None:  # a folder of that name
            needs = f"{_EXTRAS[extra]} needs tfcluster[{extra}]"
            message = f"{needs}: the Python package {module} is not installed"
            raise SetupError(message, fix=f"pip install 'tfcluster[{extra}]'")


class PortInUseError(SetupError):
    """A fixed port of the spec that another process holds, or a range of which none is free."""

    def __init__(
        self,
        address: str,
        *,
        pid: int | None,
        run_id: str | None,
        command: str | None,
        is_range: bool = False,
    ) -> None:
        if is_range:
            fix = "widen the range; a node needs a port for each of its tasks"
            super().__init__(f"no port of runtime.ports is free: {address}", fix=fix)
            return
        holder = f"pid {pid}" if pid else "a process, this user cannot see which"
        if command:
            holder += f" ({command})"
        if run_id:
            holder += f" of run {run_id}"
            fix = f"stop it: `tfcluster down {run_id}`, or write another port (0: any free port)"
        elif pid:
            fix = f"end pid {pid}, or write another port in the spec (0: any free port)"
        else:
            fix = "write another port in the spec (0: any free port)"
        super().__init__(f"port {address} is in use: held by {holder}", fix=fix)


class InterpreterError(SetupError):
    """A Python that does not work, or lacks what the job needs."""


class PreflightError(SetupError):
    """All problems that the checks of the nodes found, reported together."""

    HEAD = "nothing was started"

    def __init__(self, findings: Sequence[tuple[str, str, str]]) -> None:
        """Build the message from `findings`: (node, what is wrong, what to do)."""
        lines = [f"{node}: {problem}\n  → {fix}" for node, problem, fix in findings]
        super().__init__(f"{self.HEAD}:\n" + "\n".join(lines))


class PrepareError(SetupError):
    """A failed prepare step of the job; no task was started."""


class NodeLostError(SetupError):
    """A node's agent, or the guard beside it, died while the run needed it."""

    def __init__(
        self,
        message: str,
        *,
        fix: str = "",
        node: str = "",
        nature: LossNature = LossNature.UNKNOWN,
    ) -> None:
        super().__init__(message, fix=fix, node=node)
        self.nature = nature

    @classmethod
    def raise_all(cls, errors: Sequence[SetupError]) -> None:
        """Raise `errors` as one error with each fix; return if there are none.

        A single error is raised as it is.
        """
        if len(errors) == 1:
            raise errors[0]
        if errors:
            *others, last = errors
            messages = dict.fromkeys([*map(str, others), last.message])
            raise cls("\n".join(messages), fix=last.fix)


class RunFolderError(SetupError):
    """A run folder that cannot be created or written."""


class DeadlineError(TfclusterError):
    """A deadline of ``supervision`` that passed."""

    exit_code = 4


class CollateralError(TfclusterError):
    """A failure here that only followed one on another machine: start all machines again."""

    exit_code = 5


class JobEndedError(TfclusterError):
    """The scheduler ended the job that the run was in, and the run does not come back by itself."""

    exit_code = 143


class NoProgressError(TfclusterError):
    """The job was ended again and again without a newer checkpoint: it would go on for ever."""

    exit_code = 1

    def __init__(self, job: str, run_id: str, *, starts: int, limit: str, has_saved: bool) -> None:
        """Build the message; `limit`: the field of the spec whose time was over, if it was one."""
        newer = "newer " if has_saved else ""
        within = f" within {limit}" if limit else ""
        fix = "save more often (`tfcluster help guides/checkpoints`)"
        fix += f", or set {limit} to a longer time" if limit else ""
        resume = f"; `tfcluster up --resume {run_id}` continues from the newest checkpoint"
        super().__init__(
            f"no {newer}checkpoint{within}: {starts} starts of job {job} in a row were ended before"
            " they had saved one",
            fix=fix + (resume if has_saved else ""),
        )


def join_first(names: Collection[object], most: int = 8) -> str:
    """Return the first `most` of `names` for a message, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(str, islice(names, most))) + more


def signal_name(number: int) -> str:
    """Return ``SIGKILL`` for 9, or ``signal 63`` if this system has no name for it."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def count_names(names: Iterable[object]) -> str:
    """Return each name once, with how often it occurs: ``2 × NVIDIA H200``."""
    return ", ".join(f"{count} × {name}" for name, count in Counter(names).items())


def similar_file(name: str, names: Collection[str]) -> str | None:
    """Return the file among `names` that a user who wrote `name` may have meant, or None.

    Only among equal stems do the endings count, as those of most files are the same.
    """
    import difflib

    stem, _, ending = name.rpartition(".")
    best_last = sorted(names, key=lambda known: (known.endswith(f".{ending}"), known))
    stems = {known.rpartition(".")[0] or known: known for known in best_last}
    near = difflib.get_close_matches(stem or name, stems, n=1)
    return stems[near[0]] if near else None
