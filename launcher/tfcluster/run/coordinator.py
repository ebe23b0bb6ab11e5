"""The one loop that owns a run: inputs come through one queue, only this loop changes state.

What to do is the supervisor's to decide; here it is done, and the time is told.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tfcluster import __version__
from tfcluster.backends.base import Backend
from tfcluster.errors import SurroundingsError
from tfcluster.plan.plan import NodePlan, Plan, TaskId
from tfcluster.run import actions as do
from tfcluster.run import chaos, control, rehearsal
from tfcluster.run import events as ev
from tfcluster.run.ending import Outcome, Stop
from tfcluster.run.events import Event, Status
from tfcluster.run.exchange import Exchange, Message
from tfcluster.run.harvest import Harvest
from tfcluster.run.journal import Journal
from tfcluster.run.output import last_line, last_output, last_text
from tfcluster.run.reports import PREPARE, saved, to_event
from tfcluster.run.shrinking import chief_of
from tfcluster.run.startup import Startup
from tfcluster.run.supervisor import Supervisor

T = TypeVar("T")

STACKS = signal.SIGUSR1
"""Has `tfcluster_workers.boot` write every thread's stack to the log (faulthandler)."""


class _Over(Exception):
    """The run has its outcome."""


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
        faults: Sequence[chaos.Fault] = (),
    ) -> None:
        """`announce` is told each task's port (none for `plain` jobs) before the start."""
        self.plan, self.journal, self.paths = plan, journal, journal.paths
        self._harvest, self._prepares, self._faults = harvest, prepares, faults
        self._exchange = Exchange(backend_of)
        self._startup = Startup(
            plan, self.paths, harvest, self._exchange, self._until, announce, faults
        )
        self._supervisor = Supervisor(
            plan,
            last_output=lambda: last_output(self.paths, self._supervisor.gang, self._now()),
            last_line=lambda member: last_line(self.paths, member),
        )
        self._lost: set[str] = set()
        self._due_alone: list[do.StartAlone] = []
        self._background: asyncio.TaskGroup
        self._is_closing = False

    def stop(self, stop: Stop) -> None:
        """End the run early; a second call kills at once, one after the end stops copying."""
        if self._is_closing:
            self._harvest.cancel()
        else:
            self._exchange.put(lambda: self._supervisor.stop(stop, self._now()))

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
            self._supervisor.begin_run(self._now())
            self._background = background
            gathering: asyncio.Task[None] | None = None
            error: SurroundingsError | None = None
            try:
                await self._prepare()
                await self._start(1, tuple(task.id for task in self.plan.tasks))
                gathering = background.create_task(self._harvest.follow(self._put_event))
                await self._keep_going()
            except _Over:
                pass
            except SurroundingsError as found:
                error = found
            finally:
                self._is_closing = True
                if gathering is not None:
                    gathering.cancel()
                await self._exchange.close()
            return await self._conclude(error)

    # -- attempts ---------------------------------------------------------------------------

    async def _prepare(self) -> None:
        for node in self.plan.nodes:
            await self._connect(node)
        if self.plan.kind != "plain":
            await self._startup.hold_ports()
        if self._prepares:
            await self._startup.prepare()

    async def _connect(self, node: NodePlan) -> None:
        await self._exchange.connect(
            node,
            self.paths.run_id,
            on_message=self._on_message,
            on_closed=self._on_closed,
            background=self._background,
        )
        self._lost.discard(node.name)

    async def _keep_going(self) -> None:
        """Start again what the supervisor wants, until the run is over."""
        while True:
            await self._until(lambda: self._supervisor.again is not None or self._due_alone != [])
            if (again := self._supervisor.again) is not None:
                await self._start_again(again)
            else:
                await self._start_alone(self._due_alone.pop(0))

    async def _start(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self._supervisor.begin(number, members)
        self._due_alone.clear()
        await self._while_heeding(self._startup.start_tasks(number, members, only=to_start))

    async def _start_again(self, again: do.Again) -> None:
        until = self._now() + again.delay_s
        await self._until(lambda: self._now() >= until, at=until)
        if again.fresh_ports:
            await self._startup.hold_ports()
        await self._reconnect()
        self._harvest.heed(chief_of(again.members))
        await self._start(again.number, again.members)

    async def _start_alone(self, wanted: do.StartAlone) -> None:
        await self._reconnect()
        members = tuple(member.id for member in self._supervisor.gang)
        await self._while_heeding(
            self._startup.start_tasks(wanted.attempt, members, only=[wanted.task])
        )

    async def _reconnect(self) -> None:
        """Lost nodes get a new agent; no task of before lives there when it answers."""
        while lost := [node for node in self.plan.nodes if node.name in self._lost]:
            for node in lost:
                self._wait_for(f"the agent of {node.name}")
                await self._while_heeding(self._connect(node))
            if self.plan.kind != "plain":
                await self._startup.hold_ports()

    def _wait_for(self, what: str) -> None:
        self.journal.state.waits_for = what
        self.journal.touch()

    async def _bring_home(self) -> None:
        events = await self._harvest.bring_home()
        self._exchange.put(lambda: self._on_home(events))

    def _on_home(self, events: list[Event]) -> None:
        for event in events:
            self._record(event)
        self._supervisor.home(self._harvest.newest_step, self._now())

    # -- the loop ---------------------------------------------------------------------------

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def _turn(self, at: float | None = None) -> None:
        """Send what waits, then handle the next inputs, or what is due."""
        await self._exchange.flush()
        self.journal.save()
        due = [moment for moment in (at, self._supervisor.wake_at) if moment is not None]
        waits = [max(0.0, moment - self._now()) for moment in due]
        waits += [] if self.journal.wake_s is None else [self.journal.wake_s]
        await self._exchange.turn(min(waits, default=None))
        self._supervisor.tick(self._now())
        self._carry_out()

    async def _until(self, condition: Callable[[], bool], *, at: float | None = None) -> None:
        """Handle inputs until `condition` holds; look at it again at the moment `at`."""
        while not condition():
            if self._supervisor.outcome is not None:
                raise _Over
            await self._turn(at)
        if self._supervisor.outcome is not None:
            raise _Over

    async def _while_heeding(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` and handle inputs meanwhile; it is called off when the run is over."""
        task = asyncio.create_task(work)
        task.add_done_callback(lambda _: self._exchange.put(_nothing))
        try:
            await self._until(task.done)
            return task.result()
        finally:
            task.cancel()
            await asyncio.wait([task])

    def _carry_out(self) -> None:
        for action in self._supervisor.orders.take():
            self._do(action)

    def _do(self, action: do.Action) -> None:
        match action:
            case do.Record(event):
                self._record(event)
            case do.StopTasks(node, tasks, grace_s, why):
                order = {"type": "stop", "tasks": list(tasks), "grace_s": grace_s, "why": why}
                self._exchange.send(node, order)
            case do.DumpStacks(node, tasks):
                order = {"type": "signal", "tasks": list(tasks), "signal": int(STACKS)}
                self._exchange.send(node, order)
            case do.StartAlone():
                self._due_alone.append(action)
            case do.BringHome():
                self._background.create_task(self._bring_home())
            case do.DropNode(node):
                self._background.create_task(self._exchange.drop(node))

    # -- inputs -----------------------------------------------------------------------------

    def _put_event(self, event: Event) -> None:
        self._exchange.put(lambda: self._record(event))

    def _record(self, event: Event) -> None:
        if isinstance(event, ev.CheckpointGathered):
            self.journal.state.checkpoints = self._harvest.held()
            self._supervisor.gathered(event.step, self._now())
        self.journal.record(event)

    def _on_message(self, node: str, message: Message) -> None:
        self._exchange.keep(node, message)
        event = to_event(node, message)
        if isinstance(event, ev.NodeConnected) and node in self.journal.state.agents:
            event = ev.NodeReconnected(node=node, pid=event.pid, guard_pid=event.guard_pid)
        if event is not None:
            self._record(event)
        if message["type"] == "guard_lost":
            self._lose(node, "the guard beside its agent was killed")
        elif message["type"] == "refused":
            self._lose(node, f"its agent could not obey ({message['reason']})")
        elif "attempt" in message and message["task"] != PREPARE:
            self._on_task(message, event)

    def _on_task(self, message: Message, event: Event | None) -> None:
        task, attempt, now = message["task"], message["attempt"], self._now()
        match message["type"]:
            case "task_started":
                self._supervisor.started(task, attempt, now)
            case "start_failed":
                self._supervisor.start_failed(task, attempt, message["error"], now)
            case "task_event":
                self._on_report(task, attempt, message["event"])
            case "task_stopped":
                self._supervisor.froze(task, attempt, message["signal"], now)
            case "task_continued":
                self._supervisor.thawed(task, attempt)
            case "task_exited" if isinstance(event, ev.TaskExited):
                log = self.paths.task_log(TaskId.parse(task), attempt)
                error = self.journal.task(task).error
                self._supervisor.exited(event, now, error=error, last_lines=last_text(log))
                if TaskId.parse(task) == self._supervisor.chief:
                    self._harvest.chief_left()

    def _on_report(self, task: str, attempt: int, report: Message) -> None:
        fault = str(report.get("fault")) if report.get("type") == "chaos" else ""
        if (ordered := chaos.order(self._faults, fault)) is not None:
            self._exchange.send(*ordered)
        self._supervisor.reported(task, attempt, report, self._now())
        if TaskId.parse(task) == self._supervisor.chief and (found := saved(report)) is not None:
            self._harvest.saved(*found)

    def _on_closed(self, node: str, last_words: str) -> None:
        if not self._is_closing:
            self._lose(node, f"its agent went away {last_words}".strip())

    def _lose(self, node: str, reason: str) -> None:
        if node not in self._lost:
            self._lost.add(node)
            self._supervisor.node_lost(node, reason, self._now())

    # -- the end ----------------------------------------------------------------------------

    async def _conclude(self, error: SurroundingsError | None) -> Outcome:
        self._carry_out()
        if self._supervisor.gang.has_started:
            for event in await self._harvest.finish():
                self._record(event)
        if (unread := self._supervisor.gang.unread_settings()) is not None:
            self.journal.record(ev.Warned(message=unread, closing=True))
        for warning in rehearsal.not_injected(self._faults, self.journal.state):
            self.journal.record(ev.Warned(message=warning, closing=True))
        outcome = self._supervisor.outcome
        if outcome is None:
            assert error is not None
            outcome = Outcome(Status.FAILED, error.exit_code, error)
        self.journal.record(ev.RunFinished(status=outcome.status, exit_code=outcome.exit_code))
        return outcome


def _nothing() -> None:
    """Wakes the loop, which then looks at its condition again."""
