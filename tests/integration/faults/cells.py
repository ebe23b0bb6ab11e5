"""The table of faults: what goes wrong, to whom and when, and what tfcluster owes the user."""

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
    "never-starts": "who has joined has started",
    "port-thief": "once joined, the port is TensorFlow's own socket until the task ends",
}
"""Kinds that exist in the first phase only, and why."""
FAULT_STEP = 12
_VERBS = {
    "sigkill": "kill",
    "sigstop": "stop",
    "sigterm": "term",
    "exception": "raise",
    "exit-3": "exit 3",
}
_PLACES = {"before-join": "join", "training": f"step {FAULT_STEP}"}
"""Of --chaos. A save it catches somewhere in its midst; the jobs here fail in a certain place."""
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
class Due:
    """What the run must come to."""

    root_cause: str | None
    """`kind` of the first diagnosis; None where nothing may be diagnosed."""
    attempts: int = 1
    code: int = 0
    from_steps: tuple[int, ...] = (0,)
    """Where all tasks of the last attempt start: at one of these."""


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
        """As ``up --chaos`` takes it, where it can inject it."""
        if self.phase not in _PLACES or self.kind not in _VERBS:
            return None
        return f"{_VERBS[self.kind]} {self.task} at {_PLACES[self.phase]}"

    @property
    def fault(self) -> str:
        """As the jobs of this folder take it from FAULT."""
        return "" if self.chaos or self == UNDISTURBED else f"{self.kind} {self.task} {self.phase}"

    @property
    def due(self) -> Due:
        """By the contract's `supervision`; the job saves after steps 5 and 10 and fails then."""
        steps: tuple[int, ...]
        steps = {"before-join": (0,), "training": (10,), "saving": (5,)}[self.phase]
        if (self.role, self.phase) == ("other", "saving"):
            steps = (5, 10)  # the chief may be through with the save in which the other dies
        if self.kind == "sigterm" and self.phase != "before-join":
            return Due(None)  # MultiWorkerMirroredStrategy swallows it
        if self.kind == "import-error":
            return Due("permanent", code=1)
        if self.kind == "never-starts":
            return Due("late", code=4)
        # An error of the script's own is tried again only if the job has saved since its start.
        if self.kind in {"exception", "exit-3"} and self.phase == "before-join":
            return Due(_DIAGNOSED[self.kind], code=1)
        return Due(_DIAGNOSED[self.kind], 2, from_steps=steps)


UNDISTURBED = Cell("nothing", "other", "training")


def exists(cell: Cell) -> bool:
    return cell.phase == "before-join" or cell.kind not in EMPTY


TABLE = tuple(filter(exists, (Cell(*names) for names in product(KINDS, ROLES, PHASES))))
"""Every cell that can exist."""

COVER = tuple(
    cell
    for cell in TABLE
    if cell.kind in EMPTY
    or (cell.phase, cell.role)
    in {("before-join", "chief"), ("training", "other"), ("saving", "chief")}
)
"""Each kind once per role and once per phase."""
