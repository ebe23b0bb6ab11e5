"""The local backend connects to a real agent, whose link is used as the coordinator uses it."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tfcluster import kinds
from tfcluster.agent import catalogue as msg
from tfcluster.agent.agent_config import AgentConfig
from tfcluster.agent.processes import living_children
from tfcluster.backends.base import RunContext
from tfcluster.backends.local.local_nodes import LocalNodes, socket_path
from tfcluster.errors import NodeLostError, SetupError
from tfcluster.plans.plan import NodePlan
from tfcluster.wire import agent_link
from tfcluster.wire.agent_link import AgentLink
from tfcluster.wire.messages import LinkBack, LinkCut

_T = TypeVar("_T")
_R = TypeVar("_R", bound=msg.Report)
NODE = NodePlan("local", "local", None, "/")
LATE_S = 20.0
"""By so much a busy machine may be late."""


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="tfc-"))
    yield path
    assert not list(path.glob("*.agent")), "a socket was left"
    shutil.rmtree(path)


def nodes_of(folder: Path, *, lease_s: float = 60.0) -> LocalNodes:
    return LocalNodes([NODE], RunContext("run-1", folder, lease_s))


@asynccontextmanager
async def connected(folder: Path) -> AsyncIterator[AgentLink]:
    link = await nodes_of(folder).connect(NODE, token="secret")
    try:
        yield link
    finally:
        await link.close()


class Nonsense(msg.Order):
    """An order that an agent does not know."""

    kind: str

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind}


def entry(folder: Path, *argv: str) -> msg.TaskOrder:
    return msg.TaskOrder(task="worker:0", argv=argv, log=str(folder / "0.log"))


async def take(messages: AsyncIterator[msg.Report], kind: type[_R]) -> _R:
    """Return the next message but for the use of memory; it must be of this kind."""
    message = await anext(messages)
    while isinstance(message, msg.NodeUsage):
        message = await anext(messages)
    assert isinstance(message, kind)
    return message


def hold_port(port: int) -> msg.HoldPorts:
    return msg.HoldPorts(ports=[msg.PortRequest(task="worker:0", host="localhost", port=port)])


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an asynchronous test."""

    @functools.wraps(test)
    def call(**fixtures: Any) -> None:
        run(functools.partial(test, **fixtures))

    return call


def run(scenario: Callable[[], Awaitable[_T]]) -> _T:
    async def limited() -> _T:
        async with asyncio.timeout(60):
            return await scenario()

    return asyncio.run(limited())


@in_a_loop
async def test_closing_kills_the_tasks_and_reports_their_exits(folder: Path) -> None:
    async with connected(folder) as link:
        await link.send(msg.Start(attempt=1, tasks=[entry(folder, "sleep", "60")]))
        await anext(aiter(link))
    ends = [m async for m in link if isinstance(m, msg.TaskExited)]
    assert [(m.signal, m.ended_by) for m in ends] == [(signal.SIGKILL, "tfcluster")]
    for pid in (link.welcome.pid, link.welcome.guard_pid):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with pytest.raises(ConnectionError):
        await link.send(msg.Stop(tasks=[], grace_s=0))


@in_a_loop
async def test_the_guard_of_a_killed_agent_leaves_the_next_agents_files_alone(folder: Path) -> None:
    async with connected(folder) as first:
        await first.send(hold_port(0))
        port = (await take(aiter(first), msg.PortsHeld)).ports["worker:0"]
        os.kill(first.welcome.guard_pid, signal.SIGSTOP)
        await first.send(msg.KillAgent())
        assert [message async for message in first] == []
        async with connected(folder) as second:
            await second.send(hold_port(port))
            await take(aiter(second), msg.PortsHeld)
            os.kill(first.welcome.guard_pid, signal.SIGCONT)
            await first.close()
            assert socket_path(folder, "run-1", "local").exists()
            assert (folder / "ports" / f"{port}.json").exists()


def assert_gone(*pids: int) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.linux("an agent is found below its guard in /proc")
@pytest.mark.parametrize("orders", [0, 5000], ids=["at rest", "with a full socket"])
def test_a_hanging_agent_is_killed_and_the_guard_kills_its_tasks(folder: Path, orders: int) -> None:
    async def scenario() -> float:
        async with connected(folder) as link:
            await link.send(msg.Start(attempt=1, tasks=[entry(folder, "sleep", "60")]))
            task = await take(aiter(link), msg.TaskStarted)
            os.kill(link.welcome.pid, signal.SIGSTOP)
            for _ in range(orders):
                await link.send(Nonsense(kind="x" * 100))
            since = time.monotonic()
        assert_gone(task.pid, link.welcome.pid, link.welcome.guard_pid)
        return time.monotonic() - since

    assert run(scenario) < agent_link.CLOSE_S + LATE_S


