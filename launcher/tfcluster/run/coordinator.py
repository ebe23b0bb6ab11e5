"""The one loop that owns a run: inputs come through one queue, only this loop changes state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from tfcluster import __version__
from tfcluster.backends.base import Backend
from tfcluster.errors import NodeLostError, SurroundingsError
from tfcluster.plan.plan import NodePlan, Plan
from tfcluster.run import control, diagnosis
from tfcluster.run import events as ev
from tfcluster.run.ending import Next, Outcome, Stop, judge
from tfcluster.run.events import Event, Status
from tfcluster.run.exchange import Exchange, Message
from tfcluster.run.gang import Gang, Member, longest_grace_s, stops
from tfcluster.run.harvest import Harvest
from tfcluster.run.journal import Journal
from tfcluster.run.reports import saved, to_event
from tfcluster.run.startup import Startup
from tfcluster.run.tail import last_text

CAUSE_WAIT_S = 12.0
"""How long a collateral failure waits for its cause: TensorFlow's heartbeat time-out is 10 s."""
FAILURE_GRACE_S = 1.0
"""Survivors of a failure cannot save; they get this long after SIGTERM."""
AGENT_SLACK_S = 15.0
"""An agent that has not reported the end of its tasks so long after the grace is itself lost."""


class _Interrupted(Exception):
    """A stop was asked for before all tasks had been started."""


