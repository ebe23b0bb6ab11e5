"""Run the real coordinator over real links, with fake agents that follow a test's script.

No process is started: a fake agent is the other end of a socket, and answers like a real one.
The loop's clock skips waits, so that leases, deadlines and delays cost no time.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.launcher.conftest import plan_of

from tfcluster.agent import protocol
from tfcluster.agent.catalogue import Hello
from tfcluster.backends.base import Nodes, RunContext
from tfcluster.backends.jobs import OwnJob
from tfcluster.coordinator.coordinator import Coordinator
from tfcluster.coordinator.gathering import RunGathering
from tfcluster.coordinator.launch import Launch
from tfcluster.errors import NodeLostError
from tfcluster.node_loss import NodeLoss
from tfcluster.plans.plan import NodePlan, Plan, Supervision
from tfcluster.rundir import fold
from tfcluster.rundir.chaos import Fault
from tfcluster.rundir.events import Event
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import this_process
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot
from tfcluster.spec import LaunchOptions
from tfcluster.supervision.decisions import Outcome
from tfcluster.wire.agent_link import AgentLink, ByteStreams
from tfcluster.wire.messages import HelloRefused

LOCAL, REMOTE = "local", "10.0.0.2"
DAY_S = 86_400.0
HANG_UP = b"(hang up)"
MOMENTS = (
    *("welcome", "ports", "put back", "start", "started", "trained", "exited", "shutdown", "bye"),
)
"""The moments at which an agent sends the frames of its script, in order."""
Frame = Mapping[str, Any] | bytes
"""A frame of a script: a control message, which gets a number, raw bytes, or `HANG_UP`."""


class FastLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer if no descriptor and no thread is busy."""

    def __init__(self) -> None:
        self.skipped, self.in_threads = 0.0, 0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return super().time() + self.skipped

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        self.in_threads += 1
        work = super().run_in_executor(*args)
        work.add_done_callback(self._note_end)
        return work

    def _note_end(self, _: object) -> None:
        self.in_threads -= 1

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Join the threads without the limit of Python 3.12, which this clock would skip."""
        await super().shutdown_default_executor()


class _Skipping(selectors.DefaultSelector):
    def __init__(self, loop: FastLoop) -> None:
        super().__init__()
        self._loop, self._waits = loop, 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._waits = 0
            return ready
        patience = 60_000 if timeout is None else 20 if self._loop.in_threads else 0
        if self._waits < patience or (self._loop.in_threads and _is_thread_at_work()):
            self._waits += 1
            return super().select(0.001)
        assert timeout is not None, "nothing will ever happen"
        assert self._loop.skipped < DAY_S, "the run never ends"
        self._waits, self._loop.skipped = 0, self._loop.skipped + timeout
        return []


def _is_thread_at_work() -> bool:
    """Return whether another thread waits for a core or a disk, as on a busy machine."""
    if sys.platform != "linux":
        return False
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it ends meanwhile
            state = Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0]
            if state in "RD" and int(thread) != threading.get_native_id():
                return True
    return False


OFF = NodeLoss("the machine is off")


@dataclass
class Agent:
    """The fake agent of one node; it accepts several connections, one after the other."""

    node: str
    workdir: str
    script: Mapping[str, Sequence[Frame]] = field(default_factory=dict)
    answers_again: bool = True
    """True if the agent also answers connections after the first."""
    refusal: NodeLoss = OFF
    """Why it does not answer a connection."""
    exit_codes: Mapping[str, int] = field(default_factory=dict)
    session: protocol.Session = field(default_factory=protocol.Session)
    writer: asyncio.StreamWriter | None = None
    serving: list[asyncio.Task[None]] = field(default_factory=list)
    running: dict[str, int] = field(default_factory=dict)
    connections: int = 0
    delivered: set[str] = field(default_factory=set)
    order_counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    async def dial(self) -> ByteStreams:
        self.connections += 1
        if self.connections > 1 and not self.answers_again:
            raise ConnectionRefusedError(self.refusal.reason)
        ours, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=theirs)
            self.serving.append(asyncio.create_task(self._serve(reader, writer)))
            return await asyncio.open_connection(sock=ours, limit=1 << 20)
        except BaseException:  # cancelled
            ours.close()
            theirs.close()
            raise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writer = writer
        decoder = protocol.Decoder()
        writer.write(protocol.MAGIC)
        pings = asyncio.create_task(self._ping(writer))
        try:
            while data := await reader.read(1 << 18):
                for kind, payload in decoder.feed(data):
                    if kind == protocol.CONTROL:
                        self._hear(protocol.read_control(payload))
                    elif kind == protocol.ACK:
                        self.session.acknowledged(protocol.read_number(payload))
        except OSError:
            pass
        finally:
            pings.cancel()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _ping(self, writer: asyncio.StreamWriter) -> None:
        while True:
            await asyncio.sleep(2)
            writer.write(protocol.frame(protocol.PING))

    def _hear(self, message: dict[str, Any]) -> None:
        assert self.writer is not None
        if message["type"] == "hello":
            welcome = {"type": "welcome", "n": 0, "pid": 5, "guard_pid": 6}
            welcome["last_seen"] = self.session.last_seen
            if self.node != LOCAL:
                welcome |= {"cache": "/cache", "executable": "/usr/bin/python3"}
            self.writer.write(protocol.control_frame(welcome))
            for frame in self.session.resume(message["last_seen"]):
                self.writer.write(frame)
            self.deliver("welcome")
        elif self.session.is_new(message):
            self.writer.write(self.session.acknowledgement())
            self.order_counts[message["type"]] += 1
            self._obey(message)

    def deliver(self, moment: str) -> None:
        """Send the script's frames for `moment`, unless they have been sent."""
        for frame in self.script.get(moment, ()) if moment not in self.delivered else ():
            self.delivered.add(moment)
            if frame is HANG_UP and self.writer is not None:
                self.writer.close()
            elif isinstance(frame, bytes):
                self._write(frame)
            elif "n" in frame:
                self._write(protocol.control_frame(dict(frame)))
            else:
                self.say(frame)

    def say(self, message: Mapping[str, Any]) -> None:
        self._write(self.session.number(dict(message)))

    def _write(self, data: bytes) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(data)

    def _obey(self, order: dict[str, Any]) -> None:
        number = {"id": order.get("id")}
        match order["type"]:
            case "hold_ports":
                self.deliver("ports")
                ports = {entry["task"]: 2222 + n for n, entry in enumerate(order["ports"])}
                self.say({"type": "ports_held", "ports": ports})
            case "start":
                self._start(order["attempt"], [task["task"] for task in order["tasks"]])
            case "stop":
                for task in [name for name in order["tasks"] if name in self.running]:
                    self.exit(task, signal=15, ended_by="tfcluster")
            case "find_marked_folder":
                self.say({"type": "marked_folder", **number, "folder": self.workdir})
            case "scan":
                self.say({"type": "scanned", **number, "entries": []})
            case "receive" if not order.get("more"):
                self.say({"type": "received", **number})
            case "read":
                self.say({"type": "file_failed", **number, "error": "it is gone"})
            case "shutdown":
                self.deliver("shutdown")
                self.say({"type": "bye"})
                self.deliver("bye")
                if self.writer is not None:
                    self.writer.close()

    def _start(self, attempt: int, tasks: Sequence[str]) -> None:
        self.deliver("start")
        for task in tasks:
            self.running[task] = attempt
            self.say({"type": "task_started", "task": task, "attempt": attempt, "pid": 7})
        self.deliver("started")
        for task in tasks:
            for kind in ("waiting_for_peers", "task_ready"):
                self.report(task, {"type": kind})
            self.report(task, {"type": "progress", "step": 5, "metrics": {"loss": 0.5}})
        self.deliver("trained")
        for task in tasks:
            self.exit(task, exit_code=self.exit_codes.get(task, 0))
        self.deliver("exited")

    def report(self, task: str, event: Mapping[str, Any]) -> None:
        attempt = self.running.get(task, 1)
        self.say({"type": "task_event", "task": task, "attempt": attempt, "event": dict(event)})

    def exit(self, task: str, **how: Any) -> None:
        facts = {"exit_code": None, "signal": None, "ended_by": "itself", "duration_s": 1.0, **how}
        attempt = self.running.pop(task)
        self.say({"type": "task_exited", "task": task, "attempt": attempt, **facts})


