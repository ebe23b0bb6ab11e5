"""The coordinator of a run: inputs come through one queue, and only its loop changes state.

The supervisor decides what to do; the coordinator does it and supplies the time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cached_property, partial
from pathlib import PurePosixPath
from typing import Any

from tfcluster import __version__
from tfcluster.agent import budgets, message_fields
from tfcluster.agent import catalogue as msg
from tfcluster.backends.base import open_nodes
from tfcluster.backends.jobs import Ending, OwnJob
from tfcluster.coordinator.attempts import Attempts
from tfcluster.coordinator.curves.tensorboard_files import RunCurves
from tfcluster.coordinator.curves.tensorboard_server import beside_run
from tfcluster.coordinator.external_peers import follow_peers
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.launch import Launch, with_lease
from tfcluster.coordinator.loop import Loop, RunLoop, RunOver
from tfcluster.coordinator.lost_nodes import LostNodes
from tfcluster.coordinator.metrics_file import MetricsFile
from tfcluster.coordinator.startup import Startup
from tfcluster.coordinator.takeover import leave_if_replaced
from tfcluster.coordinator.task_profiles import TaskProfiles
from tfcluster.coordinator.task_stacks import TaskStacks
from tfcluster.errors import JobEndedError, SetupError, UsageError, join_first, signal_name
from tfcluster.node_loss import NodeLoss
from tfcluster.nodes.hub import Hub, OpenNodes
from tfcluster.nodes.reports import (
    STEPS,
    ReportFilter,
    event_of_task,
    loss_of_node,
    to_event,
)
from tfcluster.nodes.task_folders import TaskFolders
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.preflight.known_links import known_link
from tfcluster.preflight.probes import probe_links
from tfcluster.rundir import chaos, control, heartbeat
from tfcluster.rundir import events as ev
from tfcluster.rundir.events import Event
from tfcluster.rundir.figures import SPEEDS, follows, state_json
from tfcluster.rundir.run_writer import RunWriter, write_json
from tfcluster.rundir.states import Status
from tfcluster.rundir.task_logs import last_line, last_output, last_text
from tfcluster.supervision import decisions as do
from tfcluster.supervision.decisions import Outcome, StopRequest
from tfcluster.supervision.restarting import REACH_S
from tfcluster.supervision.supervisor import Supervisor
from tfcluster.typed_json import to_json

_SHOWN = 3
_SHOW_EVERY_S = 1.0
_REPORT_AFTER, _REPORT_EVERY = 5, 30
"""Counted in steps of `_SHOW_EVERY_S`: short waits are not reported, long ones rarely."""
_LATE_STOP = "the tasks have ended, and their files are being copied; stop again to leave them"
_SUSPENDED_S = 10.0
"""A shorter stop of this process is no suspension of its job: a file server may have kept it."""


class Coordinator:
    """The coordinator of one run: `await run()`; `stop` may be called at any time in its loop."""

    def __init__(
        self,
        launch: Launch,
        run_writer: RunWriter,
        run_gathering: RunGathering,
        *,
        open_nodes: OpenNodes = open_nodes,
        announce: Callable[[Plan], None] = lambda plan: None,
        job: OwnJob | None = None,
        metrics_file: MetricsFile | None = None,
    ) -> None:
        """Prepare the run.

        `announce` is called before the start with the plan, now with every host and port; `job`:
        the scheduler's job that this process and the run's nodes belong to; `metrics_file` is kept
        up to date.
        """
        self.run_writer, self.paths = run_writer, run_writer.paths
        self._run_gathering, self._launch, plan = run_gathering, launch, launch.plan
        self._curves = RunCurves(plan, self.paths, self._warn)
        run_writer.listeners += [self._note_gathered, self._curves.record]
        self._report_filter = ReportFilter(run_writer.state, launch.faults, self._warn)
        self._hub = hub = Hub(
            self.paths,
            plan.supervision.lease_s,
            self._warn,
            lambda reason: self._put_event(ev.RunQueued(reason=reason)),
            open_nodes,
            plan=plan,
            runtime=launch.runtime,
        )
        self._supervisor = Supervisor(plan, run_id=self.paths.run_id)
        self._supervisor.step_times.link = known_link(plan, launch.runtime)
        self._supervisor.restarting.gathers = run_gathering.is_gathering
        self._loop = Loop(hub, self._supervisor, run_writer, self._carry_out)
        self._startup = Startup(launch, self.paths, hub, run_writer, self._loop.until, announce)
        self._lost_nodes = LostNodes(self._supervisor, self._startup, self._loop)
        self._attempts = Attempts(
            self._supervisor, self._startup, self._lost_nodes, self._loop, run_gathering
        )
        self._folders = TaskFolders(plan, self.paths, hub)
        run_gathering.use(self._folders)
        self._profiles: TaskProfiles | None = None
        """The profiles, once one was asked for."""
        self.job, self._metrics_file = job, metrics_file
        self._ending: asyncio.Task[Ending | None] | None = None
        """The question why the scheduler ends the job; None until it announces that."""
        self._probing: asyncio.Task[None] | None = None
        self._background: asyncio.TaskGroup
        self._is_closing = False
        self._stopped_late: StopRequest | None = None
        """The last request to stop since the tasks have ended."""
        self._preload_failures: set[str] = set()
        """The reported reasons why tasks start without preloading."""

    @property
    def plan(self) -> Plan:
        """The plan, with the host names of all nodes once they are allocated."""
        return self._startup.plan

    def stop(self, stop: StopRequest) -> None:
        """End the run early; a second call kills at once.

        Once the tasks have ended, the first call lets the copying finish, and the second, or one
        that is `now`, stops it.
        """
        if self._stopped_late is not None or (self._is_closing and stop.now):
            self._stopped_late = stop
            self._run_gathering.cancel()
        elif self._is_closing:
            self._stopped_late = stop
            if facts := self._run_gathering.gathering():
                self._put_event(ev.Hint(message=_LATE_STOP))
                self._put_event(ev.Gathering(**facts))
        else:
            self._hub.put(lambda: self._supervisor.stop(stop, self._now()))

    def go_to_background(self) -> None:
        """Give the nodes the lease of a run whose starter has left it."""
        plan = with_lease(self._launch.plan, self._launch.spec)
        if plan is not self._launch.plan:
            self._hub.set_lease(plan.supervision.lease_s)
            with contextlib.suppress(OSError):  # `down` of a lost run expects an earlier end
                write_json(self.paths.plan, to_json(plan))

    def scale_to(self, workers: int) -> str:
        """Restart the gang with this number of workers; return a sentence, or raise UsageError."""
        answer = self._supervisor.scale_to(workers, self._now())
        self._hub.wake()  # to carry out the orders
        return answer

    def end_job(self, number: int) -> None:
        """Note that the scheduler has sent this signal, to end the job or for `tfcluster down`."""
        if self._is_closing and self.paths.cancelled.exists():
            self.stop(StopRequest("tfcluster down", 143))
        else:
            self._hub.put(lambda: self._end_job(number))

    def _end_job(self, number: int) -> None:
        """Have the gang save, and ask meanwhile why; see `_as_end_of_job` for what follows.

        `tfcluster down` of a job in a queue sends this signal through the scheduler.
        """
        if self.job is None or self._ending is not None or self._is_closing:
            return
        self._ending = self._background.create_task(self.job.ending(signal=number))
        is_down = self.paths.cancelled.exists()
        why = "tfcluster down" if is_down else f"{signal_name(number)} from the scheduler"
        stop = StopRequest(why, 143, is_announced=True)
        self._supervisor.stop(stop, self._now())

    async def run(self) -> Outcome:
        """Run the plan from the first connection to the last event; return the outcome.

        A failure of the job or its environment is part of the outcome, not an exception.
        """
        if isinstance(loop := asyncio.get_running_loop(), RunLoop):
            loop.on_stopped = self._on_stopped
        controlled = control.ControlledRun(
            stop=lambda reason, now: self.stop(StopRequest(reason, 143, now=now)),
            get_state=lambda: state_json(self.run_writer.state),
            scale_to=self.scale_to,
            get_stacks=lambda tasks: self._stacks.ask(tasks),
            profile=self._profile,
            open_exec=self._open_exec,
        )
        python = self._launch.tensorboard_python
        async with (
            control.serve(self.paths.control_socket, controlled),
            beside_run(python, self.paths.curves, self._put_event)
            if python is not None
            else contextlib.nullcontext(),
            asyncio.TaskGroup() as background,
        ):
            self.run_writer.record(ev.RunStarted(version=__version__, run=self.paths.run_id))
            self._background = background
            self._hub.listen(background, self._on_message, self._on_closed)
            if self.job is not None:
                self._supervisor.restarting.can_come_back = await self.job.can_come_back()
            lasting = [
                background.create_task(self._beat()),
                background.create_task(self._show_gathering()),
            ]
            if self._metrics_file is not None:
                lasting.append(background.create_task(self._metrics_file.keep_written()))
            try:
                error = await self._run_attempts()
            finally:
                gathered = await self._close()
            try:
                return await self._conclude(error, gathered)
            finally:
                for task in lasting:
                    task.cancel()

    async def _run_attempts(self) -> SetupError | None:
        """Run all attempts; return the error that ended them, if the supervisor did not."""
        following = [
            self._background.create_task(self._run_gathering.follow(self._put_event)),
        ]
        if self.plan.elsewhere:
            following.append(self._background.create_task(self._follow_external_peers()))
        try:
            await self._loop.run(self._attempts.run())
        except RunOver:
            pass
        except SetupError as error:
            return error
        finally:
            for task in following:
                task.cancel()
        return None

    async def _beat(self) -> None:
        """Show other machines that this coordinator lives, until cancelled."""
        while True:
            leave_if_replaced(self.paths)
            heartbeat.beat(self.paths)
            await asyncio.sleep(heartbeat.BEAT_S)

    def _on_stopped(self, seconds: float) -> None:
        """Go on after this process was stopped, with the run's other processes or alone."""
        leave_if_replaced(self.paths)
        if self.job is not None and seconds >= _SUSPENDED_S:
            self._hub.put(lambda: self._supervisor.suspended(seconds, self._now()))

    async def _show_gathering(self) -> None:
        """Show which files are being copied, and record a long wait for them, until cancelled."""
        steps, before = 0, None
        while True:
            await asyncio.sleep(_SHOW_EVERY_S)
            now = self._run_gathering.gathering()
            if now != before:
                self._hub.put(partial(self.run_writer.note_gathering, now))
            steps, before = steps + 1 if now else 0, now
            if now and steps % _REPORT_EVERY == _REPORT_AFTER:
                self._put_event(ev.Gathering(**now))

    # -- actions ----------------------------------------------------------------------------

    async def _probe_links(self, attempt: int) -> None:
        plan, paths, hub = self.plan, self.paths, self._hub
        lost = await probe_links(plan, paths, hub, attempt, is_over=lambda: self._is_closing)
        self._hub.put(lambda: self._supervisor.links_probed(lost, self._now()))

    async def _follow_external_peers(self) -> None:
        gang = self._supervisor.gang

        def note_absent(absent: Sequence[str]) -> None:
            self._hub.put(lambda: self._supervisor.peers_dialled(absent))
            self._hub.put(lambda: self.run_writer.wait_for(join_first(absent, _SHOWN) or None))

        await follow_peers(
            lambda: self._startup.announced,
            lambda: any(member.is_running and member.waits_for_peers for member in gang),
            note_absent,
        )

    def _read_logs(self, tasks: Sequence[str]) -> None:
        gang, paths, now = self._supervisor.gang, self.paths, self._now()
        logs = {task: paths.task_log(gang[task].id, gang[task].attempt) for task in tasks}
        lines = {task: last_line(log) for task, log in logs.items()}
        self._supervisor.logs_read(self._last_output(), lines, now)

    async def _gather_latest(self) -> None:
        events = await self._run_gathering.gather_latest()
        if self._probing is not None:  # it may find the cause
            await asyncio.wait([self._probing])

        def note() -> None:
            for event in events:
                self.run_writer.record(event)
            self._supervisor.all_checkpoints_gathered(self._run_gathering.newest, self._now())

        self._hub.put(note)

    def _carry_out(self) -> None:
        while orders := self._supervisor.take_orders():
            for order in orders:
                self._do(order)

    def _do(self, action: do.Action) -> None:
        match action:
            case do.Record(event):
                self.run_writer.record(event)
            case do.StopTasks(node, tasks, grace_s):
                self._hub.send(node, msg.Stop(tasks=[*tasks], grace_s=grace_s))
            case do.AskForStacks(node, tasks):
                self._take_stacks(node, tasks)
            case do.StartAlone():
                self._attempts.due_alone.append(action)
            case do.GatherCheckpoints():
                self._background.create_task(self._gather_latest())
            case do.ProbeLinks(attempt):
                self._probing = self._background.create_task(self._probe_links(attempt))
            case do.ReadLogs(tasks):
                self._read_logs(tasks)
            case do.DropNode(node):
                self._lost_nodes.drop(node)
                self._background.create_task(self._hub.drop(node))

    def _last_output(self) -> float:
        running = self._supervisor.gang.running()
        logs = (self.paths.task_log(member.id, member.attempt) for member in running)
        return last_output(logs, self._now())

    @cached_property
    def _stacks(self) -> TaskStacks:
        return TaskStacks(self._supervisor.gang, self._take_stacks)

    def _take_stacks(self, node: str, tasks: Sequence[str]) -> None:
        now = self._now()
        self._supervisor.stacks_asked(self._last_output(), now)
        self._hub.send(node, msg.TakeStacks(tasks=[*tasks]))
        self._hub.wake()

    def _profile(self, tasks: Sequence[str], steps: int) -> str:
        if self._profiles is None:
            state, gang = self.run_writer.state, self._supervisor.gang
            self._profiles = TaskProfiles(state, gang, self._hub, self._folders, self._put_event)
        return self._profiles.begin(tasks, steps, self._background.create_task)

    def _open_exec(
        self, task: str, argv: Sequence[str], terminal: Mapping[str, Any] | None
    ) -> AbstractAsyncContextManager[control.ExecSession]:
        running = {member.name: member for member in self._supervisor.gang.running()}
        if task not in running:
            fix = "`tfcluster status` shows the tasks"
            raise UsageError(f"{task} does not run", fix=fix)
        return self._hub.execs.open(running[task].node, task, argv, terminal)

    def _now(self) -> float:
        return self._loop.now()

    # -- inputs -----------------------------------------------------------------------------

    def _warn(self, sentence: str) -> None:
        self._put_event(ev.Warned(message=sentence))

    def _put_event(self, event: Event) -> None:
        """Record an event once the present input is handled; while nodes close none is."""
        if self._is_closing:
            self.run_writer.record(event)
        else:
            self._hub.put(lambda: self.run_writer.record(event))

    def _note_gathered(self, event: Event) -> None:
        if isinstance(event, ev.CheckpointGathered):
            self.run_writer.state.checkpoints = self._run_gathering.list_gathered()
            name = PurePosixPath(event.path).name
            self._supervisor.checkpoint_gathered(event.step, self._now(), name=name)

    def _on_message(self, node: str, message: msg.Report) -> None:
        self._hub.keep(node, message)
        if isinstance(message, msg.TaskEvent):
            self._on_report(message)
            return
        if isinstance(message, msg.PreloadFailed):
            known = self._preload_failures
            if message.error in known or len(known) == budgets.WARNINGS:
                return  # usually another node has the same packages: the user reads it once
            known.add(message.error)
        event = to_event(node, message)
        if isinstance(event, ev.TaskExited):
            error = self.run_writer.task(event.task).error
            event = self._supervisor.gang.correct_ended_by(event, error)
        if isinstance(event, ev.NodeConnected) and node in self.run_writer.state.agents:
            event = ev.NodeReconnected(
                node=node, pid=event.pid, guard_pid=event.guard_pid, identity=event.identity
            )
        if event is not None:
            self.run_writer.record(event)
        if isinstance(event, ev.Usage):
            self._supervisor.step_times.note_usage(event)
        if isinstance(message, msg.EndAnnounced):
            self._on_end_announced(node, message.signal)
        elif (loss := loss_of_node(message)) is not None:
            self._lost_nodes.lose(node, loss)
        elif isinstance(message, msg.TaskMessage) and message.task not in STEPS:
            self._on_task(message, event)

    def _on_end_announced(self, node: str, number: int) -> None:
        """Act on a scheduler's signal: it ends its whole job with its step, else only a node."""
        if not self.plan.node(node).capabilities.ends_alone:
            self._end_job(number)
        elif not self._is_closing:
            self._background.create_task(self._lost_nodes.leave(node, signal_name(number)))

    def _on_task(self, message: msg.TaskMessage, event: Event | None) -> None:
        task, attempt, now = message.task, message.attempt, self._now()
        is_chief = self._is_chief(message)
        match message:
            case msg.TaskStarted():
                self._supervisor.started(task, attempt, now)
            case msg.StartFailed(error=problem):
                self._supervisor.start_failed(task, attempt, problem, now)
            case msg.TaskFrozen(signal=number):
                self._supervisor.froze(task, attempt, number, now)
            case msg.TaskThawed():
                self._supervisor.thawed(task, attempt)
            case msg.Stacks():
                self._stacks.note(message)
                self._supervisor.stacks_taken(task, attempt, message, now)
            case msg.TaskExited() if isinstance(event, ev.TaskExited):
                log = self.paths.task_log(TaskId.parse(task), attempt)
                error = self.run_writer.task(task).error
                self._supervisor.exited(event, now, error=error, last_lines=last_text(log))
                if is_chief:
                    self._run_gathering.note_chief_ended()

    def _on_report(self, message: msg.TaskEvent) -> None:
        report = self._report_filter.take(message)
        if report is None or message.task in STEPS:
            return
        if (event := event_of_task(report)) is not None:
            self.run_writer.record(self._with_one_speed(event))
        is_chief = self._is_chief(message)
        if isinstance(report, msg.ChaosInjected):
            self._hub.inject(chaos.ordered(self._launch.faults, report.fault))
        self._supervisor.reported(report, self._now())
        if is_chief and isinstance(report, msg.Saved):
            self._run_gathering.saved(report)
        if isinstance(report, msg.Evaluated):
            self._run_gathering.evaluated(report)
        if isinstance(report, msg.Profiled) and self._profiles is not None:
            self._profiles.note(report)

    def _with_one_speed(self, event: Event) -> Event:
        """Return progress without a speed if the task takes its steps with the leading one."""
        if not isinstance(event, ev.Progress) or not follows(self.run_writer.state, event.task):
            return event
        return message_fields.replace(event, **dict.fromkeys(SPEEDS))

    def _is_chief(self, message: msg.TaskMessage) -> bool:
        """Return whether the message is of the chief in its present attempt."""
        is_current = self._supervisor.gang.get(message.task, message.attempt) is not None
        return is_current and TaskId.parse(message.task) == self._supervisor.gang.chief

    def _on_closed(self, node: str, loss: NodeLoss) -> None:
        if not self._is_closing:
            self._lost_nodes.lose(node, loss)

    # -- the end ----------------------------------------------------------------------------

    async def _close(self) -> list[Event] | None:
        """Close the links to all agents; return the events of the final gathering if it is done.

        The final gathering is only done here if it needs the agents.
        """
        self._is_closing = True
        try:
            if self._profiles is not None:
                await self._loop.run_to_end(self._profiles.end())
            needs_agents = self._run_gathering.needs_agents
            name = self._run_gathering.lost_node
            if name and not self.plan.node(name).capabilities.starts_fresh:
                # Connect once more: it has saved something. A scheduler may have no place for it.
                with contextlib.suppress(SetupError, TimeoutError):
                    async with asyncio.timeout(REACH_S):
                        await self._loop.run_to_end(self._startup.connect(self.plan.node(name)))
            return await self._loop.run_to_end(self._finish()) if needs_agents else None
        finally:  # no agent and no task may stay, even after an internal error
            ending = await self._ending if self._ending is not None else None
            loses_folder = ending is not None and ending.loses_folder
            await self._hub.close(keeps_folders=self._run_gathering.is_incomplete or loses_folder)
            self._curves.close()

    async def _finish(self) -> list[Event]:
        return await self._run_gathering.finish() if self._supervisor.gang.has_started else []

    async def _conclude(self, error: SetupError | None, gathered: list[Event] | None) -> Outcome:
        self._carry_out()
        if gathered is None:
            gathered = await self._loop.run_to_end(self._finish())
        for event in gathered:
            self.run_writer.record(event)
        if self.run_writer.state.checkpoints:  # `fit` has deleted its backup
            self.run_writer.state.checkpoints = self._run_gathering.list_gathered()
        outcome = self._supervisor.outcome
        if outcome is None:
            assert error is not None
            outcome = Outcome.of(error)
        outcome = self._without_lost_success(await self._as_end_of_job(outcome))
        missed = chaos.not_injected(self._launch.faults, self.run_writer.state)
        gang, of_nodes = self._supervisor.gang, self._hub.closing_warnings()
        lost = gang.lost_model(os.path.exists) if outcome.status is Status.SUCCEEDED else None
        warnings = (gang.unread_settings(), gang.shared_files.warning(), lost, *of_nodes, *missed)
        if not outcome.comes_back:
            for warning in filter(None, warnings):
                self.run_writer.record(ev.Warned(message=warning, closing=True))
        self.run_writer.record(outcome.event())
        return outcome

    def _without_lost_success(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a run whose newest checkpoint may not be gathered: no success."""
        missed = self._run_gathering.missed
        self.run_writer.state.missed = missed or None
        self.run_writer.state.missed_in = self._run_gathering.remote_folder if missed else None
        if outcome.status is not Status.SUCCEEDED or not missed:
            return outcome
        run = self.paths.run_id
        error = SetupError(
            f"the tasks have succeeded, but the newest checkpoint was not gathered: {missed}",
            fix=f"`tfcluster checkpoints {run}` gathers it if its node still has it",
        )
        if self._stopped_late is None:
            return Outcome.of(error)
        error.exit_code = self._stopped_late.exit_code
        return Outcome(Status.INTERRUPTED, error.exit_code, error)

    async def _as_end_of_job(self, outcome: Outcome) -> Outcome:
        """Return the outcome of a run whose job may be what its scheduler has ended.

        A start, or a restart, can fail or lose a node for no other reason.
        """
        may_follow = isinstance(outcome.error, SetupError) or bool(outcome.comes_back)
        if self.job is None or not (self._ending is not None or may_follow):
            return outcome
        ending = await (self._ending or self.job.ending())
        if ending is None or self.paths.cancelled.exists():
            return outcome
        if ending.comes_back:
            return Outcome(Status.INTERRUPTED, 143, comes_back=ending.why, limit=ending.limit)
        error = JobEndedError(
            f"job {self.job.id} was ended: {ending.why}",
            fix="to continue from the newest gathered checkpoint:"
            f" `tfcluster up --resume {self.paths.run_id}`",
        )
        return Outcome(Status.INTERRUPTED, error.exit_code, error)
