"""Has all nodes dial each other while the run's loop goes on, and hears what they found."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tfcluster.backends import bundle
from tfcluster.plan.plan import Plan
from tfcluster.run import launch, links
from tfcluster.run.calls import between
from tfcluster.run.exchange import Exchange, Message
from tfcluster.run.output import last_text
from tfcluster.run.paths import RunPaths
from tfcluster.run.reports import LINKS

_LOOK_EVERY_S = 0.1
_ANSWERS = (f"{LINKS} task_exited", f"{LINKS} start_failed")


@dataclass(frozen=True, slots=True)
class Survey:
    """The lines between the nodes of one run."""

    plan: Plan
    paths: RunPaths
    exchange: Exchange

    async def look(self, attempt: int, *, is_over: Callable[[], bool]) -> dict[str, str]:
        """Node → how it is cut off, see `links.lost`. Nodes that do not answer in time, and all
        that is still awaited when the run `is_over`, are left out."""
        made = await asyncio.to_thread(bundle.build)
        names = [node.name for node in self.plan.nodes]
        held = (self.exchange.answer(name, ["ports_held"]) for name in names)
        self._ask(names, attempt, filter(None, held), made.digest)
        loop = asyncio.get_running_loop()
        until = loop.time() + links.ANSWER_S
        while loop.time() < until and not is_over():
            if all(self.exchange.answer(name, _ANSWERS) is not None for name in names):
                break
            await asyncio.sleep(_LOOK_EVERY_S)
        cuts = [cut for name in names for cut in self._found(name, attempt)]
        return links.lost(cuts, chief_node=self.plan.task(self.plan.chief).node)

    def _ask(
        self, names: Sequence[str], attempt: int, held: Iterable[Message], digest: str
    ) -> None:
        ports = launch.attempt_of(self.plan, attempt, (), held).ports
        calls = between(self.plan, names, ports)
        for name in names:
            order = links.order_for(name, calls, attempt)
            python, site = self.plan.node(name).interpreter, self.exchange.site(name)
            self.exchange.forget(name, *_ANSWERS)
            self.exchange.send(name, launch.start_dial(python, site, order, digest))
        self.exchange.put(lambda: None)  # wakes the loop, which sends

    def _found(self, node: str, attempt: int) -> Iterable[links.Cut]:
        lines = last_text(self.paths.step_log(LINKS, node)).splitlines()
        return links.read(node, lines[-1], attempt=attempt) if lines else ()
