"""The life of the template's nodes: allocated, connected to, given back."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from tfcluster.agent.catalogue import LostRunEnded
from tfcluster.backends import relayed
from tfcluster.backends.base import Nodes
from tfcluster.errors import NodeLostError
from tfcluster.plans.plan import NodePlan
from tfcluster.wire.link import AgentLink

POLL_S = 0.1


class TemplateNodes(Nodes):
    """Slots of the queue that this run has taken."""

    async def __aenter__(self) -> Self:
        """Wait for as many free slots as there are nodes, and take them."""
        self._queue = Path(os.environ["TEMPLATE_QUEUE"])
        self._taken: list[Path] = []
        self._agents: dict[str, Mapping[str, Any] | None] = {}
        wanted, reason = len(self.planned), ""
        while len(free := sorted(self._queue.glob("*.free"))) < wanted:
            if (why := f"{len(free)} of {wanted} slots are free") != reason:
                self.run.queued(reason := why)
            await asyncio.sleep(POLL_S)
        for slot in free[:wanted]:
            self._taken.append(slot.rename(slot.with_suffix(f".{self.run.run_id}")))
        names = (node.name for node in self.planned)
        self.hosts = dict(zip(names, (slot.stem for slot in free), strict=False))
        return self

    async def __aexit__(self, *error: object) -> None:
        for slot in self._taken:
            slot.rename(self._queue / f"{slot.name.removesuffix(f'.{self.run.run_id}')}.free")

    async def connect(self, node: NodePlan, *, token: str, is_fenced: bool = False) -> AgentLink:
        try:
            link = await relayed.connect(
                node.name,
                _argv(node),
                self.run,
                token=token,
                former=self._agents.get(node.name),
                is_fenced=is_fenced,
            )
        except relayed.Unreached as error:
            raise NodeLostError(f"{node.name} cannot be reached: {error}") from error
        self._agents[node.name] = link.welcome.identity
        return link

    @staticmethod
    async def end_run(node: NodePlan, *, run_id: str, former: Mapping[str, Any]) -> LostRunEnded:
        try:
            return await relayed.end_run(_argv(node), run_id=run_id, former=former)
        except relayed.Unreached as error:
            raise NodeLostError(f"{node.name} cannot be reached: {error}") from error


def _argv(node: NodePlan) -> list[str]:
    """Return the command that starts a Python on the node, which waits for its orders."""
    return [sys.executable, "-I", "-S", "-c", relayed.STARTER]
