"""Decides how a run goes on: inputs with their time go in, orders and events come out.

It has no clock, disk or process: the coordinator carries out the orders, and tests replay
histories. The rules: under MultiWorkerMirroredStrategy only the whole gang can be restarted; the
root cause is the first failure that is not a consequence of another; if all failures are
consequences, the task that keeps running is the cause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tfcluster.checkpoints.completeness import Newest
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import reactions, restarts
from tfcluster.supervision.decisions import Action, NextAttempt, Outcome, Stop
from tfcluster.supervision.failure import Kind
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.reactions import react
from tfcluster.supervision.run_state import RunState, Stage
from tfcluster.supervision.verdicts import FROZEN_S

START_ANSWER_S: Final = 60.0
"""The time after an order in which an agent must report the start of a task; then it is lost."""


class Supervisor:
    """The supervisor of one run, and the only owner of its state.

    After any input, take the orders and check `next_attempt` and `outcome`.
    """

    def __init__(self, plan: Plan, *, jitter: Callable[[], float] = random.random) -> None:
        """Take the plan, and the random numbers for `restart_policy.decide`."""
        self._state = RunState(plan, jitter)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same state, as they have after the same history."""
        return isinstance(other, Supervisor) and self._state == other._state

    __hash__ = None  # type: ignore[assignment]

    @property
    def gang(self) -> Gang:
        """The tasks, for questions only."""
        return self._state.gang

    @property
    def chief(self) -> TaskId:
        """The task whose exit and checkpoints count; a smaller gang may have another one."""
        return self._state.chief

    @property
    def next_attempt(self) -> NextAttempt | None:
        """The next attempt once the gang is to be restarted; `begin` clears it."""
        return self._state.next_attempt

    @property
    def outcome(self) -> Outcome | None:
        """The outcome once the run is over."""
        return self._state.outcome

    @property
    def wake_at(self) -> float | None:
        """The time at which `tick` must be called next, or None."""
        return min(self._state.timers.values(), default=None)

    def take_orders(self) -> list[Action]:
        """Remove and return the orders since the last call."""
        orders, self._state.orders = self._state.orders, []
        return orders

    # -- inputs -----------------------------------------------------------------------------

    def begin_run(self, now: float, newest: Newest | None = None) -> None:
        """Start the run's clock; `newest` is the checkpoint to resume from."""
        self._state.restarts.newest = newest or Newest()
        if (deadline_s := self._state.policy.run_deadline_s) is not None:
            self._state.timers["run"] = now + deadline_s

    def begin(self, number: int, members: tuple[TaskId, ...]) -> list[TaskId]:
        """Begin attempt `number`; return the tasks to start, without an evaluator that runs."""
        return self._state.begin(number, members)

    def order(self, tasks: Iterable[TaskId], attempt: int, now: float) -> list[TaskId]:
        """Return the `tasks` that still must start; their agents must answer in time."""
        state, requested = self._state, set(tasks)
        ordered = [
            member
            for member in (state.gang if state.is_training else ())
            if member.id in requested and member.attempt == attempt and member.is_to_start
        ]
        for member in ordered:
            state.gang.put(replace(member, is_ordered=True, answer_by=now + START_ANSWER_S))
        state.watch_agents()
        return [member.id for member in ordered]

    def started(self, task: str, attempt: int, now: float) -> None:
        """Note that a task has started."""
        state = self._state
        if (member := state.gang.get(task, attempt)) is not None:
            member = replace(member, is_ordered=True, started_at=now, answer_by=None)
            state.gang.put(member)
            if state.must_stop(member):  # the order to start came too late
                state.stop([member], "the run is ending", now, grace_s=0.0)
            react(state, now)

    def start_failed(self, task: str, attempt: int, error: str, now: float) -> None:
        """Note that the program of `task` could not be executed."""
        state = self._state
        if (member := state.gang.get(task, attempt)) is not None and not member.is_over:
            state.gang.blame(replace(member, is_lost=True), Kind.START_FAILED, error)
            if attempt == state.gang.number:
                state.end_gang("a task cannot start", now)
            else:
                restarts.revive(state, task, now)
            react(state, now)

    def exited(
        self,
        event: ev.TaskExited,
        now: float,
        *,
        error: Mapping[str, Any] | None = None,
        last_lines: str = "",
    ) -> None:
        """Note that a task has ended; `error` is the exception it reported, if any."""
        state = self._state
        member = state.gang.get(event.task, event.attempt)
        if member is not None and not member.is_over:
            state.gang.note_exit(member, event, error=error, last_lines=last_lines)
            state.set_timer(f"frozen {event.task}", None)
            restarts.revive(state, event.task, now)
            react(state, now)

    def reported(self, task: str, attempt: int, report: Mapping[str, Any], now: float) -> None:
        """Note a task's report about itself."""
        state = self._state
        if (member := state.gang.get(task, attempt)) is not None:
            state.gang.note_report(member, report, now)
            if report.get("type") == "saved" and member.id == state.chief:
                state.restarts.note_saved(report.get("step"))
            if member.id.job != "evaluator":  # its signs of life say nothing about the gang
                state.silence.note(report, now)
            react(state, now)

    def froze(self, task: str, attempt: int, signal: int, now: float) -> None:
        """Note that a signal has stopped the task's process."""
        state = self._state
        member = state.gang.get(task, attempt)
        if member is not None and member.is_running and state.forms_gang:
            state.gang.put(replace(member, frozen_by=signal))
            state.timers[f"frozen {task}"] = now + FROZEN_S
            react(state, now)

    def thawed(self, task: str, attempt: int) -> None:
        """Note that a stopped process runs again."""
        if (member := self._state.gang.get(task, attempt)) is not None:
            self._state.gang.put(replace(member, frozen_by=None))
            self._state.set_timer(f"frozen {task}", None)

    def node_lost(self, node: str, reason: str, now: float) -> None:
        """Note that `node` is lost and reports nothing any more; its guard kills its tasks."""
        reactions.lose_node(self._state, node, reason, now)

    def node_gone(self, node: str, reason: str, now: float) -> None:
        """Note that a lost node is gone for good: none of its tasks can still run."""
        self._state.gone[node] = reason
        if self.next_attempt is None:
            self._state.gang.lose_node(node, reason)
        else:
            restarts.restart_smaller_gang(self._state, now)
        react(self._state, now)

    def gathered(self, step: int | None, now: float, *, name: str | None = None) -> None:
        """Note that a checkpoint of the present attempt is in the run folder."""
        self._state.restarts.note_gathered(step, name)
        react(self._state, now)

    def checkpoints_gathered(self, newest: Newest, now: float) -> None:
        """Decide about a restart: all of the chief's checkpoints are now in the run folder."""
        if self._state.stage is Stage.GATHERING:
            self._state.restarts.note_all_gathered(newest)
            restarts.restart_gang(self._state, now)
            react(self._state, now)

    def links_probed(self, lost: Mapping[str, str], now: float) -> None:
        """Note the result of probing the links; `lost`: node → how it is cut off."""
        reactions.blame_links(self._state, lost, now)
        react(self._state, now)

    def logs_read(self, last_output: float, last_lines: Mapping[str, str], now: float) -> None:
        """Note when any task last wrote, on the inputs' clock, and the last lines asked for."""
        reactions.end_hang(self._state, last_output, last_lines, now)
        react(self._state, now)

    def peers_dialled(self, absent: Sequence[str]) -> None:
        """Note which tasks started elsewhere cannot be reached, each with the reason."""
        self._state.absent = tuple(absent)

    def stop(self, stop: Stop, now: float) -> None:
        """Stop the run on request; a second request kills its tasks at once."""
        state, before = self._state, self._state.ending
        if before is not None and before.status is Status.INTERRUPTED:
            state.end_run(f"{stop.why} again, killing the tasks", before, now, grace_s=0.0)
        else:
            outcome = Outcome(Status.INTERRUPTED, stop.exit_code)
            state.end_run(stop.why, outcome, now, grace_s=0.0 if stop.now else None)
        react(state, now)

    def tick(self, now: float) -> None:
        """Act on the timers that are due, earliest first."""
        timers = self._state.timers
        due = sorted((at, name) for name, at in timers.items() if at <= now)
        for _, name in due:
            del timers[name]
        for _, name in due:
            reactions.act_on_timer(self._state, name, now)
        react(self._state, now)
