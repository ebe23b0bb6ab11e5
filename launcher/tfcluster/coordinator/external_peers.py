"""Follows the tasks that are started elsewhere, while others wait for them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Final

from tfcluster.agent.error_text import reason_of
from tfcluster.plans.plan import Plan, TaskPlan

_DIAL_EVERY_S: Final = 2.0
_DIAL_S: Final = 2.0
"""Time for a machine to answer."""


async def follow_peers(
    plan: Callable[[], Plan],
    is_waiting: Callable[[], bool],
    note_absent: Callable[[Sequence[str]], None],
) -> None:
    """Dial the tasks that are started elsewhere every 2 s, while a local task `is_waiting`.

    Runs until cancelled. `note_absent` gets the tasks that did not answer, with the reasons.
    """
    noted = tuple[str, ...]()
    while plan().kind == "training":
        dials = [_dial(task) for task in plan().elsewhere if task.in_cluster and is_waiting()]
        absent = tuple(filter(None, await asyncio.gather(*dials)))
        if absent != noted:
            note_absent(absent)
            noted = absent
        await asyncio.sleep(_DIAL_EVERY_S)


async def _dial(task: TaskPlan) -> str:
    """Return why `task` cannot be reached; empty if something listens on its port."""
    where = f"{task.id} at {task.address}"
    try:
        async with asyncio.timeout(_DIAL_S):
            _, writer = await asyncio.open_connection(task.bare_host, task.port)
    except ConnectionRefusedError:
        return f"{where}: nothing listens there yet"
    except TimeoutError:
        return f"{where}: no answer; is the machine up, does a firewall block it?"
    except (OSError, UnicodeError) as error:
        return f"{where}: {reason_of(error)}"
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""
