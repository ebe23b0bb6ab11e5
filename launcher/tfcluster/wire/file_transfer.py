"""Files of a node that shares no file system with us: trees sent there, contents brought home.

Answers come by `hear`, which is given every message of the node. A connection that breaks takes
file bytes with it, so whatever is under way is asked for again once it is back, under a new
number: answers to the old one are of the past. What nobody waits for any more is called off.

Nothing is waited for without end: a node that answers nothing about any file for `silence_s`, while
it is connected, is told as one whose files stand still (a dead file server, a stopped process). It
says that it is alive every two seconds while it works on something that takes long.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from tfcluster.agent import budgets
from tfcluster.wire.file_sending import (
    Answers,
    Asked,
    FilesStalledError,
    ReconnectedError,
    RemoteFilesError,
    SendFile,
    Sending,
    Sent,
    announced,
)

__all__ = ["KINDS", "RemoteFileChangedError", "RemoteFiles", "RemoteFilesError", "Sent"]

Send = Callable[[dict[str, Any]], Awaitable[None]]
Take = Callable[[bytes], Awaitable[None]]

KINDS = frozenset(
    {"wants", "took", "received", "receive_failed", "scanned", "read_end", "file", "looked"}
    | {"files_lost", "moving"}
)
"""Types of the messages that are for `RemoteFiles.hear`."""
_TELL_BYTES = 2 << 20
"""After so many the node hears that they are written, and may send as many more."""
SILENCE_S = 60.0
"""How long a node that is connected may answer nothing about files."""
_TRY_AGAIN_S = 5.0
"""The same once it was silent for so long: the next question finds out soon."""


class RemoteFileChangedError(Exception):
    """The file was rewritten, cut or deleted while it was read."""


class RemoteFiles:
    """Of one node; every method may be used by several tasks at once."""

    def __init__(
        self, send: Send, send_file: SendFile, *, node: str = "", silence_s: float = SILENCE_S
    ) -> None:
        """`node`: its name, for words."""
        self._send, self._send_file = send, send_file
        self._last = self._hurries = 0
        self._waiting: dict[int, Asked] = {}
        self._node, self._silence_s = node, silence_s
        self.is_lost, self._lost = False, ""
        """No answer will come any more, and why."""
        self.is_connected = True
        self.heard = 0
        """How many answers of any kind have come."""
        self._stalled_at: int | None = None
        """How many had come when it was last found silent."""

    def hear(self, message: Mapping[str, Any]) -> None:
        """A message of one of `KINDS`. Raises ProtocolError where the node sends more than it
        was asked for: it would fill our memory."""
        self.heard += 1
        if message["type"] == "files_lost":
            self._tell_all(message)
            return
        number = message.get("id")
        if message["type"] == "file":
            number = int(message["name"]) if message["name"].isdecimal() else None
        asked = self._waiting.get(number) if isinstance(number, int) else None
        if asked is not None and message["type"] != "moving":
            asked.put(message)

    @property
    def patience_s(self) -> float:
        """How long it may be silent from now on."""
        is_stalled = self._stalled_at == self.heard
        return min(_TRY_AGAIN_S, self._silence_s) if is_stalled else self._silence_s

    def stalled(self) -> FilesStalledError:
        """It has been silent for longer than that."""
        self._stalled_at = self.heard
        return FilesStalledError(
            f"{self._node or 'the node'} has answered nothing about its files for"
            f" {self._silence_s:.0f} s: its disk or a file server stands still, or its process"
            " for files was stopped"
        )

    def disconnected(self) -> None:
        """No answer can come until it is `reconnected`."""
        self.is_connected = False

    def hurry(self) -> None:
        """No task trains there any more: what is being read comes as fast as it can."""
        self._hurries += 1
        self._tell_all({"type": "hurry"})

    def reconnected(self) -> None:
        """The connection is a new one."""
        self.is_connected = True
        self._tell_all({"type": "reconnected"})

    def lost(self, why: str = "") -> None:
        """There will be no answer any more."""
        self.is_lost, self._lost = True, f"the node was lost{why and f': {why}'}"
        self._tell_all({"type": "lost", "error": self._lost})

    def _tell_all(self, message: Mapping[str, Any]) -> None:
        for asked in self._waiting.values():
            asked.answers.put_nowait(message)

    async def scan(
        self, folder: str, *, most: int = budgets.LISTED_AT_MOST
    ) -> list[tuple[str, int, int]]:
        """(path, size, mtime in ns) of all below `folder`; empty where it is not there.

        Raises FarFilesError, also where there are more than `most`."""
        found: list[tuple[str, int, int]] = []
        async with self._asking() as asked:
            order = {"type": "scan", "id": asked.number, "folder": folder, "most": most}
            await self._send(order)
            while not asked.is_answered:
                answer = await _next(asked, "scanned")
                if answer.get("error"):
                    raise RemoteFilesError(f"{folder}: {answer['error']}")
                if answer.get("left_off"):
                    asked.is_answered = True
                    raise RemoteFilesError(budgets.too_many_files(folder, most))
                found += (
                    (str(path), int(size), int(when)) for path, size, when in answer["entries"]
                )
                asked.is_answered = not answer.get("more")
        return found

    async def look(self, folders: Sequence[str], *, name: str, text: str, inode: int) -> str | None:
        """In which of `folders` the node sees the file `name` of ours, and may write."""
        order = {"type": "look", "folders": list(folders), "name": name, "text": text}
        async with self._asking() as asked:
            await self._send({**order, "inode": inode, "id": asked.number})
            folder = (await _next(asked, "looked"))["folder"]
            asked.is_answered = True
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
        """Give `take` the contents of a file that was listed so, from `start` on; their SHA-512
        as the node has it.

        `rate`: bytes per second at most. `grows`: more may be written behind `size` meanwhile.
        While `take` has not returned at most a few MB wait here. Raises FarFileChangedError,
        FarFilesError, and as `take`.
        """
        order = {"type": "read", "folder": folder, "path": path, "size": size, "rate": rate}
        order |= {"mtime_ns": mtime_ns, "start": start, "grows": grows}
        at, hurries = start, self._hurries
        while True:
            if self._hurries != hurries:  # perhaps before the line broke
                order["rate"] = None
            async with self._asking() as asked:
                await self._send({**order, "id": asked.number, "offset": at})
                reading = _Reading(asked, at, order, self._send)
                try:
                    end = await reading.until_its_end(take)
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
        """Make `into` hold exactly `files`; how many bytes had to be sent.

        `keep`: the node keeps them for the next run. `unless_there`: a folder that exists is left
        as it is. Raises FarFilesError, OSError.
        """
        return await self._send_files(
            {"into": into, "keep": keep, "unless_there": unless_there}, files
        )

    async def add_files(self, into: str, files: Sequence[Sent], *, removed: Sequence[str]) -> int:
        """Put `files` into `into` in their order, each whole at once, then take away what is
        `removed`; the rest stays. How many bytes were sent. Raises as `send_tree`."""
        order = {"into": into, "keep": False, "adds": True, "removed": [*removed]}
        return await self._send_files(order, files)

    async def _send_files(self, wish: Mapping[str, Any], files: Sequence[Sent]) -> int:
        tree = await asyncio.to_thread(announced, files)
        into, order = wish["into"], {"type": "receive", **wish}
        sent = 0
        while True:
            async with self._asking() as asked:
                *pages, last = tree.pages()
                for page in pages:
                    await self._send({**order, "id": asked.number, "files": page, "more": True})
                await self._send({**order, "id": asked.number, "files": last})
                sending = Sending(into, tree.sources, asked.answers, self._send_file)
                with contextlib.suppress(ReconnectedError):
                    try:
                        await sending.run()
                    finally:
                        sent += sending.sent
                    asked.is_answered = True
                    return sent

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Asked]:
        if self.is_lost:
            raise RemoteFilesError(self._lost)
        self._last += 1
        asked = self._waiting[self._last] = Asked(self._last, Answers(self))
        try:
            yield asked
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RemoteFilesError(f"the node's answer makes no sense: {error!r}") from error
        finally:
            del self._waiting[asked.number]
            if not (asked.is_answered or self.is_lost):
                with contextlib.suppress(OSError):
                    await self._send({"type": "cancel", "id": asked.number})


class _Reading:
    """One file on its way home over one connection."""

    def __init__(self, asked: Asked, at: int, order: Mapping[str, Any], send: Send) -> None:
        self._asked, self._order, self._send = asked, order, send
        self.at = self._told = at

    async def until_its_end(self, take: Take) -> Mapping[str, Any]:
        """What the node says of it then. Raises ReconnectedError, FarFilesError, as `take`."""
        while True:
            answer = await _next(self._asked, "file", "read_end", "reconnected", "hurry")
            match answer["type"]:
                case "file":
                    await self._take(self._with_more(self._new_of(answer)), take)
                case "hurry" if self._order["rate"] is not None:
                    await self._send({"type": "hurry", "id": self._asked.number})
                case "reconnected":
                    raise ReconnectedError
                case "read_end":
                    self._asked.is_answered = True
                    return answer

    def _new_of(self, answer: Mapping[str, Any]) -> bytes:
        """The first slice may begin with what had come before."""
        skipped = self.at - answer["offset"]
        if not 0 <= skipped < len(answer["data"]):
            raise RemoteFilesError("the node sent bytes that were not asked for")
        data: bytes = answer["data"][skipped:]
        self.at += len(data)
        return data

    def _with_more(self, data: bytes) -> bytes:
        """And what has come meanwhile: a slice costs more than its bytes."""
        slices = [data]
        while (more := self._asked.answers.next_slice()) is not None:
            slices.append(self._new_of(more))
        return b"".join(slices)

    async def _take(self, data: bytes, take: Take) -> None:
        await take(data)
        if self.at >= self._told + _TELL_BYTES:
            self._told = self.at
            await self._send({"type": "got", "id": self._asked.number, "at": self.at})


async def _next(asked: Asked, *kinds: str) -> Mapping[str, Any]:
    while True:
        answer = await asked.answers.next()
        if answer["type"] in ("lost", "files_lost"):
            raise RemoteFilesError(str(answer["error"]))
        if answer["type"] in kinds:
            return answer
