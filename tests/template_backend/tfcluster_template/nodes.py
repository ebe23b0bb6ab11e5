"""The life of the template's nodes: allocated, connected to, given back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from tfcluster.backends.relayed import STARTER, RelayedNodes
from tfcluster.plans.plan import NodePlan


class TemplateNodes(RelayedNodes):
    """Slots of the queue that this run has taken."""

    async def __aenter__(self) -> Self:
        """Wait for as many free slots as there are nodes, and take them."""
        assert self.run.runtime is not None
        settings = self.run.runtime.section("template")
        self._queue, self._taken = Path(settings.queue), list[Path]()
        wanted, reason = len(self.planned), ""
        while not self._take(wanted):
            free = len(list(self._queue.glob("*.free")))
            if (why := f"{free} of {wanted} slots are free") != reason:
                self.run.queued(reason := why)
            await asyncio.sleep(settings.poll_s)
        names = (node.name for node in self.planned)
        self.hosts = dict(zip(names, (slot.stem for slot in self._taken), strict=True))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._give_back()

    def _take(self, wanted: int) -> bool:
        """Take all slots or none; another run may take one at the same moment."""
        free = sorted(self._queue.glob("*.free"))
        try:
            for slot in free[:wanted] if len(free) >= wanted else ():
                self._taken.append(slot.rename(slot.with_suffix(f".{self.run.run_id}")))
        except FileNotFoundError:
            self._give_back()
        return len(self._taken) == wanted

    def _give_back(self) -> None:
        while self._taken:
            slot = self._taken.pop()
            slot.rename(slot.with_suffix(".free"))

    @classmethod
    def argv(cls, node: NodePlan) -> list[str]:
        return [node.python, "-I", "-S", "-c", STARTER]
