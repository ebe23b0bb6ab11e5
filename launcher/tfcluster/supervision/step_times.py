"""The parts of a gang's steps, and the verdict: which part makes them as long as they are.

Tasks that train together wait for each other in collectives. The last one to arrive waits least:
its time is the transfer's, which all need, and what the others have more is waiting for the
slowest. That needs no common clock, only the same steps, which the entries of all tasks share.
docs/guides/slow-steps.md has the errors of these figures.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Final

from tfcluster.agent import catalogue as msg
from tfcluster.errors import join_first
from tfcluster.rundir import events as ev

WINDOW_S: Final = 1.0
"""The least time of the steps that one event describes; tasks report every five seconds."""
LEAST_STEPS: Final = 3
MOST_ENTRIES: Final = 400
"""The entries that wait for the other tasks' reports; older ones are dropped."""
SURE_S: Final = 8.0
"""The time for which all windows must agree before a verdict is given, or another one.
One window counts as half of it at most."""
DOUBTED_S: Final = 20.0
"""The time without a window that agrees after which a verdict is taken back."""
NAMED_S: Final = 20.0
"""The time for which the same tasks must be the slowest after others were."""

SLOWER: Final = 1.3
"""A straggler needs so many times the median of the others' own time."""
NOTICEABLE: Final = 0.1
"""The part of a step that a straggler must cost the others."""
WAITS_FOR_INPUT: Final = 0.2
"""The part of a step from which the input makes it slow. As it is prepared while the step
computes, any lasting wait means that it takes as long as the whole step."""
HIGH: Final = 0.3
"""The part of a step from which collectives or Python make it slow."""
MOST: Final = 0.6
"""The part of a step from which it is bound by computing."""


class Bound(StrEnum):
    """The part that makes steps as long as they are; the values are in ``events.jsonl``."""

    INPUT = "input"
    NETWORK = "network"
    STRAGGLER = "straggler"
    PYTHON = "python"
    COMPUTE = "compute"


_FIXES: Final = {
    Bound.INPUT: "dataset.cache(), map(…, num_parallel_calls=tf.data.AUTOTUNE), interleave over"
    " more files than workers, prefetch(tf.data.AUTOTUNE), more tasks data_worker",
    Bound.NETWORK: "a larger batch for each worker, float16 gradients, NCCL between GPUs,"
    " CommunicationOptions(bytes_per_pack=…)",
    Bound.PYTHON: "less work in callbacks and in the loop, no run_eagerly; for short steps"
    " compile(steps_per_execution=10)",
    Bound.STRAGGLER: "see what else runs on its machine, give it as many cores as the others, or"
    " leave it out",
    Bound.COMPUTE: "",
}


