"""Profiles of a run on request (`tfcluster profile`): traces of the same steps of its tasks."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.errors import UsageError, join_first
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.task_folders import TaskFolders
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.member import Member

MOST_STEPS = 1000
"""The steps of one profile: each adds some ten kilobytes to a trace, or megabytes on a GPU."""
AHEAD_S = 2.0
"""The time from an order to the step at which traces begin: progress is up to a second old, and
all tasks must have the order before they reach that step."""
_RATE_WITHIN_S = 60.0
"""The time in which a speed must be known: two reports, or two steps if these take longer."""
_LEAST_S, _SLACK = 60.0, 3.0
"""The time for the steps of a profile is `_SLACK` times what they should take, and this more."""
_LEAST_SERVED_S, _LONGEST_SERVED_S = 1.0, 60.0
"""The length of the trace of a task that takes no steps. A chief that trains with parameter servers
knows its step twice a second."""
_CHECK_EVERY_S = 0.5


@dataclass(slots=True)
class _Profile:
    """A profile in progress."""

    id: str
    steps: int
    tasks: Mapping[str, Member]
    problems: dict[str, str] = field(default_factory=dict)
    """Task → why it has no trace."""
    answers: dict[str, msg.Profiled] = field(default_factory=dict)


class TaskProfiles:
    """The profiles of one run, one after the other. What comes of one is an event."""

    def __init__(
        self,
        state: RunSnapshot,
        gang: Gang,
        hub: Hub,
        folders: TaskFolders,
        put_event: Callable[[Event], None],
    ) -> None:
        self._state, self._gang, self._hub, self._folders = state, gang, hub, folders
        self._put_event = put_event
        self._profile: _Profile | None = None
        self._recording: asyncio.Task[None] | None = None
        self._has_changed = asyncio.Event()
        self._is_over = False
        """True once the run ends: what is not there yet will not come."""

    def begin(
        self,
        names: Sequence[str],
        steps: int,
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> str:
        """Begin a profile of the tasks `names`, or of all that train; return its id.

        `start` runs the rest of it beside the loop. Raises UsageError.
        """
        if self._is_over:
            raise UsageError("the run is ending", fix="`tfcluster profile --last` shows the newest")
        if self._profile is not None:
            raise UsageError("a profile is being recorded", fix="try again once it is complete")
        if not 0 < steps <= MOST_STEPS:
            raise UsageError(f"{steps} steps", fix=f"choose from 1 to {MOST_STEPS:,} steps")
        running = {member.name: member for member in self._gang.running()}
        for name in names:
            if name not in running:
                raise UsageError(f"{name} does not run", fix="`tfcluster status` shows the tasks")
        fix = "try again once `tfcluster status` shows a step"
        if not any(self._takes_steps(member) for member in running.values()):
            raise UsageError("no task has reported a step", fix=fix)
        chosen = [running[name] for name in names] or self._gang.core()
        tasks = {member.name: member for member in chosen if member.is_running}
        profile = _Profile(time.strftime("%Y_%m_%d_%H_%M_%S"), steps, tasks)
        for name, member in tasks.items():
            if not (self._takes_steps(member) or member.serves):
                profile.problems[name] = "it has reported no step"
        if profile.problems.keys() == tasks.keys():
            raise UsageError(f"{join_first([*tasks])} has reported no step", fix=fix)
        self._profile = profile
        self._recording = start(self._record(profile))
        return profile.id

    def note(self, answer: msg.Profiled) -> None:
        """Take the answer of a task."""
        profile = self._profile
        if profile is not None and answer.id == profile.id and answer.task in profile.tasks:
            profile.answers[answer.task] = answer
            self._has_changed.set()

    async def end(self) -> None:
        """Bring a profile in progress to its end, because the run ends."""
        self._is_over = True
        if self._recording is not None:
            self._has_changed.set()
            await asyncio.wait([self._recording])

    def _takes_steps(self, member: Member) -> bool:
        return member.is_core and not member.serves and member.step is not None

    async def _record(self, profile: _Profile) -> None:
        try:
            await self._wait(_RATE_WITHIN_S, lambda: self._rate() > 0)
            within_s = 0.0 if self._is_over else self._order(profile)
            await self._wait(within_s, lambda: not self._awaited(profile))
            fetching = (self._fetch(profile, name, within_s) for name in profile.tasks)
            found = await asyncio.gather(*fetching)
            tasks = dict(zip(profile.tasks, found, strict=True))
            self._put_event(ev.ProfileFinished(id=profile.id, tasks=tasks))
        finally:
            self._profile = None

    def _order(self, profile: _Profile) -> float:
        """Order the traces; return the time that they may take."""
        rate = self._rate()
        step_s = 1 / rate if rate else _RATE_WITHIN_S
        ahead = math.ceil(rate * AHEAD_S) + 1
        trains = [m for m in self._gang.running() if self._takes_steps(m)]
        last = {member.name: member.step or 0 for member in trains}
        common = max(last.values(), default=0) + ahead if self._state.is_synchronous else None
        within_s = _LEAST_S + _SLACK * (ahead + profile.steps) * step_s
        served_s = min(max(profile.steps * step_s, _LEAST_SERVED_S), _LONGEST_SERVED_S)
        for name, member in profile.tasks.items():
            if name in profile.problems:
                continue
            order = msg.TraceSteps(
                task=name,
                id=profile.id,
                file=str(self._folders.trace(member.id, profile.id)),
                within_s=within_s,
                first=last.get(name, 0) + ahead if common is None else common,
                steps=profile.steps,
                delay_s=AHEAD_S,
                seconds=served_s,
            )
            self._hub.send(member.node, order)
        self._hub.wake()
        asked = [name for name in profile.tasks if name not in profile.problems]
        started = ev.ProfileStarted(id=profile.id, tasks=asked, after=common, steps=profile.steps)
        self._put_event(started)
        return within_s

    def _rate(self) -> float:
        """Return the steps per second of the leading task; 0 while they are not known."""
        lead = self._state.leader
        rate = None if lead is None else lead.steps_per_second or lead.mean_steps_per_second
        return rate or 0.0

    def _awaited(self, profile: _Profile) -> list[str]:
        """Return the tasks whose answers may still come."""
        unknown = profile.tasks.keys() - profile.problems.keys() - profile.answers.keys()
        return [name for name in profile.tasks if name in unknown and self._runs(profile, name)]

    def _runs(self, profile: _Profile, name: str) -> bool:
        member = self._gang.get(name, profile.tasks[name].attempt)
        return member is not None and member.is_running

    async def _wait(self, within_s: float, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, the run ends, or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not (self._is_over or condition()):
                    self._has_changed.clear()
                    with contextlib.suppress(TimeoutError):  # not every change is noted
                        async with asyncio.timeout(_CHECK_EVERY_S):
                            await self._has_changed.wait()

    async def _fetch(self, profile: _Profile, name: str, within_s: float) -> dict[str, Any]:
        """Return the facts of a task's trace once it is in the run folder, or the problem."""
        answer = profile.answers.get(name)
        if answer is None or answer.problem:
            return {"problem": answer.problem if answer else self._explain(profile, name, within_s)}
        try:
            file = await self._folders.fetch_trace(profile.tasks[name].id, profile.id)
            size = file.stat().st_size
        except OSError as error:
            return {"problem": f"its trace was not copied: {describe_error(error)}"}
        facts: dict[str, Any] = {"file": file.name, "bytes": size}
        steps = {"first": answer.first, "last": answer.last}
        known = {key: step for key, step in steps.items() if step is not None}
        return facts | known | {"seconds": answer.seconds}

    def _explain(self, profile: _Profile, name: str, within_s: float) -> str:
        """Return why a task has not answered."""
        if name in profile.problems:
            return profile.problems[name]
        if not self._runs(profile, name):
            return "it ended before its trace was complete"
        if self._is_over:
            return "the run ended before its trace was complete"
        where = "`tfcluster stacks` shows where it is"
        return f"it has completed no trace in {within_s:.0f} s: {where}"
