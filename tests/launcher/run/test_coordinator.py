"""How long the coordinator waits for what."""

from __future__ import annotations

import asyncio

from tfcluster.run.coordinator import CAUSE_WAIT_S, Coordinator
from tfcluster.run.ending import Next, Stop
from tfcluster.run.harvest import Harvest
from tfcluster.run.journal import Journal
from tfcluster.run.paths import RunPaths
from tfcluster.run.snapshot import RunSnapshot

from .conftest import plan_of


def test_who_is_late_after_the_chief_has_the_whole_grace_also_after_a_late_error(
    paths: RunPaths, state: RunSnapshot
) -> None:
    """A worker's heartbeat error comes before the chief's success (tf-facts: 10 s apart)."""
    plan, journal = plan_of("worker:0", "worker:1", "worker:2"), Journal(state, paths)

    async def late_error_then_success() -> None:
        coordinator = Coordinator(
            plan, journal, Harvest(plan, paths), backend_of=lambda node: NotImplemented
        )
        now = asyncio.get_running_loop().time()
        coordinator._react(Next.AWAIT_CAUSE)
        assert coordinator._deadline is not None
        assert coordinator._deadline < now + CAUSE_WAIT_S + 5
        coordinator._react(Next.FINISH)
        assert coordinator._deadline is not None
        assert coordinator._deadline >= now + plan.supervision.finish_grace_s

    asyncio.run(late_error_then_success())
    journal.close()


def test_a_task_whose_start_crosses_the_stop_is_stopped_too(
    paths: RunPaths, state: RunSnapshot
) -> None:
    """The order to start was on its way when Ctrl-C came: its task must not be forgotten."""
    journal = Journal(state, paths)

    async def stop_between_two_starts() -> list[str]:
        plan = plan_of("worker:0", "worker:1")
        coordinator = Coordinator(
            plan, journal, Harvest(plan, paths), backend_of=lambda node: NotImplemented
        )
        sent: list[str] = []
        coordinator._exchange.send = lambda node, order: sent.extend(order["tasks"])  # type: ignore[assignment,method-assign]
        started = {"type": "task_started", "attempt": 1, "pid": 1}
        coordinator._on_message("local", started | {"task": "worker:0"})
        coordinator._on_stop(Stop("Ctrl-C", 130))
        coordinator._on_message("local", started | {"task": "worker:1"})
        return sent

    assert asyncio.run(stop_between_two_starts()) == ["worker:0", "worker:1"]
    journal.close()
