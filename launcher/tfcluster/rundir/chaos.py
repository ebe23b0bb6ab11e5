"""Injected faults (``up --chaos``): parses them, passes them to tasks, and records their effects.

::

    kill worker:1 at step 50
    exit 3 worker:0 at save 2 in attempt 2; stop worker:1 at join
    partition worker:1 for 20s; slow worker:1 to 10mbit at step 50

A task injects a fault into itself, exactly at its place: the fault is in the task's
``TFCLUSTER_SETTINGS`` of the attempt it is meant for (see tfcluster_workers/chaos.py). Faults that
a task cannot inject are ordered by the coordinator as soon as a task reports the place: the death
of a node's agent, the faults of a simulated network, which its backend carries out, and those of
a task that serves, because it takes no steps.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tfcluster.agent import catalogue as msg
from tfcluster.errors import UsageError
from tfcluster.plans.keras_settings import settings_in
from tfcluster.plans.plan import Command, EnvVar, Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.snapshot import RunSnapshot

KILL_AGENT: Final = "kill-agent"
PARTITION: Final = "partition"
SLOW: Final = "slow"
POWER_OFF: Final = "power-off"
OF_NODES: Final = (PARTITION, SLOW, POWER_OFF)
"""Faults of a node of a simulated network (`backends.base.Nodes.disturb`)."""
VERBS: Final = ("kill", "stop", "term", "hang", "raise", "exit", KILL_AGENT, *OF_NODES)
PLACES: Final = ("step", "start", "join", "save")
GRAMMAR: Final = (
    "write WHAT TASK WHERE [in attempt N], several separated by ;. WHAT: kill, stop, term, "
    "hang, raise, exit CODE, or kill-agent (with a task or a node). WHERE: at step N, at start, "
    "at join, at save [N]. For example: kill worker:1 at step 50. In a simulated network also: "
    "partition TASK, slow TASK to RATE, power-off TASK, each [WHERE] [for DURATION]"
)

_SIGNALS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "term": signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, which is injected once."""

    text: str
    """The fault as the user wrote it, which events and the summary show."""
    verb: str
    task: TaskId
    """The task it hits; for ``kill-agent NODE`` a task of that node."""
    witness: TaskId
    """The task that reports when the place is reached: mostly `task` itself."""
    node: str
    place: str
    number: int | None = None
    """The number of the step or of the save."""
    attempt: int = 1
    exit_code: int | None = None
    for_s: float | None = None
    """The seconds until a node is as before; None: it stays so."""
    rate: float | None = None
    """The bits per second that ``slow`` leaves."""

    @property
    def is_of_node(self) -> bool:
        """True if the backend injects it into the node (`OF_NODES`)."""
        return self.verb in OF_NODES

    @property
    def is_ordered(self) -> bool:
        """True if the coordinator injects it once the witness has reported the place."""
        return self.verb == KILL_AGENT or self.is_of_node or self.witness != self.task

    @property
    def setting(self) -> dict[str, Any]:
        """The entry for `witness` in ``TFCLUSTER_SETTINGS``."""
        entry = {
            "fault": self.text,
            "do": "report" if self.is_ordered else self.verb,
            "place": self.place,
            "number": self.number,
            "exit_code": self.exit_code,
            "task": str(self.task) if self.witness != self.task else None,
        }
        return {name: value for name, value in entry.items() if value is not None}


def parse(texts: Iterable[str], plan: Plan) -> tuple[Fault, ...]:
    """Parse the faults of all ``--chaos`` options.

    Raises UsageError for a malformed fault, for a task or node that `plan` does not have, and for
    a place that its job never reports.
    """
    faults: list[Fault] = []
    for text in texts:
        for part in text.strip().removesuffix(";").split(";"):
            fault = _FaultParser(part, plan).read()
            if any(fault.text == other.text for other in faults):
                raise UsageError(f"--chaos: '{fault.text}' is given twice", fix=GRAMMAR)
            faults.append(fault)
    return tuple(faults)


