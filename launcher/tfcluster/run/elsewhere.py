"""Looks, while tasks here wait for those that other machines start, which of them can be reached.

TensorFlow waits for an hour without a word; a connection that is refused says at once that
nothing listens there yet.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tfcluster.agent.error_words import reason_of
from tfcluster.plan.plan import Plan, TaskPlan

LOOK_EVERY_S: Final = 2.0
DIAL_S: Final = 2.0
"""How long a machine may take to answer."""
_SHOWN = 3


class Elsewhere:
    """The cluster's tasks that somebody else starts."""

    def __init__(self, plan: Plan, wait_for: Callable[[str | None], None]) -> None:
        """`wait_for` is told what is waited for, None: nothing any more."""
        cluster = [task for task in plan.elsewhere if task.in_cluster]
        self._peers = cluster if plan.kind == "training" else []
        self._wait_for, self._absent = wait_for, tuple[str, ...]()
        self.ports: Mapping[str, int] = {}
        """Task → port, of those for which one was chosen at the start."""

    def absent(self) -> Sequence[str]:
        """Those that did not answer the last time, and how."""
        return self._absent

    async def follow(self, is_waiting: Callable[[], bool]) -> None:
        """Look again and again until cancelled, as long as a task here `is_waiting`."""
        while self._peers:
            absent = await self._look() if is_waiting() else ()
            if absent != self._absent:
                self._absent = absent
                self._wait_for(_in_short(absent) or None)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _look(self) -> tuple[str, ...]:
        dials = (_dial(task, self.ports.get(str(task.id), task.port)) for task in self._peers)
        found = await asyncio.gather(*dials)
        return tuple(words for words in found if words)


async def _dial(task: TaskPlan, port: int) -> str:
    """What is wrong with the way to `task`; empty where something listens there."""
    where = f"{task.id} at {task.host}:{port}"
    try:
        async with asyncio.timeout(DIAL_S):
            _, writer = await asyncio.open_connection(task.host.strip("[]"), port)
    except ConnectionRefusedError:
        return f"{where}: nothing listens there yet"
    except TimeoutError:
        return f"{where}: no answer; is the machine up, does a firewall stand before it?"
    except (OSError, UnicodeError) as error:
        return f"{where}: {reason_of(error)}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


def _in_short(absent: Sequence[str]) -> str:
    more = f" and {len(absent) - _SHOWN} more" if len(absent) > _SHOWN else ""
    return ", ".join(absent[:_SHOWN]) + more
