"""File transfer with a node that shares no file system with the coordinator: `RemoteFiles` lists,
reads and sends.

Answers arrive through `handle`, which gets every message of the node about files. A broken
connection loses file bytes, so every question in progress is asked again after a reconnect, under
a new number; answers to the old number are ignored. A question nobody waits for is cancelled.

No wait is endless: a connected node that answers nothing about any file for `silence_s` is
reported as one whose files hang (a dead file server, a stopped process). A node that works on
something long sends a sign of life every two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.message_fields import replace
from tfcluster.wire.file_sending import (
    NodeState,
    Question,
    ReconnectedError,
    RemoteFilesError,
    SendFile,
    Sending,
)
from tfcluster.wire.file_trees import Sent, announce
from tfcluster.wire.messages import FileSlice, Hurried, Reconnected

R = TypeVar("R", bound=msg.Report)

Send = Callable[[msg.FileOrder], Awaitable[None]]
Take = Callable[[bytes], Awaitable[None]]

_ACKNOWLEDGE_BYTES = 2 << 20
"""Bytes written here after which the node gets an acknowledgement and may send as many more."""
SILENCE_S = 60.0
"""Seconds for which a connected node may answer nothing about files."""


class RemoteFileChangedError(Exception):
    """The file was rewritten, truncated or deleted while it was read."""


class RemoteFiles:
    """The files of one node; every method may be used by several asyncio tasks at once."""

    def __init__(
        self, send: Send, send_file: SendFile, *, node: str = "", silence_s: float = SILENCE_S
    ) -> None:
        self._send, self._send_file = send, send_file
        self._last = self._hurries = 0
        self._waiting: dict[str, Question] = {}
        self._node = NodeState(node, silence_s)
        self.is_lost, self._lost_reason = False, ""
        """True if no answer will come any more; and the reason."""

    def handle(self, answer: msg.FileReport | FileSlice | msg.FilesLost) -> None:
        """Handle a message about files.

        Raises ProtocolError if the node sends more than it was asked for, which would fill the
        coordinator's memory.
        """
        self._node.answer_count += 1
        if isinstance(answer, msg.FilesLost):
            self._broadcast(answer)
        elif not isinstance(answer, msg.Moving):
            number = answer.name if isinstance(answer, FileSlice) else str(answer.id)
            if (question := self._waiting.get(number)) is not None:
                question.put(answer)

    def disconnected(self) -> None:
        """Note that no answer can come until `reconnected` is called."""
        self._node.is_connected = False

    def hurry(self) -> None:
        """Lift the rate limit of reads in progress, because no task trains on the node any more."""
        self._hurries += 1
        self._broadcast(Hurried())

    def reconnected(self) -> None:
        """Repeat all questions in progress over a new connection."""
        self._node.is_connected = True
        self._broadcast(Reconnected())

    def mark_lost(self, why: str = "") -> None:
        """Fail all questions in progress, and those to come; `why` ends the error's text."""
        self.is_lost, self._lost_reason = True, f"the node was lost{why and f': {why}'}"
        self._broadcast(msg.FilesLost(error=self._lost_reason))

    def _broadcast(self, message: msg.Report) -> None:
        for question in self._waiting.values():
            question.put(message)

    async def scan(
        self, folder: str, *, most: int = budgets.LISTED_OUTPUTS, changes: bool = False
    ) -> list[tuple[str, int, int]]:
        """Return (path, size in bytes, mtime in ns) of all below `folder`; none if it is missing.

        `changes`: only of what differs from the last listing of this kind that the node's file
        process has made. Raises RemoteFilesError, also if there are more than `most`.
        """
        found: list[tuple[str, int, int]] = []
        async with self._ask() as question:
            order = msg.Scan(id=question.number, folder=folder, most=most, changes=changes)
            await self._send(order)
            while not question.is_answered:
                answer = await _next(question, msg.Scanned, folder)
                if answer.left_off:
                    question.is_answered = True
                    raise RemoteFilesError(budgets.too_many_files(folder, most))
                found += answer.entries
                question.is_answered = not answer.more
        return found

    async def find_shared_folder(
        self, folders: Sequence[str], *, name: str, text: str, inode: int
    ) -> str | None:
        """Return which of `folders` is, on the node, the coordinator's own folder, and writable.

        That is the one in which the node sees the coordinator's file `name` with this `text` and
        `inode`; None if there is no such folder.
        """
        async with self._ask() as question:
            order = msg.Look(id=question.number, folders=folders, name=name, text=text, inode=inode)
            await self._send(order)
            answer = await _next(question, msg.Looked, name)
            question.is_answered = True
            return answer.folder

    async def read(
        self,
        folder: str,
        path: str,
        take: Take,
        *,
        size: int,
        mtime_ns: int,
        rate: float | None = None,
        start: int = 0,
        offset: int = 0,
        grows: bool = False,
    ) -> str:
        """Pass the contents of a file to `take`, from `offset` on; return the SHA-512 of those from
        `start` on, as the node computed it.

        `size` (bytes) and `mtime_ns`: as `scan` listed them. `rate`: bytes per second at most.
        `grows`: the file may get longer than `size` meanwhile. At most a few MB are buffered
        while `take` runs. Raises RemoteFileChangedError, RemoteFilesError, and what `take` raises.
        """
        file = msg.Read(id=0, folder=folder, path=path, size=size, mtime_ns=mtime_ns, rate=rate)
        order = replace(file, start=start, offset=offset, grows=grows)
        hurries = self._hurries
        while True:
            async with self._ask() as question:
                order = replace(order, id=question.number)
                await self._send(order)
                reading = _Reading(question, order, self._send)
                try:
                    end = await reading.run(take)
                except ReconnectedError:  # `hurry` may have been called before it
                    rate = rate if self._hurries == hurries else None
                    order = replace(order, offset=reading.at, rate=rate)
                    continue
                if not end.is_unchanged or reading.at != size:
                    raise RemoteFileChangedError("changed while it was read")
                return end.sha512

    async def send_tree(
        self, into: str, files: Sequence[Sent], *, keep: bool, unless_there: bool = False
    ) -> int:
        """Make the node's folder `into` hold exactly `files`; return how many bytes were sent.

        `keep`: the node caches them for the next run. `unless_there`: a folder that exists is
        left as it is. Raises RemoteFilesError, OSError.
        """
        order = msg.Receive(id=0, into=into, files=[], keep=keep, unless_there=unless_there)
        return await self._send_files(order, files)

    async def add_files(self, into: str, files: Sequence[Sent], *, removed: Sequence[str]) -> int:
        """Add `files` to the node's folder `into`, then delete the paths in `removed`.

        Files are added in their order, each atomically; all others stay. Return how many bytes
        were sent. Raises RemoteFilesError, OSError.
        """
        order = msg.Receive(id=0, into=into, files=[], adds=True, removed=[*removed])
        return await self._send_files(order, files)

    async def _send_files(self, order: msg.Receive, files: Sequence[Sent]) -> int:
        tree = await asyncio.to_thread(announce, files)
        sent = 0
        while True:
            async with self._ask() as question:
                *pages, last = tree.pages()
                number = question.number
                for page in pages:
                    await self._send(replace(order, id=number, files=page, more=True))
                await self._send(replace(order, id=number, files=last))
                sending = Sending(order.into, tree.sources, question, self._send_file)
                with contextlib.suppress(ReconnectedError):
                    try:
                        await sending.run()
                    finally:
                        sent += sending.sent
                    question.is_answered = True
                    return sent

    @asynccontextmanager
    async def _ask(self) -> AsyncIterator[Question]:
        if self.is_lost:
            raise RemoteFilesError(self._lost_reason)
        self._last += 1
        question = Question(self._last, self._node)
        self._waiting[str(self._last)] = question
        try:
            yield question
        finally:
            del self._waiting[str(question.number)]
            if not (question.is_answered or self.is_lost):
                with contextlib.suppress(OSError):
                    await self._send(msg.Cancel(id=question.number))