@dataclass(frozen=True, slots=True)
class Parts:
    """Seconds of some steps of one task; `waiting` and `transfer` are its time in collectives."""

    input: float = 0.0
    compute: float = 0.0
    waiting: float = 0.0
    transfer: float = 0.0
    callbacks: float = 0.0
    other: float = 0.0

    @property
    def seconds(self) -> float:
        return self.own + self.waiting + self.transfer

    @property
    def own(self) -> float:
        """The time of the task's own work, which no other task makes longer."""
        return self.input + self.compute + self.python

    @property
    def python(self) -> float:
        return self.callbacks + self.other

    @classmethod
    def median(cls, tasks: Sequence[Parts]) -> Parts:
        """Return the median of each part over several tasks."""
        return cls(*(statistics.median(getattr(p, name) for p in tasks) for name in cls.__slots__))

    def to_json(self) -> dict[str, float]:
        return {name: round(getattr(self, name), 4) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that may make a task slower than others; see `events.Usage`."""

    throttled: float = 0.0
    load: float | None = None
    memory_stall: float | None = None
    clock: float | None = None

    def describe(self, others: Sequence[Conditions]) -> str:
        """Return what is unusual beside the `others`; empty if nothing is."""
        texts = []
        if self.throttled >= _THROTTLED:
            texts.append(f"a CPU quota stops it {self.throttled:.0%} of the time")
        if self.memory_stall is not None and self.memory_stall >= _STALLED:
            texts.append(f"its node waits for memory {self.memory_stall:.0%} of the time")
        clocks = [other.clock for other in others if other.clock is not None]
        if self.clock is not None and clocks:
            usual = statistics.median(clocks)
            if self.clock <= _SLOW_CLOCK * usual:
                texts.append(f"its node's clock is at {self.clock:.0%}, theirs at {usual:.0%}")
        if self.load is not None and self.load >= _LOADED:
            texts.append(f"its node has a load of {self.load:.1f} per core")
        return ", ".join(texts)


_THROTTLED, _STALLED, _SLOW_CLOCK, _LOADED = 0.2, 0.1, 0.8, 1.5


@dataclass(frozen=True, slots=True)
class Link:
    """The speed of the links between the nodes of a gang."""

    gb_per_s: float
    known_from: str
    """The end of ``of the 1.1 GB/s that …``."""


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive steps that all tasks have taken."""

    step: int
    """The last one."""
    steps: int
    tasks: Mapping[str, Parts]
    reduced_bytes: float = 0.0
    """The bytes that a task gives to collectives in one step."""
    conditions: Mapping[str, Conditions] = field(default_factory=dict)
    link: Link | None = None
    has_network: bool = True
    """False on one machine: collectives wait for its cores, and there is no network to blame."""

    @property
    def throttled(self) -> str | None:
        """The only task that a CPU quota stops."""
        stopped = [t for t in self.tasks if self._condition(t).throttled >= _THROTTLED]
        free = [t for t in self.tasks if self._condition(t).throttled < _THROTTLED / 4]
        is_clear = len(stopped) == 1 and len(free) == len(self.tasks) - 1 > 0
        return stopped[0] if is_clear else None

    def _condition(self, task: str) -> Conditions:
        return self.conditions.get(task, Conditions())

    def without_stops(self) -> Window:
        """Return the window with the stops of a `throttled` task as its own time.

        A quota stops it in collectives, too. What it was stopped beyond the time by which its own
        part is longer than that of the others is no transfer: they waited for it.
        """
        if (task := self.throttled) is None:
            return self
        parts, others = self.tasks[task], [p for t, p in self.tasks.items() if t != task]
        stopped_s = self._condition(task).throttled * parts.seconds
        excess_s = max(0.0, parts.own - Parts.median(others).own)
        moved_s = min(parts.transfer, max(0.0, stopped_s - excess_s))
        tasks = {
            each: replace(p, waiting=p.waiting + moved_s, transfer=p.transfer - moved_s)
            for each, p in self.tasks.items()
        }
        tasks[task] = replace(
            parts, compute=parts.compute + moved_s, transfer=parts.transfer - moved_s
        )
        return replace(self, tasks=tasks)


@dataclass(frozen=True, slots=True)
class StepVerdict:
    """The part that makes the steps as long as they are, and what to do."""

    bound: Bound
    causes: tuple[str, ...]
    """The tasks that the others wait for; empty where all are alike."""
    message: str
    fix: str
    share: float
    """The share of a step that the part takes; a straggler's own work is the part."""


@dataclass(slots=True)
class _Reported:
    """The entries of one task, each with its last step, without a gap."""

    first: int
    """The step before the first entry."""
    entries: list[tuple[int, Parts]] = field(default_factory=list)
    """Parts whose `transfer` is all the time in collectives, for the time being."""
    bytes_per_step: float = 0.0

    def add(self, report: msg.StepParts) -> None:
        lists = zip(
            report.steps,
            report.seconds,
            report.input_s,
            report.compute_s,
            report.collective_s,
            report.callbacks_s,
            strict=True,
        )
        for step, seconds, input_s, compute_s, collective_s, callbacks_s in lists:
            other = max(0.0, seconds - input_s - compute_s - collective_s - callbacks_s)
            parts = Parts(input_s, compute_s, 0.0, collective_s, callbacks_s, other)
            self.entries.append((step, parts))
        steps = report.steps[-1] - report.after
        self.bytes_per_step = report.reduced_bytes / steps if steps > 0 else 0.0
        if len(self.entries) > MOST_ENTRIES:
            del self.entries[: len(self.entries) - MOST_ENTRIES // 2]
            self.first = self.entries.pop(0)[0]

    @property
    def ends(self) -> list[int]:
        return [self.first, *(step for step, _ in self.entries)]


@dataclass(slots=True)
class StepTimes:
    """The steps of an attempt: from the tasks' reports to windows and verdicts."""

    link: Link | None = None
    has_network: bool = True
    """True if the tasks are on several nodes."""
    _reported: dict[str, _Reported] = field(default_factory=dict)
    _newest: StepVerdict | None = None
    """The verdict of the last window; all have had its bound for `_agreed_s` seconds, and its
    causes for `_named_s`."""
    _agreed_s: float = 0.0
    _named_s: float = 0.0
    given: StepVerdict | None = None
    _doubted_s: float = 0.0
    """The seconds of the windows since the last one with the bound of `given`."""
    _conditions: dict[str, Conditions] = field(default_factory=dict)
    """Task → what was last reported about its node and its quota."""

    def note_usage(self, usage: ev.Usage) -> None:
        """Note what may make the tasks of a node slow."""
        for task, used in usage.tasks.items():
            self._conditions[task] = Conditions(
                used.get("throttled") or 0.0, usage.load, usage.memory_stall, usage.clock
            )

    def note(self, report: msg.StepParts, together: Sequence[str]) -> Iterator[ev.Event]:
        """Take a report; yield the events that it completes.

        `together`: the tasks that take their steps with this one, which is among them.
        """
        if not _is_well_formed(report):
            return
        known = self._reported.get(report.task)
        if known is None or known.ends[-1] != report.after:
            known = self._reported[report.task] = _Reported(report.after)
        known.add(report)
        if (window := self._take_window(together)) is None:
            return
        for task, parts in window.tasks.items():
            yield ev.StepTimes(
                task=task,
                attempt=report.attempt,
                step=window.step,
                steps=window.steps,
                seconds=round(parts.seconds, 4),
                parts=parts.to_json(),
            )
        if {*self._reported} <= {*together}:  # tasks that train alone have no common verdict
            yield from self._judge(window, report.attempt)

    def _take_window(self, together: Sequence[str]) -> Window | None:
        """Remove and return the steps that all tasks have reported, if they last long enough."""
        reported = [self._reported.get(task) for task in together]
        all_of_them = [each for each in reported if each is not None]
        if len(all_of_them) < len(together) or not all(each.entries for each in all_of_them):
            return None
        common = sorted(set.intersection(*({*each.ends} for each in all_of_them)))
        if len(common) < 2:
            return None
        merged = [_merge(each, common) for each in all_of_them]
        seconds = max(sum(parts.seconds for parts in entries) for entries in merged)
        steps = common[-1] - common[0]
        if seconds < WINDOW_S or steps < LEAST_STEPS:
            return None
        for each in all_of_them:
            each.entries = [entry for entry in each.entries if entry[0] > common[-1]]
            each.first = common[-1]
        tasks = dict(zip(together, _split_collectives(merged), strict=True))
        reduced = max(each.bytes_per_step for each in all_of_them)
        window = Window(
            common[-1], steps, tasks, reduced, self._conditions, self.link, self.has_network
        )
        return window.without_stops()

    def _judge(self, window: Window, attempt: int) -> Iterator[ev.StepVerdict]:
        verdict, before = judge(window), self._newest
        self._newest = verdict
        # One window alone, with the end of an epoch or a checkpoint, must never decide.
        seconds = min(SURE_S / 2, max(parts.seconds for parts in window.tasks.values()))
        self._agreed_s = seconds + (self._agreed_s if _bound(verdict) == _bound(before) else 0.0)
        self._named_s = seconds + (self._named_s if _key(verdict) == _key(before) else 0.0)
        if self._named_s < min(self._agreed_s, NAMED_S):
            # Of tasks that all wait for input, any one may be the last.
            verdict = judge(window, names_tasks=False)
        is_doubted = _bound(verdict) != _bound(self.given)
        self._doubted_s = self._doubted_s + seconds if is_doubted else 0.0
        if self._agreed_s < SURE_S:
            verdict = self.given if self._doubted_s < DOUBTED_S else None
        if _key(verdict) != _key(self.given) or _has_moved(verdict, self.given):
            self.given = verdict
            yield _event(verdict, attempt)


def _bound(verdict: StepVerdict | None) -> Bound | None:
    return None if verdict is None else verdict.bound


def _key(verdict: StepVerdict | None) -> tuple[object, ...]:
    return () if verdict is None else (verdict.bound, verdict.causes)


def _has_moved(verdict: StepVerdict | None, given: StepVerdict | None) -> bool:
    """Return whether the figures of a verdict have changed so much that it is given again."""
    if verdict is None or given is None:
        return False
    return abs(verdict.share - given.share) >= NOTICEABLE


def _event(verdict: StepVerdict | None, attempt: int) -> ev.StepVerdict:
    if verdict is None:
        return ev.StepVerdict(attempt=attempt)
    return ev.StepVerdict(
        attempt=attempt,
        bound=str(verdict.bound),
        causes=verdict.causes,
        share=round(verdict.share, 3),
        message=verdict.message,
        fix=verdict.fix,
    )


def _is_well_formed(report: msg.StepParts) -> bool:
    """Return whether all lists have a value for each entry, and the steps grow."""
    lists = (report.seconds, report.input_s, report.compute_s, report.collective_s)
    ends = [report.after, *report.steps]
    is_long = all(len(each) == len(report.steps) for each in (*lists, report.callbacks_s))
    return is_long and len(ends) > 1 and all(a < b for a, b in pairwise(ends))


def _merge(reported: _Reported, common: Sequence[int]) -> list[Parts]:
    """Return the entries between the `common` steps, one after the other."""
    merged, ends = [Parts() for _ in common[1:]], iter(enumerate(common[1:]))
    index, end = next(ends)
    for step, parts in reported.entries:
        if step <= common[0]:
            continue
        while step > end:
            if (following := next(ends, None)) is None:
                return merged
            index, end = following
        merged[index] = _sum([merged[index], parts])
    return merged


def _sum(parts: Sequence[Parts]) -> Parts:
    return Parts(*(sum(getattr(each, name) for each in parts) for name in Parts.__slots__))


def _split_collectives(merged: Sequence[Sequence[Parts]]) -> list[Parts]:
    """Return the sums for each task: per entry, the least time in collectives is the transfer."""
    transfers = [min(parts.transfer for parts in entries) for entries in zip(*merged, strict=True)]
    sums = []
    for entries in merged:
        whole = _sum(entries)
        transfer = sum(transfers)
        waiting = max(0.0, whole.transfer - transfer)
        sums.append(
            Parts(whole.input, whole.compute, waiting, transfer, whole.callbacks, whole.other)
        )
    return sums


def judge(window: Window, *, names_tasks: bool = True) -> StepVerdict | None:
    """Return which part makes the steps of a window so long; None if it is not clear.

    `names_tasks`: whether one task may be named as the one that all others wait for.
    """
    slowest = max(window.tasks, key=lambda task: window.tasks[task].own)
    parts, others = window.tasks[slowest], [p for t, p in window.tasks.items() if t != slowest]
    if parts.seconds <= 0:
        return None
    shares = {
        Bound.INPUT: parts.input / parts.seconds,
        Bound.PYTHON: parts.python / parts.seconds,
        Bound.NETWORK: parts.transfer / parts.seconds,
        Bound.COMPUTE: parts.compute / parts.seconds,
    }
    usual = Parts.median(others) if others else parts
    is_alone = parts.own >= SLOWER * usual.own
    is_alone = is_alone and parts.own - usual.own >= NOTICEABLE * parts.seconds
    if is_alone and slowest == window.throttled:  # it slows Python and the input, too
        return _explain(window, Bound.STRAGGLER, (slowest,), parts, usual)
    tasks = (slowest,) if is_alone and names_tasks else ()
    least = max(WAITS_FOR_INPUT, shares[Bound.PYTHON], shares[Bound.NETWORK] / 2)
    if shares[Bound.INPUT] >= least:
        return _explain(window, Bound.INPUT, tasks, parts, usual)
    if is_alone:
        excess = {
            Bound.INPUT: parts.input - usual.input,
            Bound.PYTHON: parts.python - usual.python,
            Bound.STRAGGLER: parts.compute - usual.compute,
        }
        bound = max(excess, key=lambda each: excess[each])
        return _explain(window, bound, tasks, parts, usual) if tasks else None
    bound = max(shares, key=lambda each: shares[each])
    if bound is Bound.INPUT or (bound is Bound.NETWORK and not window.has_network):
        return None
    if shares[bound] < (MOST if bound is Bound.COMPUTE else HIGH):
        return None
    return _explain(window, bound, (), parts, usual)


def _explain(
    window: Window, bound: Bound, tasks: tuple[str, ...], parts: Parts, usual: Parts
) -> StepVerdict:
    def part(seconds: float) -> str:
        share, whole_s = seconds / parts.seconds, parts.seconds / window.steps
        return f"{share:.0%} of a step ({_ms(seconds / window.steps)} of {_ms(whole_s)})"

    who = join_first(tasks) or ("the slowest task" if len(window.tasks) > 1 else "the task")
    seconds = {
        Bound.INPUT: parts.input,
        Bound.NETWORK: parts.transfer,
        Bound.PYTHON: parts.python,
        Bound.STRAGGLER: parts.own,
        Bound.COMPUTE: parts.compute,
    }[bound]
    if bound is Bound.INPUT:
        message = f"input-bound: {who} waits {part(parts.input)} for its next batch"
    elif bound is Bound.NETWORK:
        message = f"network-bound: collectives take {part(parts.transfer)}{_transfer_rate(window)}"
    elif bound is Bound.PYTHON:
        in_callbacks = parts.callbacks >= parts.other
        where = "callbacks take" if in_callbacks else "Python outside of functions takes"
        most = parts.callbacks if in_callbacks else parts.other
        message = f"Python-bound: {where} {part(most)} in {who}"
    elif bound is Bound.STRAGGLER:
        message = f"straggler: {'; '.join(_describe_straggler(window, who, parts, usual))}"
    else:
        message = f"compute-bound: computing takes {part(parts.compute)}"
    return StepVerdict(bound, tasks, message, _FIXES[bound], seconds / parts.seconds)


def _describe_straggler(window: Window, task: str, parts: Parts, usual: Parts) -> Iterator[str]:
    """Yield how slow a task is, and why."""
    times = f" {parts.own / usual.own:.1f} times" if usual.own else ""
    own_s, usual_s = parts.own / window.steps, usual.own / window.steps
    yield (
        f"{task} takes{times} as long as the others for its own part of a step"
        f" ({_ms(own_s)}, they {_ms(usual_s)})"
    )
    others = [each for name, each in window.conditions.items() if name != task]
    if about := window.conditions.get(task, Conditions()).describe(others):
        yield about


def _transfer_rate(window: Window) -> str:
    """Return how fast a ring sends what a step sums: each task sends 2(N-1)/N of it."""
    tasks = len(window.tasks)
    seconds = min(parts.transfer for parts in window.tasks.values()) / window.steps
    if not window.reduced_bytes or not seconds or tasks < 2:
        return ""
    sent = 2 * (tasks - 1) / tasks * window.reduced_bytes
    text = f", {window.reduced_bytes / 1e6:.3g} MB a step at {sent / seconds / 1e9:.2g} GB/s"
    if window.link is not None:
        text += f" of the {window.link.gb_per_s:.2g} GB/s that {window.link.known_from}"
    return text


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