@pytest.mark.linux("an agent is found below its guard in /proc")
def test_an_agent_that_does_not_acknowledge_a_stop_is_killed_and_reported(
    folder: Path,
) -> None:
    async def scenario() -> float:
        async with connected(folder) as link:
            await link.send(msg.Start(attempt=1, tasks=[entry(folder, "sleep", "60")]))
            task = await take(aiter(link), msg.TaskStarted)
            os.kill(link.welcome.pid, signal.SIGSTOP)
            since = time.monotonic()
            await link.send(msg.Stop(tasks=["worker:0"], grace_s=60))
            assert [message async for message in link] == []
            assert "did not acknowledge a stop" in link.last_words()
        assert_gone(task.pid, link.welcome.pid, link.welcome.guard_pid)
        return time.monotonic() - since

    assert run(scenario) < agent_link.ANSWER_S + LATE_S


@pytest.mark.slow
@in_a_loop
async def test_an_agent_that_acknowledges_a_stop_is_not_killed_however_long_the_grace(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "ANSWER_S", 5.0)
    async with connected(folder) as link:
        script = "trap 'sleep 7; exit 7' TERM; echo ready; while :; do sleep 0.05; done"
        slow = entry(folder, "sh", "-c", script)
        await link.send(msg.Start(attempt=1, tasks=[slow]))
        messages = aiter(link)
        await anext(messages)
        while (folder / "0.log").read_text() != "ready\n":  # noqa: ASYNC110 (it sends no event)
            await asyncio.sleep(0.01)
        await link.send(msg.Stop(tasks=["worker:0"], grace_s=60))
        assert (await take(messages, msg.TaskExited)).exit_code == 7


@in_a_loop
async def test_an_agent_that_cannot_start_reports_why(folder: Path) -> None:
    (folder / "ports").touch()
    broken = nodes_of(folder / "ports")  # a file where a folder must be
    with pytest.raises(NodeLostError, match=r"File exists|Not a directory"):
        await broken.connect(NODE, token="secret")


def test_a_socket_path_that_is_too_long_is_an_error_with_a_fix(tmp_path: Path) -> None:
    with pytest.raises(NodeLostError, match="XDG_RUNTIME_DIR"):
        socket_path(tmp_path / ("x" * 80), "run-1", "local")


def test_an_unknown_backend_is_an_error_that_names_it() -> None:
    with pytest.raises(SetupError, match="no backend yarn"):
        kinds.get("yarn")


def agent_below(guard: int) -> int:
    """Return the process id of a guard's agent, before any connection to the agent."""
    (agent,) = living_children()[guard]
    return agent


@pytest.mark.linux("an agent is found below its guard in /proc")
@pytest.mark.parametrize("ends_by", ["silence", "cancelling"])
def test_an_agent_that_hangs_before_the_hello_leaves_no_process(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    if ends_by == "silence":
        monkeypatch.setattr(agent_link, "HELLO_TIMEOUT_S", 0.3)
    pids: list[int] = []
    start = LocalNodes._start

    def start_and_stop(self: LocalNodes, config: AgentConfig, node: NodePlan) -> Any:
        process: Any = start(self, config, node)
        pids.extend([process._process.pid, agent_below(process._process.pid)])
        os.kill(pids[1], signal.SIGSTOP)
        return process

    monkeypatch.setattr(LocalNodes, "_start", start_and_stop)

    async def scenario() -> None:
        connecting = asyncio.create_task(nodes_of(folder).connect(NODE, token="secret"))
        if ends_by == "cancelling":
            await asyncio.sleep(0.05)
            connecting.cancel()
        with pytest.raises((NodeLostError, asyncio.CancelledError)):
            await connecting

    run(scenario)
    assert_gone(*pids)


@pytest.mark.slow
@pytest.mark.linux("an agent is found below its guard in /proc")
@in_a_loop
async def test_a_running_agent_that_hangs_is_lost_unless_it_resumes_in_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Long enough for the answer of an agent that waits for a processor.
    monkeypatch.setattr(agent_link, "LOCAL_PING_S", 1.5)
    link = await nodes_of(folder, lease_s=6.0).connect(NODE, token="secret")
    await link.send(msg.Start(attempt=1, tasks=[entry(folder, "sleep", "60")]))
    messages = aiter(link)
    task, agent = (await take(messages, msg.TaskStarted)).pid, link.welcome.pid
    os.kill(agent, signal.SIGSTOP)
    assert f"kill -CONT {agent}" in str((await take(messages, LinkCut)).why)
    os.kill(agent, signal.SIGCONT)
    await take(messages, LinkBack)
    os.kill(agent, signal.SIGSTOP)
    rest = [message async for message in link]
    assert [type(one) for one in rest if not isinstance(one, msg.NodeUsage)] == [LinkCut]
    assert "it did not answer for 6 s, so it was killed" in link.loss.reason
    await link.close()
    assert_gone(task, agent, link.welcome.guard_pid)