class _Reading:
    """The transfer of one file to the coordinator over one connection."""

    def __init__(self, question: Question, order: msg.Read, send: Send) -> None:
        self._question, self._order, self._send = question, order, send
        self.at = self._acknowledged = order.offset

    async def run(self, take: Take) -> msg.ReadEnd:
        """Pass all bytes to `take` and return the node's last answer.

        Raises ReconnectedError, RemoteFilesError, and what `take` raises.
        """
        while True:
            match await _next(self._question, msg.Report, self._order.path):
                case FileSlice() as found:
                    await self._take(self._join_waiting(self._new_bytes(found)), take)
                case Hurried() if self._order.rate is not None:
                    await self._send(msg.Hurry(id=self._question.number))
                case Reconnected():
                    raise ReconnectedError
                case msg.ReadEnd() as end:
                    self._question.is_answered = True
                    return end
                case msg.FileFailed(error=error):
                    self._question.is_answered = True
                    raise RemoteFileChangedError(error)

    def _new_bytes(self, found: FileSlice) -> bytes:
        """Return the bytes of a slice that are new: the first one after a reconnect may overlap."""
        skipped = self.at - found.offset
        if not 0 <= skipped < len(found.data):
            raise RemoteFilesError("the node sent bytes that were not asked for")
        data = found.data[skipped:]
        self.at += len(data)
        return data

    def _join_waiting(self, data: bytes) -> bytes:
        """Return `data` and the slices that already wait: one large write costs less than many."""
        slices = [data]
        while (more := self._question.next_slice()) is not None:
            slices.append(self._new_bytes(more))
        return b"".join(slices)

    async def _take(self, data: bytes, take: Take) -> None:
        await take(data)
        if self.at >= self._acknowledged + _ACKNOWLEDGE_BYTES:
            self._acknowledged = self.at
            await self._send(msg.Got(id=self._question.number, at=self.at))


async def _next(question: Question, kind: type[R], what: str) -> R:
    """Return the next answer of a kind. Raises RemoteFilesError if `what` was asked for failed."""
    while True:
        answer = await question.next()
        if isinstance(answer, msg.FilesLost):
            raise RemoteFilesError(answer.error)
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, msg.FileFailed):
            raise RemoteFilesError(f"{what}: {answer.error}")
