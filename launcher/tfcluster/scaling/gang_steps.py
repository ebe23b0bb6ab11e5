"""Measures the cells of a study: one run for each gang, whose network changes its rate meanwhile.

TensorFlow starts once for a number of workers and a communication. Blocks of steps at each rate
follow one another, several times and in alternating order, so that all cells are warm and what
changes slowly on the machine affects all of them alike.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from tfcluster import api
from tfcluster.agent.node import limits
from tfcluster.discovery.planning import Planned, load_spec, plan_spec
from tfcluster.errors import TfclusterError, UsageError
from tfcluster.run_handle import Run
from tfcluster.scaling.study import Measured
from tfcluster.spec import LaunchOptions

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec

STEP_TIMES: Final = "TFCLUSTER_STEP_TIMES"
"""The variable that makes a task report each step; the same as in `tfcluster_workers`."""
WARM_UP_STEPS: Final = 3
WARM_UP_S: Final = 1.0
"""Steps after a change of the rate do not count: the change drops what was queued, and TCP sends
it again after at least 0.2 s (RFC 6298) and finds the new rate. Both limits must be passed."""
BLOCK_S: Final = 1.0
"""Shortest time of a block, for steps of a few milliseconds."""
FIRST_STEP_S: Final = 600.0
"""Longest wait for the first step of a gang, its start and compilation included."""
_OPTIONS: Final = LaunchOptions(gathers=False, keeps_files=False)


@dataclass(frozen=True, slots=True)
class Request:
    """The cells that a study measures."""

    source: str | None
    """The file of the spec; None: ./tfcluster.json."""
    workers: tuple[int, ...]
    rates: tuple[float, ...]
    """Bits per second."""
    communications: tuple[str, ...]
    steps: int
    """The timed steps of each cell, at least."""
    repeats: int
    """The number of blocks that they are spread over."""
    sets: tuple[str, ...] = ()
    """Overrides of the spec, as for ``--set``."""
    python: str | None = None
    args: tuple[str, ...] = ()
    """Appended to ``job.args``."""

    @property
    def gangs(self) -> tuple[tuple[int, str | None], ...]:
        """Workers and communication of each run; one worker has nothing to send."""
        more = [(n, c) for n in self.workers for c in self.communications if n > 1]
        return ((1, None), *more)


@dataclass(frozen=True, slots=True)
class Progress:
    """The block that is about to be measured, of all blocks of the study."""

    block: int
    of: int
    workers: int
    communication: str | None
    rate: float | None
    remaining_s: float | None
    """The time that the rest probably takes; None while nothing has been measured."""


Tell = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Gang:
    """The plan of one run of a study."""

    workers: int
    communication: str | None
    planned: Planned


def plan_gangs(request: Request) -> tuple[Gang, ...]:
    """Return the plan of each run, of which nothing is started.

    Raises UsageError for a job that cannot be studied, SpecError, and SetupError for what would
    make a run fail.
    """
    first = load_spec(request.source, sets=request.sets)
    _require_studied(first.spec)
    found = []
    for workers, communication in request.gangs:
        sets = (*request.sets, *_sets(first.spec, request, workers, communication))
        loaded = load_spec(request.source, sets=sets)
        planned = plan_spec(loaded, python=request.python, args=request.args)
        planned.require()
        found.append(Gang(workers, communication, planned))
    return tuple(found)


def _require_studied(spec: ClusterSpec) -> None:
    """Raise UsageError unless the job is a gang of workers that reports its steps."""
    example = "the example spec gradient-volume-2w is one"
    if "ps" in spec.cluster:
        why, fix = "its workers do not wait for one another", "leave the ps tasks out"
    elif spec.job.kind == "tuner":
        why, fix = "each tuner trains alone", "use the spec of one training"
    elif spec.job.kind == "plain":
        why, fix = "its tasks form no cluster", '"kind": "training"'
    elif spec.job.command is not None:
        why, fix = "a command reports no steps", f"use a job.script or job.module; {example}"
    elif spec.job.hooks == "off":
        why, fix = "it reports no steps", '"hooks": "auto"'
    else:
        return
    raise UsageError(f"this job cannot be studied: {why}", fix=fix)


def _sets(
    spec: ClusterSpec, request: Request, workers: int, communication: str | None
) -> list[str]:
    """Return the overrides of one run; what the spec says about its network stays."""
    written, rate = spec.runtime.network, request.rates[0]
    network = {"rate": rate} if isinstance(written, str) else {**_written(written), "rate": rate}
    sets = [
        f"cluster={json.dumps({'worker': workers})}",
        "runtime.backend=simulated",
        f"runtime.network={json.dumps(network)}",
        f"job.env.{STEP_TIMES}=1",
        "supervision.max_restarts=0",
        "checkpoints.gather=false",
    ]
    if communication is not None:
        sets.append(f"strategy.communication={communication}")
    if not spec.resources.model_fields_set & {"cpus", "threads", "pin"}:
        each = max(1, machine_cores() // max(request.workers))
        sets.append(f"resources.cpus={each}")
        if workers > 1 and workers * each <= machine_cores():
            sets.append("resources.pin=true")
    return sets


def _written(network: Any) -> dict[str, Any]:
    written: dict[str, Any] = network.model_dump(mode="json", exclude_unset=True)
    return {name: value for name, value in written.items() if name != "links"}


def measure(
    gangs: Sequence[Gang], request: Request, tell: Tell, warn: Callable[[str], None]
) -> list[Measured]:
    """Run all gangs one after the other; return the measured cells.

    `warn` gets each warning of the runs once: a communication that the job does not read, for
    example. Ctrl-C ends the run and raises KeyboardInterrupt. Raises JobFailed if a run fails,
    UsageError if a job ends before its cells are measured, and what `api.make_launch` raises.
    """
    clock, found, warned = _Clock(gangs, request, tell), list[Measured](), set[str]()
    for gang in gangs:
        run = api.start_launch(api.make_launch(gang.planned, _OPTIONS))
        try:
            found += _Measurement(run, gang, request, clock).cells()
        finally:
            run.stop(now=True)
        for warning in run.state().warnings:
            if warning not in warned:
                warn(warning)
        warned.update(run.state().warnings)
        run.delete()
    return found


class _Clock:
    """Numbers the blocks and estimates how long the rest takes."""

    def __init__(self, gangs: Sequence[Gang], request: Request, tell: Tell) -> None:
        self._tell, self._done, self._began_at = tell, 0, time.monotonic()
        self._of = sum(
            request.repeats * (len(request.rates) if g.workers > 1 else 1) for g in gangs
        )

    def begin(self, gang: Gang, rate: float | None) -> None:
        """Announce the next block."""
        taken, left = time.monotonic() - self._began_at, self._of - self._done
        remaining = taken / self._done * left if self._done else None
        self._done += 1
        self._tell(
            Progress(self._done, self._of, gang.workers, gang.communication, rate, remaining)
        )


class _Measurement:
    """The measurement of one run: its steps, block by block."""

    def __init__(self, run: Run, gang: Gang, request: Request, clock: _Clock) -> None:
        self._run, self._gang, self._request, self._clock = run, gang, request, clock
        self._steps = Steps(str(gang.planned.plan.chief))
        self._events = run.events(follow=True)

    def cells(self) -> Iterator[Measured]:
        """Measure all blocks, then yield the cells of this gang."""
        request, gang = self._request, self._gang
        rates: tuple[float | None, ...] = request.rates if gang.workers > 1 else (None,)
        blocks: dict[float | None, list[Block]] = {rate: [] for rate in rates}
        for number in range(request.repeats):
            for rate in rates if number % 2 == 0 else reversed(rates):
                self._clock.begin(gang, rate)
                blocks[rate].append(self._block(rate))
        for rate, measured in blocks.items():
            busy_s = sum(block.lasted_s for block in measured)
            yield Measured(
                workers=gang.workers,
                communication=gang.communication,
                rate=rate,
                step_s=tuple(step for block in measured for step in block.step_s),
                gradient_bytes=self._steps.gradient_bytes,
                global_batch=self._steps.global_batch,
                busy_cores=sum(block.cpu_s for block in measured) / busy_s if busy_s else None,
            )

    def _block(self, rate: float | None) -> Block:
        """Change the rate, and read steps until there are enough of them."""
        self._read_until(lambda: self._steps.count > 1)
        if rate is not None:
            self._run.set_rate(rate)
        changed_at = time.monotonic()
        least = math.ceil(self._request.steps / self._request.repeats)

        def is_done() -> bool:
            block = self._steps.since(changed_at)
            return len(block.step_s) >= least and block.lasted_s >= BLOCK_S

        self._read_until(is_done)
        return self._steps.since(changed_at)

    def _read_until(self, is_done: Callable[[], bool]) -> None:
        """Read events until `is_done`; raises JobFailed or UsageError if the run ends before."""
        until = time.monotonic() + FIRST_STEP_S
        while not is_done():
            event = next(self._events, None)
            if event is None:
                self._run.wait().check()
                raise self._ended_early()
            self._steps.note(event)
            if not self._steps.count and time.monotonic() > until:
                raise UsageError(
                    f"the job has reported no step for {FIRST_STEP_S:.0f} s",
                    fix="a custom training loop calls tfcluster_workers.reporting.progress(step)",
                )

    def _ended_early(self) -> TfclusterError:
        steps = self._steps.count
        if not steps:
            fix = "a custom training loop calls tfcluster_workers.reporting.progress(step)"
            return UsageError("the job has ended and reported no steps", fix=fix)
        fix = "let it train longer (`-- --steps 100000`), or measure fewer --steps or --repeats"
        return UsageError(f"the job ended after {steps:,} steps, before all was measured", fix=fix)


@dataclass(frozen=True, slots=True)
class Block:
    """Timed steps at one rate."""

    step_s: tuple[float, ...]
    """Seconds of each."""
    lasted_s: float = 0.0
    cpu_s: float = 0.0
    """The processor time of the task in `lasted_s`."""


@dataclass(slots=True)
class Steps:
    """The steps of the task `task`, from the events of its run."""

    task: str
    ends: list[tuple[int, float]] = field(default_factory=list)
    """Step and the time at which it ended, on CLOCK_MONOTONIC."""
    used: list[tuple[float, float]] = field(default_factory=list)
    """The time of a step's end and the processor time until then."""
    gradient_bytes: int | None = None
    global_batch: float | None = None

    @property
    def count(self) -> int:
        """The number of reported steps."""
        return len(self.ends)

    def note(self, event: Mapping[str, Any]) -> None:
        """Take what an event says about the task's steps; ignore all others."""
        if event.get("task") != self.task:
            return
        if event["type"] == "step_times":
            self.ends += zip(event["steps"], event["times"], strict=True)
            self.used.append((event["times"][-1], event["cpu_s"]))
            self.gradient_bytes = event.get("gradient_bytes", self.gradient_bytes)
        elif event["type"] == "progress" and event.get("mean_examples_per_second"):
            batch = event["mean_examples_per_second"] / event["mean_steps_per_second"]
            self.global_batch = float(round(batch)) if batch >= 1 else batch

    def since(self, changed_at: float) -> Block:
        """Return the steps that began after `changed_at` and its warm-up.

        One report may end several steps (`steps_per_execution`): each gets an equal part.
        """
        later = self.ends[bisect_left(self.ends, changed_at, key=lambda entry: entry[1]) :]
        counted = [entry for entry in later[WARM_UP_STEPS:] if entry[1] >= changed_at + WARM_UP_S]
        found = list[float]()
        for (before, began), (number, end) in pairwise(counted):
            if number > before:
                found += [(end - began) / (number - before)] * (number - before)
        if not found:
            return Block(())
        began, ended = counted[0][1], counted[-1][1]
        inside = [entry for entry in self.used if began <= entry[0] <= ended]
        if len(inside) < 2:
            return Block(tuple(found), ended - began)
        share = (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])
        return Block(tuple(found), ended - began, share * (ended - began))


def machine_cores() -> int:
    """Return the cores of this machine that tasks may use."""
    cores = sum(map(len, limits.by_node()))
    limit = limits.limit()
    return max(1, min(cores, int(limit)) if limit is not None else cores)
