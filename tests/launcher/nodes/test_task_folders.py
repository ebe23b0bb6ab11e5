"""Task folders on other machines are restored and read, even if a node is lost meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from tests.launcher.conftest import plan_of
from tests.launcher.messages import read_report

from tfcluster.agent import catalogue as msg
from tfcluster.nodes.hub import Hub
from tfcluster.nodes.sites import Site
from tfcluster.nodes.task_folders import TaskFolders
from tfcluster.plans.plan import NodePlan
from tfcluster.plans.remote_paths import NodePaths
from tfcluster.rundir.paths import RunPaths
from tfcluster.wire.file_transfer import RemoteFiles, RemoteFilesError

NODES = ("10.0.0.1", "10.0.0.2")


class FakeHub:
    """Two agents that answer file orders with fixed messages, or are lost (None)."""

    def __init__(self, paths: RunPaths, answers: dict[str, dict[str, Any] | None]) -> None:
        self._paths, self._answers = paths, answers
        self.orders: list[tuple[str, str]] = []
        self._files = {node: RemoteFiles(self._answering(node), self._refuse) for node in NODES}

    def _answering(self, node: str) -> Any:
        async def receive(order: msg.FileOrder) -> None:
            self.orders.append((node, order.type))
            answer = self._answers[node]
            if answer is None:
                self._files[node].mark_lost()
            else:
                report: Any = read_report({**answer, "id": order.id})
                self._files[node].handle(report)

        return receive

    async def _refuse(self, name: str, offset: int, data: bytes) -> None:
        raise AssertionError("there is nothing to send")

    def site(self, node: str) -> Site:
        return Site(node, "run", self._paths, NodePaths("/cache", "run"))

    def files(self, node: str) -> RemoteFiles:
        return self._files[node]

    def is_lost(self, node: str) -> bool:
        return self._files[node].is_lost


def put_back(folder: Path, **answers: dict[str, Any] | None) -> None:
    plan = plan_of()
    nodes = tuple(NodePlan(name, "ssh", None, "/job") for name in NODES)
    tasks = tuple(replace(t, node=node) for t, node in zip(plan.tasks, NODES, strict=True))
    plan = replace(plan, nodes=nodes, tasks=tasks)
    paths = RunPaths(folder)
    by_node = dict(zip(NODES, answers.values(), strict=True))

    async def scenario() -> None:
        folders = TaskFolders(plan, paths, cast(Hub, FakeHub(paths, by_node)))
        async with asyncio.timeout(30):
            await folders.put_back((), [task.id for task in plan.tasks])

    asyncio.run(scenario())


RECEIVED = {"type": "received"}
FAILED = {"type": "file_failed", "error": "No space left on device"}


def test_a_node_that_is_lost_during_a_restore_raises_no_error(tmp_path: Path) -> None:
    put_back(tmp_path, first=RECEIVED, second=None)


def test_a_node_that_cannot_write_is_reported(tmp_path: Path) -> None:
    with pytest.raises(RemoteFilesError, match="No space left"):
        put_back(tmp_path, first=RECEIVED, second=FAILED)


def test_a_node_is_asked_once_for_the_tensorboard_files_of_all_its_tasks(tmp_path: Path) -> None:
    plan = plan_of(*(f"worker:{index}" for index in range(30)))
    nodes = tuple(NodePlan(name, "ssh", None, "/job") for name in NODES)
    tasks = tuple(replace(task, node=NODES[task.id.index % 2]) for task in plan.tasks)
    nothing = {"type": "scanned", "entries": []}
    hub = FakeHub(RunPaths(tmp_path), dict.fromkeys(NODES, nothing))

    async def scenario() -> None:
        spread = replace(plan, nodes=nodes, tasks=tasks)
        folders = TaskFolders(spread, RunPaths(tmp_path), cast(Hub, hub))
        await asyncio.to_thread(folders.fetch_tensorboard, stopped=lambda: False)

    asyncio.run(scenario())
    assert hub.orders == [(node, "scan") for node in NODES]
