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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tfcluster.agent import budgets
from tfcluster.wire.file_sending import (
    AnswerQueue,
    NodeState,
    Question,
    ReconnectedError,
    RemoteFilesError,
    SendFile,
    Sending,
    Sent,
    announce,
)

Send = Callable[[dict[str, Any]], Awaitable[None]]
Take = Callable[[bytes], Awaitable[None]]

KINDS = frozenset(
    {"wants", "took", "received", "receive_failed", "scanned", "read_end", "file", "looked"}
    | {"files_lost", "moving"}
)
"""Types of the messages that go to `RemoteFiles.handle`."""
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
        self._waiting: dict[int, Question] = {}
        self._node = NodeState(node, silence_s)
        self.is_lost, self._lost_reason = False, ""
        """True if no answer will come any more; and the reason."""

    def handle(self, message: Mapping[str, Any]) -> None:
        """Handle a message of one of `KINDS`.

        Raises ProtocolError if the node sends more than it was asked for, which would fill the
        coordinator's memory.
        """
        self._node.answer_count += 1
        if message["type"] == "files_lost":
            self._broadcast(message)
            return
        number = message.get("id")
        if message["type"] == "file":
            number = int(message["name"]) if message["name"].isdecimal() else None
        question = self._waiting.get(number) if isinstance(number, int) else None
        if question is not None and message["type"] != "moving":
            question.put(message)

    def disconnected(self) -> None:
        """Note that no answer can come until `reconnected` is called."""
        self._node.is_connected = False

    def hurry(self) -> None:
        """Lift the rate limit of reads in progress, because no task trains on the node any more."""
        self._hurries += 1
        self._broadcast({"type": "hurry"})

    def reconnected(self) -> None:
        """Repeat all questions in progress over a new connection."""
        self._node.is_connected = True
        self._broadcast({"type": "reconnected"})

    def mark_lost(self, why: str = "") -> None:
        """Fail all questions in progress, and those to come; `why` ends the error's text."""
        self.is_lost, self._lost_reason = True, f"the node was lost{why and f': {why}'}"
        self._broadcast({"type": "lost", "error": self._lost_reason})

    def _broadcast(self, message: Mapping[str, Any]) -> None:
        for question in self._waiting.values():
            question.answers.put_nowait(message)

    async def scan(
        self, folder: str, *, most: int = budgets.LISTED_OUTPUTS
    ) -> list[tuple[str, int, int]]:
        """Return (path, size in bytes, mtime in ns) of all below `folder`; none if it is missing.

        Raises RemoteFilesError, also if there are more than `most`.
        """
        found: list[tuple[str, int, int]] = []
        async with self._ask() as question:
            order = {"type": "scan", "id": question.number, "folder": folder, "most": most}
            await self._send(order)
            while not question.is_answered:
                answer = await _next(question, "scanned")
                if answer.get("error"):
                    raise RemoteFilesError(f"{folder}: {answer['error']}")
                if answer.get("left_off"):
                    question.is_answered = True
                    raise RemoteFilesError(budgets.too_many_files(folder, most))
                found += (
                    (str(path), int(size), int(when)) for path, size, when in answer["entries"]
                )
                question.is_answered = not answer.get("more")
        return found

    async def find_shared_folder(
        self, folders: Sequence[str], *, name: str, text: str, inode: int
    ) -> str | None:
        """Return which of `folders` is, on the node, the coordinator's own folder, and writable.

        That is the one in which the node sees the coordinator's file `name` with this `text` and
        `inode`; None if there is no such folder.
        """
        order = {"type": "look", "folders": list(folders), "name": name, "text": text}
        async with self._ask() as question:
            await self._send({**order, "inode": inode, "id": question.number})
            folder = (await _next(question, "looked"))["folder"]
            question.is_answered = True
            return None if folder is None else str(folder)

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
        grows: bool = False,
    ) -> str:
        """Pass the contents of a file to `take`, from offset `start` on; return their SHA-512 as
        the node computed it.

        `size` (bytes) and `mtime_ns`: as `scan` listed them. `rate`: bytes per second at most.
        `grows`: the file may get longer than `size` meanwhile. At most a few MB are buffered
        while `take` runs. Raises RemoteFileChangedError, RemoteFilesError, and what `take` raises.
        """
        order = {"type": "read", "folder": folder, "path": path, "size": size, "rate": rate}
        order |= {"mtime_ns": mtime_ns, "start": start, "grows": grows}
        at, hurries = start, self._hurries
        while True:
            if self._hurries != hurries:  # `hurry` may have been called before the reconnect
                order["rate"] = None
            async with self._ask() as question:
                await self._send({**order, "id": question.number, "offset": at})
                reading = _Reading(question, at, order, self._send)
                try:
                    end = await reading.run(take)
                except ReconnectedError:
                    at = reading.at
                    continue
                if end.get("error"):
                    raise RemoteFileChangedError(str(end["error"]))
                if not end.get("is_unchanged") or reading.at != size:
                    raise RemoteFileChangedError("changed while it was read")
                return str(end.get("sha512"))

    async def send_tree(
        self, into: str, files: Sequence[Sent], *, keep: bool, unless_there: bool = False
    ) -> int:
        """Make the node's folder `into` hold exactly `files`; return how many bytes were sent.

        `keep`: the node caches them for the next run. `unless_there`: a folder that exists is
        left as it is. Raises RemoteFilesError, OSError.
        """
        options = {"into": into, "keep": keep, "unless_there": unless_there}
        return await self._send_files(options, files)

    async def add_files(self, into: str, files: Sequence[Sent], *, removed: Sequence[str]) -> int:
        """Add `files` to the node's folder `into`, then delete the paths in `removed`.

        Files are added in their order, each atomically; all others stay. Return how many bytes
        were sent. Raises RemoteFilesError, OSError.
        """
        options = {"into": into, "keep": False, "adds": True, "removed": [*removed]}
        return await self._send_files(options, files)

    async def _send_files(self, options: Mapping[str, Any], files: Sequence[Sent]) -> int:
        tree = await asyncio.to_thread(announce, files)
        into, order = options["into"], {"type": "receive", **options}
        sent = 0
        while True:
            async with self._ask() as question:
                *pages, last = tree.pages()
                for page in pages:
                    await self._send({**order, "id": question.number, "files": page, "more": True})
                await self._send({**order, "id": question.number, "files": last})
                sending = Sending(into, tree.sources, question.answers, self._send_file)
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
        question = self._waiting[self._last] = Question(self._last, AnswerQueue(self._node))
        try:
            yield question
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteFilesError(f"the node's answer is invalid: {error!r}") from error
        finally:
            del self._waiting[question.number]
            if not (question.is_answered or self.is_lost):
                with contextlib.suppress(OSError):
                    await self._send({"type": "cancel", "id": question.number})


