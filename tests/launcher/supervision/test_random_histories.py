"""A run ends and leaves no task running, in random histories of faults.

A small simulation replaces agents and tasks. It obeys the supervisor, as agents do, and injects
random faults into the tasks; then it lets the run end undisturbed.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.supervision.story import IN_FIT, stack

from tfcluster.agent import catalogue as msg
from tfcluster.agent.catalogue import TaskReport
from tfcluster.agent.message_fields import parse
from tfcluster.checkpoints.recognition import Newest
from tfcluster.errors import UsageError
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import NodePlan, Plan, Supervision, TaskId
from tfcluster.rundir import events as ev
from tfcluster.rundir.states import Status
from tfcluster.supervision import decisions as do
from tfcluster.supervision.decisions import StopRequest
from tfcluster.supervision.membership import Absence
from tfcluster.supervision.supervisor import Supervisor

HISTORIES = 30
"""The number of histories of each kind of plan; thousands were run by hand."""
LAST_LINES = (
    "",
    "UnavailableError: Collective ops is aborted by: Socket closed",
    "UnknownError: Could not start gRPC server",
    "ModuleNotFoundError: No module named 'x'",
)
ERROR = {"exception": "ValueError", "message": "bad", "file": "main.py", "line": 3}


@dataclass
class Process:
    """The process of a task as its agent knows it."""

    id: TaskId
    attempt: int
    node: str
    is_started: bool = False
    is_stopping: bool = False
    is_frozen: bool = False
    kill_at: float | None = None
    is_part_of_all: bool = False
    """True if it serves, or has joined a strategy in which all tasks train every step together."""


Make = Callable[[Plan, Callable[[], float]], Any]


class World:
    """A simulation of agents and tasks under one supervisor; `step` causes a random event."""

    def __init__(self, plan: Plan, seed: int, make: Make = Supervisor) -> None:
        self.plan, self.random = plan, random.Random(seed)
        self.now = 100.0
        self.resizes = plan.supervision.grow_every_s < 600
        """True for a plan whose lost nodes come back, and whose number of workers is changed."""
        self.node_loss_rate = self.random.choice((0.0, 0.04, 0.2))
        self.supervisor = make(plan, self.random.random)
        self.alive: dict[tuple[str, int], Process] = {}
        self.to_restart: list[do.StartAlone] = []
        self.codes: dict[str, int | None] = {}
        """Maps a task to its last exit code."""
        self.stopped_at_work: dict[str, bool] = {}
        """Maps a task to whether it was stopped while it worked independently."""
        self.lost: set[str] = set()
        self.gone: set[str] = set()
        self.unresponsive: set[str] = set()
        """The nodes whose agents no longer answer."""
        self.failed_for_good = set[TaskId]()
        self.is_gathering = self.is_stopped = self.is_calm = False
        self.begun: list[tuple[float, do.NextAttempt]] = []
        self.events: list[ev.Event] = []
        self.supervisor.begin_run(self.now)
        self._begin(1, tuple(task.id for task in plan.tasks))

    # -- the coordinator's part
    def _begin(self, number: int, members: tuple[TaskId, ...]) -> None:
        to_start = self.supervisor.begin(number, members)
        self.to_restart.clear()
        core = [p for p in self.alive.values() if p.id.is_in_gang]
        assert core == [], "a gang began while an earlier one was alive"
        if not self.is_calm and self.random.random() < 0.2:  # a fault during the restore
            self._inject()
        self._order(to_start, number)

    def _order(self, tasks: list[TaskId], number: int) -> None:
        for task in self.supervisor.order(tasks, number, self.now):
            node = self.plan.task(task).node
            if node not in self.lost:
                assert not any(p.id == task for p in self.alive.values()), f"{task} runs twice"
                self.alive[str(task), number] = Process(task, number, node)

    def obey(self) -> None:
        while orders := self.supervisor.take_orders():
            for action in orders:
                self._obey(action)

    def _obey(self, action: do.Action) -> None:
        match action:
            case do.Record(event):
                self.events.append(event)
            case do.StopTasks(node, tasks, grace_s):
                self._stop(node, tasks, grace_s)
            case do.StartAlone():
                self.to_restart.append(action)
            case do.GatherCheckpoints():
                self.is_gathering = True
            case do.DropNode(node):
                self._lose(node)
            case do.ReadLogs():
                self.supervisor.logs_read(0.0, {}, self.now)
            case do.AskForStacks(node, tasks):
                self._show_stacks(node, tasks)

    def _show_stacks(self, node: str, tasks: tuple[str, ...]) -> None:
        """Answer for some of the tasks: a stopped process does not."""
        for process in self.alive.values():
            if process.node == node and str(process.id) in tasks and self.random.random() < 0.7:
                threads = self.random.choice([IN_FIT, stack("/home/me/train.py:3 sleep(9)"), []])
                report = msg.Stacks(task=str(process.id), attempt=process.attempt, threads=threads)
                self.supervisor.stacks_taken(report.task, report.attempt, report, self.now)

    def _stop(self, node: str, tasks: tuple[str, ...], grace_s: float) -> None:
        for process in self.alive.values():
            if process.node == node and str(process.id) in tasks:
                process.is_stopping = True
                kill_at = self.now + grace_s
                process.kill_at = min(kill_at, process.kill_at or kill_at)

    def _lose(self, node: str) -> None:
        self.lost.add(node)
        self.unresponsive.discard(node)
        self.alive = {key: p for key, p in self.alive.items() if p.node != node}

    def _reconnect(self) -> None:
        for node in sorted(self.lost - self.gone):
            if not self.is_calm and self.random.random() < 0.3:
                self.supervisor.lost_node_unreached(node, NodeLoss("no route"), self.now)
                if node in self.supervisor.gone:
                    self.gone.add(node)
                self.obey()
            else:
                self._bring_back(node)

    def _bring_back(self, node: str) -> None:
        """Give a lost node a new agent."""
        self.gone.discard(node)
        self.lost.discard(node)
        self.supervisor.node_back(node, self.now)
        self.obey()

    def _bring_back_in_background(self) -> None:
        for node in sorted(self.gone):
            if self.random.random() < 0.5:
                self._bring_back(node)

    def _scale(self) -> None:
        with contextlib.suppress(UsageError):
            self.supervisor.scale_to(self.random.randrange(1, 5), self.now)

    def start_due_tasks(self) -> None:
        if (next_attempt := self.supervisor.next_attempt) is not None:
            assert not self.is_stopped, "a restart after a stop was requested"
            self.begun.append((self.now, next_attempt))
            self.pass_time(next_attempt.delay_s)
            if self.supervisor.next_attempt is next_attempt:
                self._reconnect()
            if self.supervisor.next_attempt is next_attempt:
                self._begin(next_attempt.number, next_attempt.members)
        elif self.to_restart:
            requested = self.to_restart.pop(0)
            self._reconnect()
            self._order([requested.task], requested.attempt)

    # -- time, tasks and faults
    def pass_time(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            kills = [p.kill_at for p in self._reachable() if p.kill_at is not None]
            due = [at for at in (self.supervisor.wake_at, *kills) if at is not None]
            if self.supervisor.outcome is not None or not due or min(due) > until:
                break
            self.now = max(self.now, min(due))
            for process in [p for p in self._reachable() if p.kill_at is not None]:
                if process.kill_at is not None and process.kill_at <= self.now:
                    self._exit(process, None, signal.SIGKILL)
            self.supervisor.tick(self.now)
            self.obey()
        self.now = until

    def _reachable(self) -> list[Process]:
        return [p for p in self.alive.values() if p.node not in self.unresponsive and p.is_started]

    def _start(self, process: Process) -> None:
        process.is_started = True
        self.supervisor.started(str(process.id), process.attempt, self.now)
        if self.plan.strategy == "parameter_server" and self.plan.task(process.id).serves:
            self._say(process, {"type": "serving"})

    def _say(self, process: Process, report: dict[str, object]) -> None:
        process.is_part_of_all |= report["type"] in ("serving", "waiting_for_peers")
        named = {"task": str(process.id), "attempt": process.attempt}
        found = parse(report | named, TaskReport)
        assert found is not None
        self.supervisor.reported(found, self.now)

    def _exit(
        self, process: Process, code: int | None, number: int | None = None, last: str = ""
    ) -> None:
        if self.alive.pop((str(process.id), process.attempt), None) is None:
            return
        self.codes[str(process.id)] = code
        self.stopped_at_work[str(process.id)] = process.is_stopping and not process.is_part_of_all
        by = "tfcluster" if process.is_stopping else "itself"
        event = ev.TaskExited(
            task=str(process.id),
            attempt=process.attempt,
            exit_code=code,
            signal=number,
            ended_by=by,
        )
        error = ERROR if code == 1 and not last else None
        self.supervisor.exited(event, self.now, error=error, last_lines=last)
        self.obey()

    def _inject(self) -> None:
        """Inject a fault into a node, the run or a task."""
        rng = self.random
        if rng.random() < self.node_loss_rate:
            node = rng.choice(self.plan.nodes).name
            if node not in self.lost:
                self._lose(node)
                self.supervisor.node_lost(node, NodeLoss("no route"), self.now)
                if self.supervisor.is_spare(node):
                    self.gone.add(node)
                    self.supervisor.node_gone(node, NodeLoss("no route"), self.now)
        elif rng.random() < 0.02:
            self.unresponsive.add(rng.choice(self.plan.nodes).name)
        elif rng.random() < 0.02:
            self.is_stopped = True
            self.supervisor.stop(StopRequest("Ctrl-C", 130, now=rng.random() < 0.2), self.now)
        elif self._reachable():
            self._inject_into_task(rng.choice(self._reachable()))
        self.obey()

    def _inject_into_task(self, process: Process) -> None:
        rng = self.random
        task, attempt = str(process.id), process.attempt
        reports: list[dict[str, object]] = [
            {"type": "waiting_for_peers"},
            {"type": "task_ready"},
            {"type": "progress", "step": rng.randrange(50)},
            {"type": "saved", "path": "ckpt", "step": rng.randrange(50)},
            {"type": "saved", "path": "ckpt"},
            {"type": "saved_elsewhere", "step": rng.randrange(50)},
            {"type": "saved_model", "path": "/w/model"},
            {"type": "weights", "metrics": {"the weights": rng.choice((math.nan, 0.0))}},
            {"type": "sharded", "shards": 2, "index": rng.randrange(2)},
            {"type": "task_error", "traceback": "", **ERROR},
            {"type": "saves_on_sigterm"},
            {"type": "evaluated", "step": rng.randrange(50)},
            {"type": "verdict", "reason": "all failed"},
        ]
        match rng.randrange(12):
            case 0:
                code = rng.choice((0, 0, 1, 3, 42, 143))
                self._exit(process, code, last=rng.choice(LAST_LINES))
            case 1:
                self._exit(process, None, rng.choice((signal.SIGKILL, signal.SIGSEGV)))
            case 2 if not process.is_stopping:
                process.is_frozen = not process.is_frozen
                if process.is_frozen:
                    self.supervisor.froze(task, attempt, signal.SIGSTOP, self.now)
                else:
                    self.supervisor.thawed(task, attempt)
            case 3:
                self.supervisor.checkpoint_gathered(rng.choice((None, rng.randrange(50))), self.now)
            case 4 if rng.random() < 0.1:
                self._fail_to_start(process)
            case _:
                self._say(process, rng.choice(reports))

    def _fail_to_start(self, process: Process) -> None:
        for other in self.alive.values():
            if not other.is_started and other.node not in self.unresponsive:
                del self.alive[str(other.id), other.attempt]
                name = str(other.id)
                self.supervisor.start_failed(name, other.attempt, "no file", self.now)
                return

    def step(self) -> None:
        choice = self.random.random()
        awaited = [
            p for p in self.alive.values() if not p.is_started and p.node not in self.unresponsive
        ]
        if awaited and choice < 0.5:
            self._start(awaited[0])
        elif self.is_gathering and choice < 0.6:
            self._gather()
        elif (self.supervisor.next_attempt or self.to_restart) and choice < 0.7:
            self.start_due_tasks()
        elif choice < 0.83:
            self._inject()
        elif choice < 0.85 and self.resizes:
            self.random.choice((self._scale, self._bring_back_in_background))()
        else:
            self.pass_time(self.random.choice((0.0, 0.1, 1.0, 5.0, 20.0, 200.0)))
        self.obey()

    def _gather(self) -> None:
        self.is_gathering = False
        step = self.random.choice((None, self.random.randrange(50)))
        self.supervisor.all_checkpoints_gathered(Newest(step), self.now)

    def calm_down(self) -> None:
        """Let the run end without further faults: tasks that train exit with 0, servers stay.

        An unresponsive agent without a pending order counts as responsive again: local agents send
        no pings, so nothing could show that it is dead.
        """
        self.is_calm = True
        ordered = {p.node for p in self.alive.values() if p.is_stopping or not p.is_started}
        self.unresponsive &= ordered
        self.obey()
        for process in [p for p in self.alive.values() if not p.is_started]:
            if process.node not in self.unresponsive:
                self._start(process)
                self.obey()
        if self.is_gathering:
            self._gather()
        elif self.supervisor.next_attempt or self.to_restart:
            self.start_due_tasks()
        for process in self._reachable():
            if process.is_frozen and not process.is_stopping:
                process.is_frozen = False
                self.supervisor.thawed(str(process.id), process.attempt)
            if process.is_stopping:
                self._exit(process, None, signal.SIGTERM)
            elif not self._stays(process):
                self._exit(process, 0)
        self.obey()
        self.pass_time(10.0)

    def _stays(self, process: Process) -> bool:
        job = process.id.job
        serves = self.plan.strategy == "parameter_server" and self.plan.task(process.id).serves
        serves |= job in ("ps", "evaluator") or process.id.serves_data
        return serves or self._waits_for_its_chief(process)

    def _waits_for_its_chief(self, process: Process) -> bool:
        """Return whether this is a tuner whose chief is dead and has not succeeded."""
        is_tuner = self.plan.kind == "tuner" and process.id.job == "worker"
        chief_lives = any(p.id.job == "chief" for p in self.alive.values())
        return is_tuner and not chief_lives and self.codes.get("chief:0") != 0

    # -- invariants

    def check(self) -> None:
        outcome = self.supervisor.outcome
        if self.is_stopped:
            assert self.supervisor.next_attempt is None
        if outcome is not None:
            running = [p for p in self.alive.values() if p.is_started]
            assert all(p.is_stopping for p in running), f"not stopped: {running}"
            if outcome.status is Status.SUCCEEDED and self.plan.hooks:
                trainers = [m for m in self.supervisor.gang if m.id.job in ("chief", "worker")]
                cut = [t.id for t in trainers if self.stopped_at_work.get(str(t.id))]
                assert not cut or self.plan.kind == "tuner", f"stopped at work: {cut}"
        restarts = [e for e in self.events if isinstance(e, ev.Restarting)]
        counted = Counter(e.task for e in restarts if e.counts is not False)
        for unit, count in counted.items():
            most = self.plan.supervision.max_restarts
            assert count <= most, f"{unit}: {count} restarts, but max_restarts is {most}"
        assert all(e.attempt <= e.of for e in restarts)
        absent = self.supervisor.membership.absent
        assert self.failed_for_good <= {t for t, why in absent.items() if why is Absence.FAILED}
        self.failed_for_good = {t for t, why in absent.items() if why is Absence.FAILED}
        assert len(self.supervisor.gang.task_failures) <= 3 * len(self.plan.tasks)


def kinds() -> dict[str, Plan]:
    def spread(plan: Plan) -> Plan:
        """Return `plan` with the odd tasks of each job and the evaluator on another node."""
        tasks = tuple(
            replace(t, node="far" if t.id.index % 2 or t.id.job == "evaluator" else "local")
            for t in plan.tasks
        )
        return replace(plan, tasks=tasks, nodes=(*plan.nodes, NodePlan("far", "ssh", None, "/")))

    def with_policy(plan: Plan, **policy: object) -> Plan:
        return replace(plan, supervision=Supervision(**policy))  # type: ignore[arg-type]

    workers = plan_of("worker:0", "worker:1", "worker:2")
    with_evaluator = plan_of("chief:0", "worker:0", "evaluator:0")
    with_evaluator_and_workers = plan_of("chief:0", "worker:0", "worker:1", "evaluator:0")
    served = plan_of("chief:0", "worker:0", "worker:1", "ps:0")
    served = replace(served, tasks=tuple(replace(t, serves=True) for t in served.tasks))
    served = replace(served, tasks=(replace(served.tasks[0], serves=False), *served.tasks[1:]))
    independent = served  # its workers never report that they serve
    served = replace(served, strategy="parameter_server")
    evaluated = plan_of("chief:0", "worker:0", "ps:0", "evaluator:0")
    evaluated = replace(evaluated, strategy="parameter_server")
    data = ("data_worker:0", "data_worker:1", "data_dispatcher:0")
    fed = plan_of("worker:0", "worker:1", *data)
    search = plan_of("chief:0", "worker:0", "worker:1", kind="tuner")
    plain = plan_of("worker:0", "worker:1", kind="plain")
    return {
        "gang": workers,
        "gang on two nodes": with_policy(spread(workers), backoff_s=0.0),
        "shrinking": with_policy(spread(workers), min_workers=1, max_restarts=1),
        "growing": with_policy(
            spread(with_evaluator_and_workers), min_workers=1, max_restarts=2, grow_every_s=5
        ),
        "growing often": with_policy(spread(workers), min_workers=1, grow_every_s=0, backoff_s=0.0),
        "resized by hand": with_policy(spread(workers), grow="off", grow_every_s=0),
        "deadlines": with_policy(
            with_evaluator,
            start_deadline_s=10,
            stall_deadline_s=15,
            restart_on_error=True,
            max_restarts=50,
        ),
        "run deadline": with_policy(workers, run_deadline_s=300),
        "evaluator": with_policy(
            with_evaluator, restart_on_error=True, max_restarts=20, backoff_s=0.0
        ),
        "evaluator far away": with_policy(
            spread(with_evaluator), restart_on_error=True, max_restarts=20
        ),
        "parameter server": with_policy(served, restart_on_error=True, max_restarts=9),
        "parameter server on two nodes": with_policy(spread(served), max_restarts=9),
        "workers that train by themselves": with_policy(independent, restart_on_error=True),
        "the same without hooks": with_policy(replace(independent, hooks=False)),
        "parameter server with an evaluator far away": with_policy(
            spread(evaluated), restart_on_error=True, finish_grace_s=15
        ),
        "data service": with_policy(fed, restart_on_error=True, max_restarts=9),
        "data service with an evaluator on two nodes": with_policy(
            spread(plan_of("worker:0", "worker:1", *data, "evaluator:0")), max_restarts=2
        ),
        "search": with_policy(search, restart_on_error=True, max_restarts=9),
        "search on two nodes": spread(search),
        "plain": plain,
        "plain on two nodes": with_policy(spread(plain), restart_on_error=True),
        "without hooks": with_policy(replace(workers, hooks=False), max_restarts=0),
    }


KINDS = kinds()


def play(plan: Plan, seed: int, make: Make = Supervisor) -> World:
    world = World(plan, seed, make)
    for _ in range(world.random.choice((5, 30, 120, 400))):
        world.obey()
        if world.supervisor.outcome is not None:
            break
        world.step()
        world.check()
    for _ in range(400):
        if world.supervisor.outcome is not None:
            break
        world.calm_down()
        world.check()
    assert world.supervisor.outcome is not None, "the run hangs"
    return world


@pytest.mark.parametrize("kind", KINDS)
def test_every_random_history_ends(kind: str) -> None:
    for seed in range(HISTORIES):
        try:
            play(KINDS[kind], seed)
        except Exception as error:
            error.add_note(f"play(KINDS[{kind!r}], {seed})")
            raise


def always(inject: Callable[[World, Process], None], kind: str) -> World:
    """Call `inject` for every task as soon as it has started, until the run ends."""
    world = World(KINDS[kind], 0)
    for _ in range(1000):
        world.is_calm = True
        world.obey()
        if world.supervisor.outcome is not None:
            return world
        for process in list(world.alive.values()):
            if not process.is_started:
                world._start(process)
                world.obey()
            if process.is_stopping:
                world._exit(process, None, signal.SIGTERM)
            else:
                inject(world, process)
                world.obey()
        if world.is_gathering:
            world.is_gathering = False
            world.supervisor.all_checkpoints_gathered(Newest(7), world.now)
        world.obey()
        world.start_due_tasks()
        world.pass_time(1.0)
    raise AssertionError("the run never ends")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "last"),
    [(1, ""), (3, ""), (42, ""), (143, ""), *((1, last) for last in LAST_LINES[1:])],
)
def test_a_task_that_always_fails_the_same_way_is_given_up(kind: str, code: int, last: str) -> None:
    reports: list[dict[str, object]] = [
        {"type": "saved", "path": "x", "step": 7},
        {"type": "progress", "step": 5},
    ]

    def inject(world: World, process: Process) -> None:
        for report in reports:
            world._say(process, report)
        world._exit(process, code, last=last)

    always(inject, kind)


class Recorded:
    """A supervisor that notes its inputs, so that they can be replayed to another one."""

    def __init__(self, plan: Plan, jitter: Callable[[], float]) -> None:
        self.supervisor = Supervisor(plan, lambda: 0.5)
        self.inputs: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.supervisor, name)
        if not inspect.ismethod(found):
            return found

        def note(*values: Any, **facts: Any) -> Any:
            self.inputs.append((name, values, facts))
            return found(*values, **facts)

        return note


def replay(supervisor: Supervisor, inputs: Iterable[tuple[str, Any, Any]]) -> Supervisor:
    for name, values, facts in inputs:
        with contextlib.suppress(UsageError):  # of `scale_to`, which refused it before, too
            getattr(supervisor, name)(*values, **facts)
    return supervisor


@pytest.mark.parametrize("kind", KINDS)
def test_supervisors_with_the_same_history_are_equal_and_a_copy_continues(kind: str) -> None:
    plan = KINDS[kind]
    for seed in range(5):
        recorded = play(plan, seed, Recorded).supervisor
        inputs = recorded.inputs
        halfway = replay(Supervisor(plan, jitter=lambda: 0.5), inputs[: len(inputs) // 2])
        copied = copy.deepcopy(halfway)
        assert copied == halfway
        replay(halfway, inputs[len(inputs) // 2 :])
        assert copied != halfway
        replay(copied, inputs[len(inputs) // 2 :])
        assert copied == halfway == recorded.supervisor
        assert copied.outcome is not None
        assert copied.outcome.event() == recorded.outcome.event()
