"""What every backend must do, checked with real nodes: ``python -m tests.backend_contract FILE``.

FILE is JSON: ``{"nodes": [NodePlan as JSON, …], "broken": NodePlan or null}``, see `Rig`, with
``"spec": PATH`` instead of the nodes where a backend needs a spec. ``run_id`` names the run of all
checks, for nodes that belong to the job of a run. Prints one line per check: its name, then ``ok``
or the error. The checks run as a process of their own, since a backend may only be reachable from
another network namespace.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfcluster import kinds
from tfcluster.agent import catalogue as msg
from tfcluster.backends.base import Nodes, RunContext, class_of, open_nodes
from tfcluster.discovery import planning
from tfcluster.discovery.planning import Planned
from tfcluster.errors import SetupError
from tfcluster.plans.plan import NodePlan
from tfcluster.spec.sections import Runtime
from tfcluster.typed_json import from_json
from tfcluster.wire.agent_link import AgentLink
from tfcluster.wire.messages import Log

HANG_S, LEASE_S = 60.0, 3.0
PRINT = "import os; print('hello from', os.environ['WHO'], flush=True)"
KILL = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"


@dataclass
class Rig:
    """Nodes of one backend for one run, and what was heard of them."""

    nodes: list[NodePlan]
    broken: NodePlan | None
    """A node that cannot be reached; None for this machine, where there is none."""
    folder: Path
    number: int
    planned: Planned | None = None
    """The plan and its spec, for a backend that needs them."""
    run_id: str | None = None

    def __post_init__(self) -> None:
        self.queued: list[str] = []
        self.warnings: list[str] = []
        self.run = RunContext(
            self.run_id or f"contract-{os.getpid()}-{self.number}",
            self.folder,
            LEASE_S,
            queued=self.queued.append,
            warn_at_end=self.warnings.append,
            plan=self.planned.plan if self.planned else None,
            runtime=self.planned.spec.runtime if self.planned else None,
        )

    def open(self) -> Nodes:
        return open_nodes(self.nodes, self.run)

    def task(self, code: str, node: NodePlan, *, attempt: int = 1) -> msg.Start:
        """Return the order that starts a task of `code`."""
        argv = [node.python, "-u", "-c", code]
        log = str(self.folder / f"{self.run.run_id}-{attempt}.log")
        task = msg.TaskOrder(task="worker:0", argv=argv, env={"WHO": node.name}, log=log)
        return msg.Start(attempt=attempt, tasks=[task])


async def next_exit(link: AgentLink) -> msg.TaskExited:
    async for message in link:
        if isinstance(message, msg.TaskExited):
            return message
    raise AssertionError(f"no task has ended: {link.loss}")


async def end(link: AgentLink) -> None:
    await link.send(msg.Shutdown())
    await link.close()


async def all_nodes_connect_at_once_and_run_a_task(rig: Rig) -> None:
    async with rig.open() as nodes:
        links = await asyncio.gather(
            *(nodes.connect(node, token=f"t-{node.name}") for node in rig.nodes)
        )
        for node, link in zip(rig.nodes, links, strict=True):
            await link.send(rig.task(PRINT, node))
            exited = await next_exit(link)
            assert (exited.exit_code, exited.ended_by) == (0, "itself"), exited
        command = nodes.fetch_command(rig.nodes[0].name, Path("/the re; id #"))
        assert any(word.endswith("/the re; id #") for word in shlex.split(command)), command
        await asyncio.gather(*map(end, links))
        assert all(link.heard_goodbye for link in links)


async def output_arrives(rig: Rig) -> None:
    """On this machine it is in the log file, from elsewhere it is sent."""
    node = rig.nodes[0]
    async with rig.open() as nodes:
        link = await nodes.connect(node, token="t")
        order = rig.task(PRINT, node)
        await link.send(order)
        sent, has_exited = b"", False
        async for message in link:
            sent += message.data if isinstance(message, Log) else b""
            has_exited |= isinstance(message, msg.TaskExited)
            if has_exited and (node.is_here or sent.endswith(b"\n")):
                break
        log = Path(order.tasks[0].log)
        found = await asyncio.to_thread(log.read_bytes) if node.is_here else sent
        assert found.decode() == f"hello from {node.name}\n", found
        await end(link)


async def allocated_hosts_have_names(rig: Rig) -> None:
    """A host name that the plan could not know is known once the nodes are open."""
    kind = kinds.get(rig.nodes[0].backend)
    places = (kind.place(f"worker-{n}", n, "127.0.0.1", Runtime()) for n in range(len(rig.nodes)))
    unknown = {node for node, host in places if host == ""}
    async with rig.open() as nodes:
        assert set(nodes.hosts) == unknown
        assert all(nodes.hosts.values())


async def an_agent_that_was_killed_is_replaced(rig: Rig) -> None:
    node = rig.nodes[0]
    async with rig.open() as nodes:
        first = await nodes.connect(node, token="t")
        await first.send(rig.task(KILL, node))
        async for _ in first:
            pass
        await first.close()
        second = await nodes.connect(node, token="t", is_fenced=first.has_ended)
        await second.send(rig.task(PRINT, node, attempt=2))
        while (exited := await next_exit(second)).attempt != 2:
            pass
        assert exited.exit_code == 0
        await end(second)


async def nothing_to_repair_is_nothing_to_say(rig: Rig) -> None:
    async with rig.open() as nodes:
        link = await nodes.connect(rig.nodes[0], token="t")
        assert await nodes.repair() == []
        await end(link)


async def a_start_may_be_cancelled(rig: Rig) -> None:
    """Whatever was begun is undone: the same nodes can be opened again at once."""

    async def use() -> None:
        async with rig.open() as nodes:
            await nodes.connect(rig.nodes[0], token="t")

    for wait_s in (0.0, 0.05, 0.5):
        using = asyncio.create_task(use())
        await asyncio.sleep(wait_s)
        using.cancel()
        await asyncio.wait([using])
    async with rig.open() as nodes:
        await end(await nodes.connect(rig.nodes[0], token="t"))


async def an_error_in_the_block_ends_the_nodes(rig: Rig) -> None:

    async def fail() -> None:
        async with rig.open() as nodes:
            link = await nodes.connect(rig.nodes[0], token="t")
            await link.close()
            raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        await fail()
    async with rig.open() as nodes:
        await end(await nodes.connect(rig.nodes[0], token="t"))


async def a_node_that_cannot_be_reached_is_named_in_a_setup_error(rig: Rig) -> None:
    assert rig.broken is not None
    rig.nodes = [rig.broken]
    with pytest.raises(SetupError):
        async with rig.open() as nodes:
            await nodes.connect(rig.broken, token="t")


async def capabilities_are_kept(rig: Rig) -> None:
    """What a backend claims to be able to do, it can do."""
    kind, found = kinds.get(rig.nodes[0].backend), class_of(rig.nodes[0])
    its = kind.capabilities
    if its.outlives_coordinator:
        assert found.end_run.__qualname__ != Nodes.end_run.__qualname__
    if its.clears_up:
        assert kind.leftovers is not None
    if its.has_addresses:
        assert kind.place("worker-0", 0, "10.0.0.1", Runtime()) == ("10.0.0.1", "10.0.0.1")


CHECKS: tuple[Callable[[Rig], Awaitable[None]], ...] = (
    all_nodes_connect_at_once_and_run_a_task,
    output_arrives,
    allocated_hosts_have_names,
    an_agent_that_was_killed_is_replaced,
    nothing_to_repair_is_nothing_to_say,
    a_start_may_be_cancelled,
    an_error_in_the_block_ends_the_nodes,
    a_node_that_cannot_be_reached_is_named_in_a_setup_error,
    capabilities_are_kept,
)
NAMES = tuple(check.__name__ for check in CHECKS)
UNREACHED = a_node_that_cannot_be_reached_is_named_in_a_setup_error.__name__


async def _within_time(check: Callable[[Rig], Awaitable[None]], rig: Rig, hang_s: float) -> None:
    async with asyncio.timeout(hang_s):
        await check(rig)


def results(output: str) -> Mapping[str, str]:
    """Return check → ``ok`` or the error, from the output of this program."""
    found = dict(line.split(" ", 1) for line in output.splitlines() if " " in line)
    return {name: found.get(name, f"was not run: {output}") for name in NAMES}


def _read_nodes(
    facts: Mapping[str, Any],
) -> tuple[list[NodePlan], NodePlan | None, Planned | None]:
    """Return the nodes, the broken one, and what they were planned from."""
    broken = from_json(NodePlan, facts["broken"]) if facts.get("broken") else None
    if "spec" not in facts:
        return [from_json(NodePlan, node) for node in facts["nodes"]], broken, None
    planned = planning.plan(facts["spec"])
    return list(planned.plan.nodes), broken, planned


def main() -> None:
    facts = json.loads(Path(sys.argv[1]).read_text())
    nodes, broken, planned = _read_nodes(facts)
    with tempfile.TemporaryDirectory(prefix="tfc-") as folder:
        for number, (name, check) in enumerate(zip(NAMES, CHECKS, strict=True)):
            if broken is None and name == UNREACHED:
                continue
            try:
                run_id = facts.get("run_id")
                rig = Rig(list(nodes), broken, Path(folder), number, planned, run_id)
                asyncio.run(_within_time(check, rig, facts.get("hang_s", HANG_S)))
                print(name, "ok", flush=True)
            except Exception:
                print(name, json.dumps(traceback.format_exc()), flush=True)


if __name__ == "__main__":
    main()
