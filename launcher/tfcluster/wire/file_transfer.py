"""File transfer with a node that shares no file system with the coordinator: `RemoteFiles` lists,
reads and sends.

Answers arrive through `handle`, which gets every message of the node about files. A broken
connection loses file bytes, so every question in progress is asked again after a reconnect, under
a new number; answers to the old number are ignored. A question nobody waits for is cancelled.

No wait is endless: a connected node that answers nothing about any file for `silence_s` is
reported as one whose files hang (a dead file server, a stopped process). A node that works on
something long sends a sign of life every two seconds.

To get a tree, the node is sent its entries with their digests (`file_trees`), and asks for the
contents it lacks, which follow in slices (`Sending`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tfcluster.agent import budgets
from tfcluster.agent import catalogue as msg
from tfcluster.agent.catalogue import Report
from tfcluster.agent.message_fields import replace
from tfcluster.agent.protocol import ProtocolError
from tfcluster.wire.file_trees import FileToSend, announce
from tfcluster.wire.messages import FileSlice, RateLifted, Reconnected

R = TypeVar("R", bound=msg.Report)

Send = Callable[[msg.FileOrder], Awaitable[None]]
Take = Callable[[bytes], Awaitable[None]]
SendFile = Callable[[str, int, bytes], Awaitable[None]]

_ACKNOWLEDGE_BYTES = 2 << 20
"""Bytes written here after which the node gets an acknowledgement and may send as many more."""
FILES_SILENCE_S = 60.0
"""Seconds for which a connected node may answer nothing about files."""
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


class RemoteFileChangedError(Exception):
    """The file cannot be read as it was listed: it was rewritten, truncated or deleted, or its disk
    fails."""


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
        if not self._coming or not isinstance(first := self._coming[0], FileSlice):
            return None
        self._take()
        return first

    async def next(self) -> Report:
        """Return the next answer. Raises FilesStalledError if none comes, and RemoteFilesError if
        none can come any more.

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
        answer = self._take()
        if isinstance(answer, msg.FilesLost):
            raise RemoteFilesError(answer.error)
        self.is_answered |= isinstance(answer, msg.FileFailed)
        return answer

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


class RemoteFiles:
    """The files of one node; every method may be used by several asyncio tasks at once."""

    def __init__(
        self, send: Send, send_file: SendFile, *, node: str = "", silence_s: float = FILES_SILENCE_S
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
        elif not isinstance(answer, msg.StillWorking):
            number = answer.name if isinstance(answer, FileSlice) else str(answer.id)
            if (question := self._waiting.get(number)) is not None:
                question.put(answer)

    def disconnected(self) -> None:
        """Note that no answer can come until `reconnected` is called."""
        self._node.is_connected = False

    def hurry(self) -> None:
        """Lift the rate limit of reads in progress, because no task trains on the node any more."""
        self._hurries += 1
        self._broadcast(RateLifted())

    def reconnected(self) -> None:
        """Repeat all questions in progress over a new connection."""
        self._node.is_connected = True
        self._broadcast(Reconnected())

    def mark_lost(self, reason: str = "") -> None:
        """Fail all questions in progress, and those to come; `reason` ends the error's text."""
        self.is_lost, self._lost_reason = True, f"the node was lost{reason and f': {reason}'}"
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
        entries: list[tuple[str, int, int]] = []
        async with self._ask() as question:
            order = msg.Scan(id=question.number, folder=folder, most=most, changes=changes)
            await self._send(order)
            while not question.is_answered:
                answer = await _next(question, msg.Scanned, folder)
                if answer.left_off:
                    question.is_answered = True
                    raise RemoteFilesError(budgets.too_many_files(folder, most))
                entries += answer.entries
                question.is_answered = not answer.more
        return entries

    async def find_shared_folder(
        self, folders: Sequence[str], *, name: str, text: str, inode: int
    ) -> str | None:
        """Return which of `folders` is, on the node, the coordinator's own folder, and writable.

        That is the one in which the node sees the coordinator's file `name` with this `text` and
        `inode`; None if there is no such folder.
        """
        async with self._ask() as question:
            order = msg.FindMarkedFolder(
                id=question.number, folders=folders, name=name, text=text, inode=inode
            )
            await self._send(order)
            answer = await _next(question, msg.MarkedFolder, name)
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
                reading = _FileReading(question, order, self._send)
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
        self, into: str, files: Sequence[FileToSend], *, keep: bool, unless_there: bool = False
    ) -> int:
        """Make the node's folder `into` hold exactly `files`; return how many bytes were sent.

        `keep`: the node caches them for the next run. `unless_there`: a folder that exists is
        left as it is. Raises RemoteFilesError, OSError.
        """
        order = msg.Receive(id=0, into=into, files=[], keep=keep, unless_there=unless_there)
        return await self._send_files(order, files)

    async def add_files(
        self, into: str, files: Sequence[FileToSend], *, removed: Sequence[str]
    ) -> int:
        """Add `files` to the node's folder `into`, then delete the paths in `removed`.

        Files are added in their order, each atomically; all others stay. Return how many bytes
        were sent. Raises RemoteFilesError, OSError.
        """
        order = msg.Receive(id=0, into=into, files=[], adds=True, removed=[*removed])
        return await self._send_files(order, files)

    async def _send_files(self, order: msg.Receive, files: Sequence[FileToSend]) -> int:
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


class _FileReading:
    """The transfer of one file to the coordinator over one connection."""

    def __init__(self, question: Question, order: msg.Read, send: Send) -> None:
        self._question, self._order, self._send = question, order, send
        self.at = self._acknowledged = order.offset

    async def run(self, take: Take) -> msg.ReadEnd:
        """Pass all bytes to `take` and return the node's last answer.

        Raises ReconnectedError, RemoteFilesError, and what `take` raises.
        """
        while True:
            match await self._question.next():
                case FileSlice() as piece:
                    await self._take(self._join_waiting(self._new_bytes(piece)), take)
                case RateLifted() if self._order.rate is not None:
                    await self._send(msg.LiftRate(id=self._question.number))
                case Reconnected():
                    raise ReconnectedError
                case msg.ReadEnd() as end:
                    self._question.is_answered = True
                    return end
                case msg.FileFailed(error=error):
                    raise RemoteFileChangedError(error)

    def _new_bytes(self, piece: FileSlice) -> bytes:
        """Return the bytes of a slice that are new: the first one after a reconnect may overlap."""
        skipped = self.at - piece.offset
        if not 0 <= skipped < len(piece.data):
            raise RemoteFilesError("the node sent bytes that were not asked for")
        data = piece.data[skipped:]
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
            await self._send(msg.Written(id=self._question.number, at=self.at))


async def _next(question: Question, kind: type[R], path: str) -> R:
    """Return the next answer of a kind. Raises RemoteFilesError if the node failed with `path`."""
    while True:
        answer = await question.next()
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, msg.FileFailed):
            raise RemoteFilesError(f"{path}: {answer.error}")
