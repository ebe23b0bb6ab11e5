"""What a node answers to questions about its files, and how long an answer is waited for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tfcluster.agent import budgets
from tfcluster.agent.protocol import ProtocolError

_STEP_S = 5.0
_FAIR = 10.0
"""Times its patience a question waits at most while the node answers others."""


class FarFilesError(OSError):
    """The node could not do it; the text says why."""


class FilesStalledError(FarFilesError):
    """The node is connected, but answers nothing about any file."""


class ReconnectedError(Exception):
    """What was under way is to be asked for again."""


class Listener(Protocol):
    """What is known of the node that is to answer."""

    is_connected: bool
    heard: int
    """How many answers of any kind have come."""

    @property
    def patience_s(self) -> float: ...

    def stalled(self) -> FilesStalledError: ...


class Answers:
    """What comes to one question, in its order."""

    def __init__(self, node: Listener) -> None:
        self._node = node
        self._coming: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self.waiting_bytes = 0
        """Of slices of files that nobody has taken yet."""

    def put_nowait(self, answer: Mapping[str, Any]) -> None:
        if answer["type"] == "file":
            self.waiting_bytes += len(answer["data"])
        self._coming.put_nowait(answer)

    def empty(self) -> bool:
        return self._coming.empty()

    def next_slice(self) -> Mapping[str, Any] | None:
        """The next answer, where it has come and is a slice of a file."""
        waiting = self._coming._queue  # type: ignore[attr-defined]
        if waiting and waiting[0]["type"] == "file":
            return self._taken(self._coming.get_nowait())
        return None

    async def next(self) -> Mapping[str, Any]:
        """The next answer; raises FilesStalledError where none comes.

        Waited is in short steps, of which only those count that end while the node is connected
        and silent: we may have been stopped ourselves (Ctrl-Z), and a cut line has its own lease.
        """
        patience_s, silent_s, waited_s, heard = self._node.patience_s, 0.0, 0.0, self._node.heard
        step_s = min(_STEP_S, patience_s / 4)
        while self._coming.empty() and silent_s < patience_s and waited_s < _FAIR * patience_s:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step_s):
                    return self._taken(await self._coming.get())
            if self._node.heard != heard or not self._node.is_connected:
                silent_s, heard = 0.0, self._node.heard
            else:
                silent_s += step_s
            waited_s += step_s if self._node.is_connected else 0.0
        if self._coming.empty():
            raise self._node.stalled()
        return self._taken(self._coming.get_nowait())

    def _taken(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        if answer["type"] == "file":
            self.waiting_bytes -= len(answer["data"])
        return answer


@dataclass(slots=True)
class Asked:
    """One question to the node, and what it answers."""

    number: int
    answers: Answers
    is_answered: bool = False
    listed: int = 0
    listed_bytes: int = 0
    """Of the names of what it has listed."""

    def put(self, message: Mapping[str, Any]) -> None:
        """Keep an answer. Raises ProtocolError where the node sends more than it was asked for: a
        node of ours keeps to these, and it would fill our memory."""
        if message["type"] == "scanned":
            self.listed += len(message["entries"])
            self.listed_bytes += sum(len(entry[0]) for entry in message["entries"])
            most, most_bytes = budgets.LISTED_AT_MOST, 2 * budgets.LISTED_BYTES
            if self.listed > most or self.listed_bytes > most_bytes:
                raise ProtocolError(f"a listing of more than {most:,} files")
        self.answers.put_nowait(message)
        if self.answers.waiting_bytes > budgets.FILE_BYTES_AHEAD:
            most = budgets.FILE_BYTES_AHEAD
            raise ProtocolError(f"{most:,} bytes of a file and more ahead of what was taken")
