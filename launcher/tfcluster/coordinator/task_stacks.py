"""The stacks of a run's tasks on request (`tfcluster stacks`), with what they mean."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.errors import UsageError
from tfcluster.supervision import silence, stalls
from tfcluster.supervision.endings import STACKS_WAIT_S
from tfcluster.supervision.gang import Gang
from tfcluster.supervision.stalls import Activity, Position


class TaskStacks:
    """Collects the stacks that tasks send; several requests at once get the same answers."""

    def __init__(self, gang: Gang, order: Callable[[str, Sequence[str]], None]) -> None:
        """`order` has the agent of a node take the stacks of these tasks."""
        self._gang, self._order = gang, order
        self._answers: dict[str, msg.Stacks] = {}
        self._has_changed = asyncio.Event()
        self._asking = 0

    def note(self, answer: msg.Stacks) -> None:
        """Take what a task has sent."""
        if self._asking:
            self._answers[answer.task] = answer
            self._has_changed.set()

    async def ask(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the stacks of the tasks `names`, or of all that run, for JSON.

        The fields are `what`, one line that says who is waited for and where, and `tasks`: for
        each its `task`, `attempt`, `where`, and its `threads`, the main one first, of frames with
        `file`, `line`, `function` and `code`. Raises UsageError if no such task runs.
        """
        running = {member.name: member for member in self._gang.running()}
        chosen = [name for name in names or running if name in running]
        if not chosen:
            problem = f"{names[0]} does not run" if names else "no task runs"
            raise UsageError(problem, fix="`tfcluster status` shows the tasks")
        asked = [name for name in chosen if running[name].is_hooked]
        self._asking += 1
        try:
            for node in dict.fromkeys(running[name].node for name in asked):
                self._order(node, [name for name in asked if running[name].node == node])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STACKS_WAIT_S):
                    while not self._answers.keys() >= set(asked):
                        self._has_changed.clear()
                        await self._has_changed.wait()
            return self._describe(chosen, asked)
        finally:
            self._asking -= 1
            if not self._asking:
                self._answers.clear()

    def _describe(self, chosen: Sequence[str], asked: Sequence[str]) -> dict[str, Any]:
        positions, threads = dict[str, Position](), dict[str, Sequence[msg.Thread]]()
        for name in chosen:
            answer = self._answers.get(name)
            silence_reason = answer.silence if answer is not None else ""
            if name not in asked:
                silence_reason = "it runs without hooks"
            threads[name] = answer.threads if answer is not None else ()
            positions[name] = stalls.position_of(threads[name], silence=silence_reason)
        stall = silence.explain_silence(self._gang, positions)
        is_waiting = any(at.activity is not Activity.UNKNOWN for at in positions.values())
        return {
            "what": stall.what if is_waiting else "",
            "tasks": [
                {
                    "task": name,
                    "attempt": self._gang[name].attempt,
                    "where": stall.tasks[name],
                    "threads": [
                        [vars(frame) for frame in thread.frames] for thread in threads[name]
                    ],
                }
                for name in chosen
            ],
        }