def settings_for(faults: Iterable[Fault], task: TaskId, attempt: int) -> list[dict[str, Any]]:
    """Return the faults that `task` must inject or report in its attempt `attempt`."""
    return [f.setting for f in faults if f.witness == task and f.attempt == attempt]


def environment(
    command: Command, faults: Iterable[Fault], task: TaskId, attempt: int
) -> tuple[EnvVar, ...]:
    """Return TFCLUSTER_SETTINGS of `command` with this attempt's faults added; () without any."""
    entries = settings_for(faults, task, attempt)
    if not entries:
        return ()
    settings = settings_in(command.env) | {"chaos": entries}
    return (EnvVar("TFCLUSTER_SETTINGS", json.dumps(settings), "--chaos"),)


def injected(faults: Iterable[Fault], text: str, *, by: str, attempt: int) -> Fault | None:
    """Return the fault that task `by` reports as injected; None if it was not meant for it."""
    for fault in faults:
        if (fault.text, str(fault.witness), fault.attempt) == (text, by, attempt):
            return fault
    return None


def ordered(faults: Iterable[Fault], text: str) -> Fault | None:
    """Return the fault that is to be ordered once a task has reported the fault `text`.

    Returns None for a fault that the task injects into itself.
    """
    return next((fault for fault in faults if fault.text == text and fault.is_ordered), None)


def order(fault: Fault) -> msg.Order | None:
    """Return the order to the agent of the fault's node; None if only the backend acts."""
    if fault.verb in (KILL_AGENT, POWER_OFF):
        return msg.KillAgent()
    if fault.is_of_node:
        return None
    # Unlike after `stop`, the end counts as the task's own failure, which is to be diagnosed.
    return msg.Signal(tasks=[str(fault.task)], signal=int(_SIGNALS[fault.verb]))


