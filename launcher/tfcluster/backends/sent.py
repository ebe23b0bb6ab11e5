"""Trees of files on their way to a node: what is announced of them, and their bytes by slices."""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfcluster.backends.answers import Answers, FarFilesError, ReconnectedError

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
                    raise FarFilesError(f"{self._into}: it wants what it was not offered")
                if self._wanted > _ASKED_AGAIN * len(self._sources):
                    raise FarFilesError(f"{self._into}: it wants the same files again and again")
                self._pending.extend(answer["digests"])
            case "took":
                self._took[answer["digest"]] = answer["at"]
            case "received":
                self._is_received = True
            case "receive_failed":
                raise FarFilesError(f"{self._into}: {answer['error']}")
            case "reconnected":
                raise ReconnectedError
            case "files_lost" | "lost":
                raise FarFilesError(str(answer["error"]))

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
                    raise FarFilesError(f"{source} was cut while it was sent")
                await self._send_file(digest, at, data)
                at += len(data)
                self.sent += len(data)
                if size == 0:
                    break
