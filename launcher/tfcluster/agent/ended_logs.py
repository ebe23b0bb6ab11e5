"""What ended tasks wrote, for a coordinator whose connection broke before all of it was sent."""

from __future__ import annotations

import contextlib

from tfcluster.agent import protocol

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from tfcluster.agent.task import Task

_READ_BYTES = 256 << 10


class EndedLogs:
    """Remembers places in files, never their contents."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[str, int, int]] = {}
        """Stream → path, first and last offset of the task's output."""

    def add(self, task: Task) -> None:
        self._places[task.stream_name] = (task.log.path, task.log_begin, task.log.size)

    def missing(self, offsets: dict[str, int]) -> Iterator[bytes]:
        """Frames with all that a coordinator lacks that has each stream up to its offset."""
        for name, (path, begin, end) in self._places.items():
            at = offsets.get(name, begin)
            with contextlib.suppress(OSError), open(path, "rb") as log:
                log.seek(at)
                while at < end and (data := log.read(min(_READ_BYTES, end - at))):
                    yield protocol.data_frame(protocol.LOG, name, at, data)
                    at += len(data)
