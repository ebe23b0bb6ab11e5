"""Sending trees of files to a node, and the questions and answers that all file transfer uses.

The node gets the tree's entries with their digests (`announce`) and asks for the contents it
lacks, which follow in slices (`Sending`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tfcluster.agent import budgets
from tfcluster.agent.protocol import ProtocolError

_STEP_S = 5.0
_FAIR = 10.0
"""Times its patience a question waits at most while the node answers others."""


class RemoteFilesError(OSError):
    """The node could not do it; the text says why."""


class FilesStalledError(RemoteFilesError):
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


SendFile = Callable[[str, int, bytes], Awaitable[None]]

_SLICE = 256 << 10
"""Orders wait no longer than one of these takes to be sent."""
_ASKED_AGAIN = 10
"""Times a node may ask for each file: one that its cache has lost meanwhile it asks for again."""
_WINDOW = 4 << 20
"""Bytes under way at most: more would pile up where a node's disk is slower than the line."""
_PAGE_BYTES = 1 << 20
_ENTRY_BYTES = 320
"""Of an entry without its path, which JSON may blow up sixfold."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a tree: where it goes, and where its bytes are now."""

    path: str
    """Below the folder, with slashes."""
    source: Path
    mode: int = 0o600
    mtime_ns: int | None = None
    link: str | None = None
    """The target of a symbolic link; it then has no bytes."""
    sha512: str | None = None
    """Where it is known already."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What a node is told of a tree, and where the bytes of each digest are."""

    entries: list[dict[str, Any]]
    sources: dict[str, tuple[Path, int]]

    def pages(self) -> Iterator[list[dict[str, Any]]]:
        """The entries, in lists that fit into a frame each; at least one."""
        page, size = list[dict[str, Any]](), 0
        for entry in self.entries:
            if size > _PAGE_BYTES:
                yield page
                page, size = [], 0
            page.append(entry)
            size += _ENTRY_BYTES + 6 * (len(entry["path"]) + len(entry.get("link", "")))
        yield page


def announced(files: Iterable[Sent]) -> Announced:
    """Reads what has no digest yet. Raises OSError."""
    entries: list[dict[str, Any]] = []
    sources: dict[str, tuple[Path, int]] = {}
    for file in files:
        if file.link is not None:
            entries.append({"path": file.path, "link": file.link})
            continue
        digest, size = _known(file)
        sources[digest] = (file.source, size)
        entry = {"path": file.path, "sha512": digest, "size": size, "mode": file.mode}
        entries.append(entry if file.mtime_ns is None else entry | {"mtime_ns": file.mtime_ns})
    return Announced(entries, sources)


def _known(file: Sent) -> tuple[str, int]:
    if file.sha512 is not None:
        return file.sha512, file.source.stat().st_size
    with file.source.open("rb") as reader:
        return hashlib.file_digest(reader, "sha512").hexdigest(), reader.tell()


class Sending:
    """One tree under way; `answers` are what the node says of it."""

    def __init__(
        self,
        into: str,
        sources: Mapping[str, tuple[Path, int]],
        answers: Answers,
        send_file: SendFile,
    ) -> None:
        self._into, self._sources = into, sources
        self._answers, self._send_file = answers, send_file
        self._pending: deque[str] = deque()
        self._took: dict[str, int] = {}
        self._is_received = False
        self._wanted = self.sent = 0

    async def run(self) -> None:
        """Until all is there. Raises FarFilesError, ReconnectedError, OSError."""
        while not self._is_received:
            if self._pending:
                await self._send(self._pending.popleft())
            else:
                self._hear(await self._answers.next())

    def _hear(self, answer: Mapping[str, Any]) -> None:
        match answer["type"]:
            case "wants":
                self._wanted += len(answer["digests"])
                if not self._sources.keys() >= set(answer["digests"]):
                    raise RemoteFilesError(f"{self._into}: it wants what it was not offered")
                if self._wanted > _ASKED_AGAIN * len(self._sources):
                    raise RemoteFilesError(f"{self._into}: it wants the same files again and again")
                self._pending.extend(answer["digests"])
            case "took":
                self._took[answer["digest"]] = answer["at"]
            case "received":
                self._is_received = True
            case "receive_failed":
                raise RemoteFilesError(f"{self._into}: {answer['error']}")
            case "reconnected":
                raise ReconnectedError
            case "files_lost" | "lost":
                raise RemoteFilesError(str(answer["error"]))

    async def _send(self, digest: str) -> None:
        """Raises FarFilesError for a file that is shorter than it was when it was announced."""
        source, size = self._sources[digest]
        at = 0
        self._took[digest] = 0
        with source.open("rb") as reader:
            while at < size or size == 0:
                while at >= self._took[digest] + _WINDOW or not self._answers.empty():
                    self._hear(await self._answers.next())
                data = await asyncio.to_thread(reader.read, min(_SLICE, size - at))
                if not data and size:
                    raise RemoteFilesError(f"{source} was cut while it was sent")
                await self._send_file(digest, at, data)
                at += len(data)
                self.sent += len(data)
                if size == 0:
                    break
