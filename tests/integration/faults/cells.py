"""The table of faults (kind × role × phase) and the expected outcome of each."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

KINDS = (
    "sigkill",
    "sigstop",
    "sigterm",
    "exception",
    "exit-3",
    "out-of-memory",
    "import-error",
    "never-starts",
    "port-thief",
)
ROLES = ("chief", "other")
PHASES = ("before-join", "training", "saving")

EMPTY = {
    "import-error": "imports are done before the gang is joined; a later one is an exception",
    "never-starts": "a task that has joined has started",
    "port-thief": "once joined, the port is TensorFlow's own socket until the task ends",
}
"""The kinds that exist in the first phase only, with the reason."""
FAULT_STEP = 12
_VERBS = {
    "sigkill": "kill",
    "sigstop": "stop",
    "sigterm": "term",
    "exception": "raise",
    "exit-3": "exit 3",
}
_PLACES = {"before-join": "join", "training": f"step {FAULT_STEP}"}
"""The places of --chaos by phase.

--chaos hits a save at any moment; the jobs of this folder fail at a fixed place in it.
"""
_DIAGNOSED = {
    "sigkill": "signal",
    "sigstop": "frozen",
    "sigterm": "signal",
    "exception": "exception",
    "exit-3": "exit_code",
    "out-of-memory": "out_of_memory",
    "port-thief": "port_taken",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The expected outcome of a run."""

    root_cause: str | None
    """The `kind` of the first diagnosis; None if there must be no diagnosis."""
    attempts: int = 1
    code: int = 0
    from_steps: tuple[int, ...] = (0,)
    """All tasks of the last attempt must start at the same one of these steps."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault of one task in one phase."""

    kind: str
    role: str
    phase: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.role}-{self.phase}"

    @property
    def task(self) -> str:
        return "worker:0" if self.role == "chief" else "worker:1"

    @property
    def chaos(self) -> str | None:
        """Return the fault as an argument of `up --chaos`, or None if that cannot inject it."""
        if self.phase not in _PLACES or self.kind not in _VERBS:
            return None
        return f"{_VERBS[self.kind]} {self.task} at {_PLACES[self.phase]}"

    @property
    def fault(self) -> str:
        """Return the value of FAULT for the jobs of this folder, empty if --chaos injects it."""
        return "" if self.chaos or self == UNDISTURBED else f"{self.kind} {self.task} {self.phase}"

    @property
    def expected(self) -> Outcome:
        """Return the expected outcome by the contract's `supervision`.

        The job saves after steps 5 and 10, and fails in the second save or at FAULT_STEP.
        """
        steps: tuple[int, ...]
        steps = {"before-join": (0,), "training": (10,), "saving": (5,)}[self.phase]
        if (self.role, self.phase) == ("other", "saving"):
            steps = (5, 10)  # the chief may have finished the save in which the other task dies
        if self.kind == "sigterm" and self.phase != "before-join":
            return Outcome(None)  # MultiWorkerMirroredStrategy swallows it
        if self.kind == "import-error":
            return Outcome("permanent", code=1)
        if self.kind == "never-starts":
            return Outcome("late", code=4)
        # After an error in the script the job restarts only if it has saved since its start.
        if self.kind in {"exception", "exit-3"} and self.phase == "before-join":
            return Outcome(_DIAGNOSED[self.kind], code=1)
        return Outcome(_DIAGNOSED[self.kind], 2, from_steps=steps)


UNDISTURBED = Cell("nothing", "other", "training")


def exists(cell: Cell) -> bool:
    return cell.phase == "before-join" or cell.kind not in EMPTY


TABLE = tuple(filter(exists, (Cell(*names) for names in product(KINDS, ROLES, PHASES))))
"""Every cell that can exist."""
