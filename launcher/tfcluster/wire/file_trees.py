"""Trees of files as a node gets them announced. Submitting needs them, without asyncio."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tfcluster.agent.catalogue import FileEntry

_PAGE_BYTES = 1 << 20
_ENTRY_BYTES = 320
"""Bytes of an entry without its path; JSON may take six bytes for a character of that."""


@dataclass(frozen=True, slots=True)
class FileToSend:
    """One file of a tree to send: its path on the node, and where its bytes are now."""

    path: str
    """Relative to the folder, with slashes."""
    source: Path
    mode: int = 0o600
    mtime_ns: int | None = None
    link: str | None = None
    """The target of a symbolic link, which has no bytes of its own."""
    sha512: str | None = None
    """The digest, if it is known already."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A tree as a node gets it announced, and where the bytes of each digest are."""

    entries: list[FileEntry]
    sources: dict[str, tuple[Path, int]]
    """Digest → (file, size in bytes)."""

    def pages(self) -> Iterator[list[FileEntry]]:
        """Yield the entries in lists that each fit into a frame; at least one list."""
        page, size = list[FileEntry](), 0
        for entry in self.entries:
            if size > _PAGE_BYTES:
                yield page
                page, size = [], 0
            page.append(entry)
            size += _ENTRY_BYTES + 6 * (len(entry.path) + len(entry.link or ""))
        yield page


def announce(files: Iterable[FileToSend]) -> Announced:
    """Return the announcement of a tree; files without a digest are read. Raises OSError."""
    entries: list[FileEntry] = []
    sources: dict[str, tuple[Path, int]] = {}
    for file in files:
        if file.link is not None:
            entries.append(FileEntry(path=file.path, link=file.link))
            continue
        digest, size = _digest_and_size(file)
        sources[digest] = (file.source, size)
        entries.append(
            FileEntry(
                path=file.path, sha512=digest, size=size, mode=file.mode, mtime_ns=file.mtime_ns
            )
        )
    return Announced(entries, sources)


def _digest_and_size(file: FileToSend) -> tuple[str, int]:
    if file.sha512 is not None:
        return file.sha512, file.source.stat().st_size
    with file.source.open("rb") as reader:
        return hashlib.file_digest(reader, "sha512").hexdigest(), reader.tell()