class _FaultParser:
    """A parser of one fault, word by word; every error points at the wrong word."""

    def __init__(self, text: str, plan: Plan) -> None:
        self.words: Sequence[str] = text.split()
        self.text = " ".join(self.words)
        self.plan = plan
        self.at = 0

    def read(self) -> Fault:
        verb = self._one_of(VERBS, "a fault")
        code = self._number("an exit code", most=255, least=0) if verb == "exit" else None
        task, node = self._node_or_task() if verb == KILL_AGENT else self._task()
        self._check_network(verb, node)
        rate = self._rate() if verb == SLOW else None
        place, number = self._place(verb)
        for_s = self._duration() if verb in OF_NODES and self._follows("for") else None
        attempt = 1
        if self.at < len(self.words):
            self._expect("in")
            self._expect("attempt")
            attempt = self._number("an attempt")
        if self.at < len(self.words):
            self._fail("unexpected text at the end")
        witness = self._witness(verb, task, place)
        self._check_reportable(place, witness)
        return Fault(
            self.text, verb, task, witness, node, place, number, attempt, code, for_s, rate
        )

    def _check_network(self, verb: str, node: str) -> None:
        if verb in OF_NODES and self.plan.node(node).network != "simulated":
            raise UsageError(
                f"--chaos '{self.text}' is not possible: {verb} needs a simulated network",
                fix='--set \'runtime.network={"rate": "1gbit"}\', or another rate',
            )

    def _place(self, verb: str) -> tuple[str, int | None]:
        """Return the place and its number; a fault of a node without one comes at step 1."""
        if verb in OF_NODES and not self._follows("at"):
            return "step", 1
        self._expect("at")
        place = self._one_of(PLACES, "a place")
        return place, self._place_number(place)

    def _follows(self, word: str) -> bool:
        return self.at < len(self.words) and self.words[self.at] == word

    def _rate(self) -> float:
        from tfcluster.spec.network import parse_rate  # imports pydantic

        self._expect("to")
        return self._value(parse_rate, "a rate")

    def _duration(self) -> float:
        from tfcluster.spec.fields import parse_duration

        self._expect("for")
        return self._value(parse_duration, "a duration")

    def _value(self, parse: Callable[[str], float], what: str) -> float:
        word = self._word(what)
        try:
            return parse(word)
        except ValueError as error:
            self._fail(str(error), last=True)

    def _place_number(self, place: str) -> int | None:
        if place == "step":
            return self._number("a step")
        if place == "save":
            follows = self.at < len(self.words) and self.words[self.at] not in ("in", "for")
            return self._number("a save") if follows else 1
        return None

    def _task(self) -> tuple[TaskId, str]:
        word = self._word("a task")
        try:
            task = TaskId.parse(word)
            if any(other.id == task for other in self.plan.elsewhere):
                self._fail(f"{task} is not started from here", last=True, fix=self._tasks())
            return task, self.plan.task(task).node
        except ValueError:
            self._fail(f"'{word}' is not a task", last=True, fix=self._tasks())
        except KeyError:
            self._fail(f"the cluster has no {word}", last=True, fix=self._tasks())

    def _node_or_task(self) -> tuple[TaskId, str]:
        word = self._word("a task or a node")
        names = [node.name for node in self.plan.nodes]
        if word in names:
            on_node = [task for task in self.plan.tasks if task.node == word]
            # Prefer the chief, then a task that takes steps: it reports when they are reached.
            on_node.sort(key=lambda task: (task.serves, task.id != self.plan.chief))
            return on_node[0].id, word
        if any(str(task.id) == word for task in self.plan.tasks):
            self.at -= 1
            return self._task()
        known = f"{self._tasks()}; the nodes are {', '.join(names)}"
        self._fail(f"'{word}' is neither a task nor a node", last=True, fix=known)

    def _tasks(self) -> str:
        return f"the tasks are {', '.join(str(task.id) for task in self.plan.tasks)}"

    def _witness(self, verb: str, task: TaskId, place: str) -> TaskId:
        """Return the task that reports `place`: the chief for the steps of a task that serves."""
        if place not in {"step", "save"} or not self.plan.task(task).serves:
            return task
        if verb not in {*_SIGNALS, KILL_AGENT, *OF_NODES}:
            raise UsageError(
                f"--chaos '{self.text}' is not possible: {task} only serves, so its {place}s are "
                f"those of {self.plan.chief}",
                fix=f"only kill, stop, term and kill-agent work for {task} at a {place}",
            )
        return self.plan.chief

    def _check_reportable(self, place: str, witness: TaskId) -> None:
        """Raise UsageError if the job never reports `place`, so that the fault would not happen."""
        if not self.plan.is_hooked(self.plan.task(witness)):
            what = "reports no steps" if place == "step" else "cannot inject faults"
            reason = f"the job {what}: it is a command, or its hooks are off"
            fix = "use a job.script or job.module with hooks: auto"
        elif self.plan.kind != "plain" or place not in {"step", "join"}:
            return
        else:
            reports = "reports no steps" if place == "step" else "never waits for its peers"
            reason = f"a plain job {reports}: its tasks form no cluster"
            fix = "use `at start`, or `at save` if the job saves TensorFlow checkpoints"
        raise UsageError(f"--chaos '{self.text}' is not possible: {reason}", fix=fix)

    def _word(self, expected: str) -> str:
        if self.at >= len(self.words):
            self._fail(f"{expected} is missing")
        self.at += 1
        return self.words[self.at - 1]

    def _expect(self, word: str) -> None:
        next_word = self._word(f"'{word}'")
        if next_word != word:
            self._fail(f"expected '{word}', not '{next_word}'", last=True)

    def _one_of(self, words: Sequence[str], what: str) -> str:
        word = self._word(what)
        if word not in words:
            self._fail(f"'{word}' is not {what}; use one of {', '.join(words)}", last=True)
        return word

    def _number(self, what: str, *, least: int = 1, most: int | None = None) -> int:
        word = self._word(what)
        is_number = word.isascii() and word.isdigit()
        if not is_number or int(word) < least or (most is not None and int(word) > most):
            allowed = f"from {least} to {most}" if most is not None else f"of at least {least}"
            self._fail(f"{what} must be an integer {allowed}, not '{word}'", last=True)
        return int(word)

    def _fail(self, message: str, *, last: bool = False, fix: str = "") -> NoReturn:
        """Raise UsageError that points at the next word, or at the `last` one read."""
        position = self.at - 1 if last else self.at
        before = " ".join(self.words[:position])
        width = len(self.words[position]) if position < len(self.words) else 1
        mark = " " * (len(before) + bool(before)) + "^" * width
        raise UsageError(f"--chaos: {message}\n    {self.text}\n    {mark}", fix=fix or GRAMMAR)


