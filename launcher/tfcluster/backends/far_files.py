"""Files of a node that shares no file system with us: trees sent there, contents brought home.

Answers come by `hear`, which is given every message of the node. A connection that breaks takes
file bytes with it, so whatever is under way is asked for again once it is back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Send = Callable[[dict[str, Any]], Awaitable[None]]
SendFile = Callable[[str, int, bytes], Awaitable[None]]

KINDS = frozenset({"wants", "received", "receive_failed", "scanned", "read_end", "file", "looked"})
"""Types of the messages that are for `FarFiles.hear`."""
_CHUNK = 1 << 20


class FarFilesError(OSError):
    """The node could not do it; the text says why."""


class FarFileChangedError(Exception):
    """The file was rewritten, cut or deleted while it was read."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a tree: where it goes, and where its bytes are now."""

    path: str
    """Below the folder, with slashes."""
    source: Path
    mode: int = 0o644
    mtime_ns: int | None = None
    link: str | None = None
    """The target of a symbolic link; it then has no bytes."""


class FarFiles:
    """Of one node; every method may be used by several tasks at once."""

    def __init__(self, send: Send, send_file: SendFile) -> None:
        self._send, self._send_file = send, send_file
        self._last = 0
        self._waiting: dict[int, asyncio.Queue[Mapping[str, Any]]] = {}
        self._is_lost = False

    def hear(self, message: Mapping[str, Any]) -> None:
        """A message of one of `KINDS`."""
        number = message.get("id")
        if message["type"] == "file":
            number = int(message["name"]) if message["name"].isdecimal() else None
        if isinstance(number, int) and number in self._waiting:
            self._waiting[number].put_nowait(message)

    def reconnected(self) -> None:
        """The connection is a new one."""
        for queue in self._waiting.values():
            queue.put_nowait({"type": "reconnected"})

    def lost(self) -> None:
        """There will be no answer any more."""
        self._is_lost = True
        for queue in self._waiting.values():
            queue.put_nowait({"type": "lost"})

    async def scan(self, folder: str) -> list[tuple[str, int, int]]:
        """(path, size, mtime in ns) of all below `folder`; empty where it is not there."""
        async with self._asking() as (number, answers):
            await self._send({"type": "scan", "id": number, "folder": folder})
            answer = await _next(answers, "scanned")
            return [(str(path), int(size), int(when)) for path, size, when in answer["entries"]]

    async def look(self, folders: Sequence[str], *, name: str, text: str, inode: int) -> str | None:
        """In which of `folders` the node sees the file `name` of ours, and may write."""
        order = {"type": "look", "folders": list(folders), "name": name, "text": text}
        async with self._asking() as (number, answers):
            await self._send({**order, "inode": inode, "id": number})
            folder = (await _next(answers, "looked"))["folder"]
            return None if folder is None else str(folder)

    async def read(
        self, folder: str, path: str, *, size: int, mtime_ns: int, rate: float | None = None
    ) -> AsyncIterator[bytes]:
        """The contents of a file that was listed so; `rate`: bytes per second at most.

        Raises FarFileChangedError, FarFilesError.
        """
        asked = {"type": "read", "folder": folder, "path": path, "size": size}
        asked |= {"mtime_ns": mtime_ns, "rate": rate}
        digest, at = hashlib.sha256(), 0
        async with self._asking() as (number, answers):
            await self._send({**asked, "id": number, "offset": at})
            while True:
                answer = await answers.get()
                match answer["type"]:
                    case "file" if answer["offset"] <= at < answer["offset"] + len(answer["data"]):
                        data = answer["data"][at - answer["offset"] :]
                        digest.update(data)
                        at += len(data)
                        yield data
                    case "reconnected":
                        await self._send({**asked, "id": number, "offset": at})
                    case "read_end":
                        _judge(answer, at, size, digest.hexdigest())
                        return
                    case "lost":
                        raise FarFilesError("the node was lost")

    async def send_tree(
        self, into: str, files: Sequence[Sent], *, keep: bool, unless_there: bool = False
    ) -> int:
        """Make `into` hold exactly `files`; how many bytes had to be sent.

        `keep`: the node keeps them for the next run. `unless_there`: a folder that exists is left
        as it is. Raises FarFilesError, OSError.
        """
        entries, sources = await asyncio.to_thread(_announced, files)
        order = {"type": "receive", "into": into, "files": entries, "keep": keep}
        order["unless_there"] = unless_there
        sent = 0
        async with self._asking() as (number, answers):
            await self._send({**order, "id": number})
            while True:
                answer = await answers.get()
                match answer["type"]:
                    case "wants":
                        for digest in answer["digests"]:
                            if digest not in sources:
                                raise FarFilesError(f"{into}: it wants what it was not offered")
                            sent += await self._send_one(digest, *sources[digest])
                    case "reconnected":
                        await self._send({**order, "id": number})
                    case "received":
                        return sent
                    case "receive_failed":
                        raise FarFilesError(f"{into}: {answer['error']}")
                    case "lost":
                        raise FarFilesError("the node was lost")

    async def _send_one(self, digest: str, source: Path, size: int) -> int:
        """Raises FarFilesError for a file that is shorter than it was when it was announced."""
        at = 0
        with source.open("rb") as reader:
            while at < size or size == 0:
                data = await asyncio.to_thread(reader.read, min(_CHUNK, size - at))
                if not data and size:
                    raise FarFilesError(f"{source} was cut while it was sent")
                await self._send_file(digest, at, data)
                at += len(data)
                if size == 0:
                    break
        return at

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[tuple[int, asyncio.Queue[Mapping[str, Any]]]]:
        if self._is_lost:
            raise FarFilesError("the node was lost")
        self._last += 1
        number = self._last
        answers = self._waiting[number] = asyncio.Queue()
        try:
            yield number, answers
        finally:
            del self._waiting[number]


async def _next(answers: asyncio.Queue[Mapping[str, Any]], kind: str) -> Mapping[str, Any]:
    while True:
        answer = await answers.get()
        if answer["type"] == "lost":
            raise FarFilesError("the node was lost")
        if answer["type"] == kind:
            return answer


def _judge(answer: Mapping[str, Any], came: int, size: int, digest: str) -> None:
    if answer.get("error"):
        raise FarFileChangedError(str(answer["error"]))
    if not answer.get("is_unchanged") or came != size or answer.get("sha256") != digest:
        raise FarFileChangedError("changed while it was read")


def _announced(files: Iterable[Sent]) -> tuple[list[dict[str, Any]], dict[str, tuple[Path, int]]]:
    entries: list[dict[str, Any]] = []
    sources: dict[str, tuple[Path, int]] = {}
    for file in files:
        if file.link is not None:
            entries.append({"path": file.path, "link": file.link})
            continue
        with file.source.open("rb") as reader:
            digest = hashlib.file_digest(reader, "sha256").hexdigest()
            size = reader.tell()
        sources[digest] = (file.source, size)
        entry = {"path": file.path, "sha256": digest, "size": size, "mode": file.mode}
        entries.append(entry if file.mtime_ns is None else entry | {"mtime_ns": file.mtime_ns})
    return entries, sources