class Coordinator:
    """Runs one plan to its end: `await run()`; `stop` may be called at any time from its loop."""

    def __init__(
        self,
        plan: Plan,
        journal: Journal,
        harvest: Harvest,
        *,
        backend_of: Callable[[NodePlan], Backend],
        announce: Callable[[Mapping[str, int]], None] = lambda ports: None,
        prepares: bool = True,
    ) -> None:
        """`announce` is told each task's port (none for `plain` jobs) before the start."""
        self.plan, self.journal, self.paths = plan, journal, journal.paths
        self._harvest, self._prepares = harvest, prepares
        self._exchange = Exchange(backend_of)
        self._startup = Startup(plan, self.paths, harvest, self._exchange, self._until, announce)
        self._gang = Gang(plan)
        self._forms_gang = plan.kind != "plain"
        self._stop: Stop | None = None
        self._error: SurroundingsError | None = None
        self._is_ending = self._is_closing = False
        self._deadline: float | None = None
        self._verdict = Next.GO_ON

    def stop(self, stop: Stop) -> None:
        """End the run early; a second call kills at once, one after the end stops copying."""
        if self._is_closing:
            self._harvest.cancel()
        else:
            self._exchange.put(lambda: self._on_stop(stop))

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Serve the control socket; raises ValueError for an op that is unknown."""
        match request.get("op"):
            case "stop":
                self.stop(Stop(str(request.get("why")), 143, now=bool(request.get("now"))))
                return {"ok": True}
            case "status":
                return {"ok": True, "state": self.journal.state.to_json()}
            case other:
                raise ValueError(f"unknown op {other!r}")

    async def run(self) -> Outcome:
        """From the first connection to the last event; a user's failure is in the outcome."""
        async with (
            control.serve(self.paths.control_socket, self.answer),
            asyncio.TaskGroup() as background,
        ):
            self.journal.record(ev.RunStarted(version=__version__, run=self.paths.run_id))
            gathering: asyncio.Task[None] | None = None
            try:
                await self._launch(background)
                gathering = background.create_task(self._harvest.follow(self._put_event))
                await self._watch()
            except _Interrupted:
                await self._await_ends()
            except SurroundingsError as error:
                self._error = error
            finally:
                self._is_closing = True
                if gathering is not None:
                    gathering.cancel()
                await self._exchange.close()
            return await self._conclude()

    # -- before training --------------------------------------------------------------------

    async def _launch(self, background: asyncio.TaskGroup) -> None:
        for node in self.plan.nodes:
            await self._exchange.connect(
                node,
                self.paths.run_id,
                on_message=self._on_message,
                on_closed=self._on_closed,
                background=background,
            )
        if self._forms_gang:
            await self._startup.hold_ports()
        if self._prepares:
            await self._startup.prepare()
        await self._startup.start_tasks()
        await self._until(lambda: all(member.is_started for member in self._gang))

    # -- while training ---------------------------------------------------------------------

    async def _watch(self) -> None:
        while (verdict := self._judge()) not in (Next.SUCCEED, Next.FAILED):
            if not self._is_ending:
                self._react(verdict)
            await self._turn()

    def _judge(self) -> Next:
        return judge(self._gang.ends(), chief=self.plan.chief, gang=self._forms_gang)

    def _react(self, verdict: Next) -> None:
        if verdict is not self._verdict:  # what was waited for so far is no matter any more
            self._verdict, self._deadline = verdict, None
        match verdict:
            case Next.FAIL:
                self._end_all("another task failed", FAILURE_GRACE_S)
            case Next.AWAIT_CAUSE:
                self._deadline = self._deadline or self._now() + CAUSE_WAIT_S
            case Next.FINISH:
                self._end(self._gang.serving(), "the chief has finished", FAILURE_GRACE_S)
                grace = self.plan.supervision.finish_grace_s
                self._deadline = self._deadline or self._now() + grace

    def _on_deadline(self) -> None:
        """The cause did not come, the rest did not finish, or an agent does not answer."""
        self._deadline = None
        if not self._is_ending:
            if self._judge() is Next.AWAIT_CAUSE:
                self._gang.blame_the_late()
            late = ", ".join(str(member.id) for member in self._gang.running())
            self.journal.record(ev.Warned(message=f"{late} did not end with the others: ended"))
            self._end_all("the others have ended", FAILURE_GRACE_S)
            return
        for node in {member.node for member in self._gang.running()}:
            self._lose(node, "its agent does not answer")

    # -- inputs -----------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _turn(self) -> None:
        """Send what waits, then handle the next inputs, or the deadline."""
        await self._exchange.flush()
        self.journal.save()
        waits = [] if self._deadline is None else [max(0.0, self._deadline - self._now())]
        waits += [] if self.journal.wake_s is None else [self.journal.wake_s]
        await self._exchange.turn(min(waits, default=None))
        if self._deadline is not None and self._now() >= self._deadline:
            self._on_deadline()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._stop is not None:
                raise _Interrupted
            if self._error is not None:
                raise self._error
            await self._turn()

    async def _await_ends(self) -> None:
        while self._gang.running() and self._error is None:
            await self._turn()

    def _put_event(self, event: Event) -> None:
        self._exchange.put(lambda: self._record(event))

    def _record(self, event: Event) -> None:
        if isinstance(event, ev.CheckpointGathered):
            self.journal.state.checkpoints = self._harvest.held()
        self.journal.record(event)

    def _on_message(self, node: str, message: Message) -> None:
        self._exchange.keep(node, message)
        event = to_event(node, message)
        if event is not None:
            self._record(event)
        if message["type"] == "guard_lost":
            self._lose(node, "the guard beside its agent was killed")
        elif message["type"] == "refused":
            self._lose(node, f"its agent could not obey ({message['reason']})")
        elif (member := self._gang.get(message.get("task"))) is not None:
            self._on_member(member, message, event)

    def _on_member(self, member: Member, message: Message, event: Event | None) -> None:
        match event:
            case ev.TaskStarted():
                member.is_started = True
                if self._is_ending:  # its order was on the way when the end came
                    self._end([member], "the run is ending", 0.0)
            case ev.TaskExited():
                log = self.paths.task_log(member.id, event.attempt)
                error = self.journal.task(event.task).error
                self._gang.note_exit(member, event, error=error, last_lines=last_text(log))
                if member.id == self.plan.chief:
                    self._harvest.chief_left()
        if message["type"] == "start_failed":
            self._error = self._error or SurroundingsError(
                f"{member.id} cannot start: {message['error']}",
                cure="`tfcluster plan --task` shows its command",
            )
        elif message["type"] == "task_event":
            self._on_report(member, message["event"])

    def _on_report(self, member: Member, report: Message) -> None:
        self._gang.note_report(member, report)
        if member.id == self.plan.chief and (found := saved(report)) is not None:
            self._harvest.saved(*found)

    def _on_closed(self, node: str, last_words: str) -> None:
        if not self._is_closing:
            self._lose(node, f"its agent went away {last_words}".strip())

    def _on_stop(self, stop: Stop) -> None:
        grace_s = 0.0 if stop.now or self._stop else None
        why = f"{stop.why} again, tasks are killed" if self._stop else stop.why
        self._stop = self._stop or stop
        orders = stops(self._gang.running(), grace_s, most_s=self.plan.supervision.grace_s)
        self.journal.record(ev.RunStopping(why=why, grace_s=longest_grace_s(orders)))
        self._is_ending = False
        self._end_all(why, grace_s)

    # -- ending -----------------------------------------------------------------------------

    def _lose(self, node: str, reason: str) -> None:
        if self._error is None:
            self.journal.record(ev.NodeLost(node=node, reason=reason))
            self._error = NodeLostError(
                f"node {node} is lost: {reason}; its tasks were ended",
                cure="the summary says what was gathered; start the run again",
            )
        self._gang.lose_node(node)
        self._end_all("a node is lost", FAILURE_GRACE_S)

    def _end_all(self, why: str, grace_s: float | None) -> None:
        """End every running task; without `grace_s` each gets as long as it can use."""
        if not self._is_ending:
            self._is_ending = True
            longest = self._end(self._gang.running(), why, grace_s)
            self._deadline = self._now() + longest + AGENT_SLACK_S

    def _end(self, members: list[Member], why: str, grace_s: float | None) -> float:
        """Returns the longest grace given, seconds."""
        orders = stops(members, grace_s, most_s=self.plan.supervision.grace_s)
        for member in members:
            member.is_stopping = True
        for order in orders:
            message = {"type": "stop", "tasks": order.tasks, "grace_s": order.grace_s, "why": why}
            self._exchange.send(order.node, message)
            for task in order.tasks:
                attempt = self.journal.state.attempt
                self.journal.record(ev.TaskStopping(task=task, attempt=attempt, why=why))
        return longest_grace_s(orders)

    async def _conclude(self) -> Outcome:
        if self._gang.has_started:
            for event in await self._harvest.finish():
                self._record(event)
        if (unread := self._gang.unread_settings()) is not None:
            self.journal.record(ev.Warned(message=unread, closing=True))
        if (facts := diagnosis.to_json(self._gang.failures)) is not None and self._stop is None:
            self.journal.record(ev.Diagnosis(**facts))
        outcome = self._outcome()
        self.journal.record(ev.RunFinished(status=outcome.status, exit_code=outcome.exit_code))
        return outcome

    def _outcome(self) -> Outcome:
        if self._stop is not None:
            return Outcome(Status.INTERRUPTED, self._stop.exit_code)
        if self._error is not None:
            return Outcome(Status.FAILED, self._error.exit_code, self._error)
        if self._judge() is Next.SUCCEED:
            return Outcome(Status.SUCCEEDED, 0)
        return Outcome(Status.FAILED, 1)