def apply(records: list[dict[str, Any]], event: Event, now: float) -> None:
    """Fold `event` into the records of injected faults (`RunSnapshot.chaos`), oldest first.

    `detected_after_s` is the time until its task ended, was stopped or raised, its node was lost,
    or a diagnosis or stall followed. `resumed_after_s` is the time until a task of a later attempt
    has joined; the first step it reports makes it exact (`resumed_step`).
    """
    if isinstance(event, ev.ChaosInjected):
        facts = event.facts()
        del facts["type"]
        records.append(facts | {"injected_at": now})
        return
    for record in records:
        if "detected_after_s" not in record:
            if _shows_effect(event, record):
                record["detected_after_s"] = round(now - record["injected_at"], 3)
        elif _shows_resumption(event, record):
            record["resumed_after_s"] = round(now - record["injected_at"], 3)
            if isinstance(event, ev.Progress):
                record["resumed_step"] = event.step


def _shows_effect(event: Event, record: dict[str, Any]) -> bool:
    """Return whether `event` shows the effect of the fault; events of other tasks do not."""
    verb, task = record["fault"].partition(" ")[0], str(record["task"])
    match event:
        case ev.TaskExited():
            by_itself = event.ended_by == "itself" and event.exit_code != 0
            return event.task == task and by_itself
        case ev.TaskError() | ev.TaskFrozen():
            return event.task == task
        case ev.NodeLost():
            return verb in {KILL_AGENT, POWER_OFF}
        case ev.Diagnosis():
            return str(event.root_cause.get("task")) == task
        case ev.Stalled():
            return verb in {"hang", "stop", PARTITION, SLOW}
    return False


def _shows_resumption(event: Event, record: dict[str, Any]) -> bool:
    if not isinstance(event, ev.Progress | ev.TaskReady) or "resumed_step" in record:
        return False
    if event.attempt <= record.get("attempt", 1):
        return False
    # A task that serves, or takes no steps, has resumed when it is ready again.
    is_its_own = event.task == record["task"] and "resumed_after_s" not in record
    return isinstance(event, ev.Progress) or is_its_own


def not_injected(faults: Iterable[Fault], state: RunSnapshot) -> tuple[str, ...]:
    """Return a closing warning for each fault whose place was never reached."""
    injected = {record["fault"] for record in state.chaos}
    return tuple(
        f"'{fault.text}' was never injected: {_why_not_injected(fault, state)}"
        for fault in faults
        if fault.text not in injected
    )


def _why_not_injected(fault: Fault, state: RunSnapshot) -> str:
    if state.attempt < fault.attempt:
        return f"there was no attempt {fault.attempt}"
    task = next(task for task in state.tasks if task.task == str(fault.witness))
    if fault.place == "step":
        if all(other.step is None for other in state.tasks):
            return "the job reports no steps"
        if task.step is None:
            return f"{task.task} reported no steps"
        return f"{task.task} reached step {task.step}"
    if fault.place == "save":
        return f"{task.task} did not save that often"
    if fault.place == "join":
        return f"{task.task} never waited for its peers"
    return f"{task.task} never reached its code"