class FakeNodes(Nodes):
    """Nodes with fake `agents`, by node name."""

    agents: Mapping[str, Agent]
    reason = ""
    """Why the run is queued for a moment; "" if it is not."""

    async def __aenter__(self) -> FakeNodes:
        if self.reason:
            self.run.queued(self.reason)
            await asyncio.sleep(1)
        return self

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        hello = Hello(run_id=self.run.run_id, node=node.name, token=token, stream_logs=True)
        lease = None if node.name == LOCAL else self.run.lease_s
        link = AgentLink(self.agents[node.name].dial, hello, lease_s=lease)
        try:
            await link.open()
        except (OSError, TimeoutError, protocol.ProtocolError, HelloRefused) as error:
            nature = self.agents[node.name].refusal.nature
            raise NodeLostError(f"{node.name} cannot be reached: {error}", nature=nature) from error
        return link


class SlowGathering(RunGathering):
    """A gathering with a slow restore, during which agents send messages."""

    agents: Mapping[str, Agent] = {}

    async def put_state_back(self, *args: Any, **how: Any) -> int | None:
        found = await super().put_state_back(*args, **how)
        for agent in self.agents.values():
            agent.deliver("put back")
        await asyncio.sleep(0.1)
        return found


@dataclass(frozen=True)
class Ended:
    """The result of a run."""

    outcome: Outcome
    state: RunSnapshot
    paths: RunPaths
    seconds: float
    """The duration on the loop's clock."""