class _Reading:
    """The transfer of one file to the coordinator over one connection."""

    def __init__(self, question: Question, at: int, order: Mapping[str, Any], send: Send) -> None:
        self._question, self._order, self._send = question, order, send
        self.at = self._acknowledged = at

    async def run(self, take: Take) -> Mapping[str, Any]:
        """Pass all bytes to `take` and return the node's last answer.

        Raises ReconnectedError, RemoteFilesError, and what `take` raises.
        """
        while True:
            answer = await _next(self._question, "file", "read_end", "reconnected", "hurry")
            match answer["type"]:
                case "file":
                    await self._take(self._join_waiting(self._new_bytes(answer)), take)
                case "hurry" if self._order["rate"] is not None:
                    await self._send({"type": "hurry", "id": self._question.number})
                case "reconnected":
                    raise ReconnectedError
                case "read_end":
                    self._question.is_answered = True
                    return answer

    def _new_bytes(self, answer: Mapping[str, Any]) -> bytes:
        """Return the bytes of a slice that are new: the first one after a reconnect may overlap."""
        skipped = self.at - answer["offset"]
        if not 0 <= skipped < len(answer["data"]):
            raise RemoteFilesError("the node sent bytes that were not asked for")
        data: bytes = answer["data"][skipped:]
        self.at += len(data)
        return data

    def _join_waiting(self, data: bytes) -> bytes:
        """Return `data` and the slices that already wait: one large write costs less than many."""
        slices = [data]
        while (more := self._question.answers.next_slice()) is not None:
            slices.append(self._new_bytes(more))
        return b"".join(slices)

    async def _take(self, data: bytes, take: Take) -> None:
        await take(data)
        if self.at >= self._acknowledged + _ACKNOWLEDGE_BYTES:
            self._acknowledged = self.at
            await self._send({"type": "got", "id": self._question.number, "at": self.at})


async def _next(question: Question, *kinds: str) -> Mapping[str, Any]:
    while True:
        answer = await question.answers.next()
        if answer["type"] in ("lost", "files_lost"):
            raise RemoteFilesError(str(answer["error"]))
        if answer["type"] in kinds:
            return answer
