"""Sending trees of files to a node, and the questions and answers that all file transfer uses.

The node gets the entries of a tree with their digests (`file_trees`) and asks for the contents it
lacks, which follow in slices (`Sending`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.catalogue import Report
from tfcluster.agent.protocol import ProtocolError
from tfcluster.wire.messages import FileSlice, Reconnected

SendFile = Callable[[str, int, bytes], Awaitable[None]]

_STALLED_SILENCE_S = 5.0
"""Seconds for which a node that has exceeded its limit may do so again: less, to fail soon."""
_WAIT_STEP_S = 5.0
_MOST_SILENCES = 10.0
"""A question waits at most this many silence limits while the node answers other questions."""
_SLICE = 256 << 10
"""Bytes in one frame; an order waits at most as long as one takes to be sent."""
_MOST_REQUESTS = 10
"""Requests a node may send for each file, which its cache may have lost meanwhile."""
_WINDOW = 4 << 20
"""Bytes sent but not acknowledged; more would pile up if the node's disk is slow."""


class RemoteFilesError(OSError):
    """The node could not do what it was asked for; the text says why."""


class FilesStalledError(RemoteFilesError):
    """The node is connected but answers nothing about any file."""


class ReconnectedError(Exception):
    """The connection is a new one, and the question must be asked again."""


@dataclass(slots=True)
class NodeState:
    """The state of the node that is to answer."""

    name: str
    silence_s: float
    """Seconds for which it may answer nothing about files while it is connected."""
    is_connected: bool = True
    answer_count: int = 0
    """The number of answers received, of any kind."""
    _stalled_at: int | None = None
    """The value of `answer_count` when the node last exceeded its silence limit."""

    @property
    def patience_s(self) -> float:
        """Seconds for which the node may be silent from now on."""
        is_stalled = self._stalled_at == self.answer_count
        return min(_STALLED_SILENCE_S, self.silence_s) if is_stalled else self.silence_s

    def stalled_error(self) -> FilesStalledError:
        """Note that the node has exceeded its silence limit, and return the error for it."""
        self._stalled_at = self.answer_count
        return FilesStalledError(
            f"{self.name or 'the node'} has answered nothing about its files for"
            f" {self.silence_s:.0f} s: its disk or a file server hangs, or its process for files"
            " was stopped"
        )


class Question:
    """One question to the node, and its answers in order."""

    def __init__(self, number: int, node: NodeState) -> None:
        self.number, self._node = number, node
        self._coming: deque[Report] = deque()
        self._has_come = asyncio.Event()
        self.is_answered = False
        self._waiting_bytes = 0
        """Bytes of file slices not taken yet."""
        self._listed = self._listed_bytes = 0
        """The number of names listed so far, and their characters."""

    def put(self, answer: Report) -> None:
        """Keep an answer. Raises ProtocolError if the node sends more than it was asked for.

        A correct agent keeps to these limits; another one would fill the coordinator's memory.
        """
        if isinstance(answer, msg.Scanned):
            self._listed += len(answer.entries)
            self._listed_bytes += sum(len(path) for path, _, _ in answer.entries)
            most, most_bytes = budgets.LISTED_OUTPUTS, 2 * budgets.LISTED_BYTES
            if self._listed > most or self._listed_bytes > most_bytes:
                raise ProtocolError(f"a listing of more than {most:,} files")
        if isinstance(answer, FileSlice):
            self._waiting_bytes += len(answer.data)
        self._coming.append(answer)
        self._has_come.set()
        if self._waiting_bytes > budgets.FILE_BYTES_AHEAD:
            most = budgets.FILE_BYTES_AHEAD
            raise ProtocolError(f"more than {most:,} bytes of a file beyond those acknowledged")

    def has_answer(self) -> bool:
        return bool(self._coming)

    def next_slice(self) -> FileSlice | None:
        """Return the next answer if it has arrived and is a slice of a file, else None."""
        if not self._coming or not isinstance(found := self._coming[0], FileSlice):
            return None
        self._take()
        return found

    async def next(self) -> Report:
        """Return the next answer. Raises FilesStalledError if none comes.

        It waits in short steps and counts only those that end while the node is connected and
        silent: the coordinator may have been stopped itself (Ctrl-Z), and a cut connection has
        its own lease.
        """
        patience_s, answer_count = self._node.patience_s, self._node.answer_count
        silent_s = waited_s = 0.0
        most_s = _MOST_SILENCES * patience_s
        step_s = min(_WAIT_STEP_S, patience_s / 4)
        while not self._coming and silent_s < patience_s and waited_s < most_s:
            self._has_come.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(step_s):
                    await self._has_come.wait()
                    break
            if self._node.answer_count != answer_count or not self._node.is_connected:
                silent_s, answer_count = 0.0, self._node.answer_count
            else:
                silent_s += step_s
            waited_s += step_s if self._node.is_connected else 0.0
        if not self._coming:
            raise self._node.stalled_error()
        return self._take()

    def _take(self) -> Report:
        answer = self._coming.popleft()
        if isinstance(answer, FileSlice):
            self._waiting_bytes -= len(answer.data)
        return answer


class Sending:
    """The transfer of one tree to a node, controlled by the node's answers."""

    def __init__(
        self,
        into: str,
        sources: Mapping[str, tuple[Path, int]],
        question: Question,
        send_file: SendFile,
    ) -> None:
        self._into, self._sources = into, sources
        self._question, self._send_file = question, send_file
        self._pending: deque[str] = deque()
        self._acknowledged: dict[str, int] = {}
        self._is_received = False
        self._requested = self.sent = 0

    async def run(self) -> None:
        """Send until the node has all. Raises RemoteFilesError, ReconnectedError, OSError."""
        while not self._is_received:
            if self._pending:
                await self._send(self._pending.popleft())
            else:
                self._handle(await self._question.next())

    def _handle(self, answer: Report) -> None:
        match answer:
            case msg.Wants(digests=digests):
                self._requested += len(digests)
                if not self._sources.keys() >= set(digests):
                    raise RemoteFilesError(f"{self._into}: the node asks for an unknown file")
                if self._requested > _MOST_REQUESTS * len(self._sources):
                    raise RemoteFilesError(f"{self._into}: the node asks for the same files again")
                self._pending.extend(digests)
            case msg.Took(digest=digest, at=at):
                self._acknowledged[digest] = at
            case msg.Received():
                self._is_received = True
            case msg.FileFailed(error=error):
                raise RemoteFilesError(f"{self._into}: {error}")
            case Reconnected():
                raise ReconnectedError
            case msg.FilesLost(error=error):
                raise RemoteFilesError(error)

    async def _send(self, digest: str) -> None:
        """Send one file. Raises RemoteFilesError if it is shorter than when it was announced."""
        source, size = self._sources[digest]
        at = 0
        self._acknowledged[digest] = 0
        with source.open("rb") as reader:
            while at < size or size == 0:
                while at >= self._acknowledged[digest] + _WINDOW or self._question.has_answer():
                    self._handle(await self._question.next())
                data = await asyncio.to_thread(reader.read, min(_SLICE, size - at))
                if not data and size:
                    raise RemoteFilesError(f"{source} was truncated while it was sent")
                await self._send_file(digest, at, data)
                at += len(data)
                self.sent += len(data)
                if size == 0:
                    break