def plan_on_two_nodes(workdir: Path, *, remote_is_chief: bool = False, **supervision: Any) -> Plan:
    """Return a plan with one worker on this machine and one on another."""
    plan = plan_of()
    remote = NodePlan(REMOTE, "ssh", None, str(workdir))
    local = replace(plan.nodes[0], workdir=str(workdir))
    places = [REMOTE, LOCAL] if remote_is_chief else [LOCAL, REMOTE]
    tasks = tuple(replace(task, node=node) for task, node in zip(plan.tasks, places, strict=True))
    limits = {"max_restarts": 1, "run_deadline_s": 600.0, "lease_s": 20.0, **supervision}
    policy = Supervision(**limits)
    return replace(
        plan, workdir=str(workdir), nodes=(local, remote), tasks=tasks, supervision=policy
    )


def perform(
    plan: Plan,
    agents: Mapping[str, Agent],
    paths: RunPaths,
    *,
    faults: Sequence[Fault] = (),
    job: OwnJob | None = None,
    react: Callable[[Coordinator, Event], None] = lambda coordinator, event: None,
) -> Ended:
    """Run `plan` to its end; `react` is called with each event."""
    launch = Launch(plan, {}, options=LaunchOptions(runs_preflight=False), faults=faults)
    with asyncio.Runner(loop_factory=FastLoop) as runner:
        return runner.run(_perform(launch, agents, paths, job, react))


async def _perform(
    launch: Launch,
    agents: Mapping[str, Agent],
    paths: RunPaths,
    job: OwnJob | None,
    react: Callable[[Coordinator, Event], None],
) -> Ended:
    run_gathering = SlowGathering(launch.plan, paths)
    run_gathering.agents = agents
    run_gathering._threads._silence_s = DAY_S  # the loop's clock runs faster than threads
    state = fold.first_state(launch.plan, paths, this_process(), 100.0)
    loop = asyncio.get_running_loop()
    began = loop.time()

    def open_nodes(planned: Sequence[NodePlan], run: RunContext) -> Nodes:
        nodes = FakeNodes(planned, run)
        nodes.agents = agents
        return nodes

    with closing(RunWriter(state, paths)) as run_writer:
        coordinator = Coordinator(launch, run_writer, run_gathering, open_nodes=open_nodes, job=job)
        run_writer.listeners.append(partial(react, coordinator))
        outcome = await coordinator.run()
    serving = [task for agent in agents.values() for task in agent.serving]
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    return Ended(outcome, state, paths, loop.time() - began)
