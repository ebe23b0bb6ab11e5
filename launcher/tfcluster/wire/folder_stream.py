"""A run folder that is copied while it is written: the side that sends, and the side that applies.

``python -m tfcluster.wire.folder_stream FOLDER`` sends on its stdout, in the
coordinator's pod. First it names the folder, which is another one once the pod was replaced
without a volume. Then it reads one line of JSON, ``{"have": {PATH: [SIZE, MTIME_NS]}}``, from
stdin, and ends with stdin. Each frame is a line of JSON and so many bytes. Files that grow are
sent from the offset that the reader has; all others whole, and resumed if they have not changed.
While the run lives, checkpoints and outputs are left out. The last state is sent when all else has
arrived.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tfcluster.agent import foreign_json
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status

Frame = tuple[Mapping[str, Any], bytes]
"""The line of JSON, and the bytes after it."""
Have = dict[str, tuple[int, int]]
"""Path → size and time of the last change, nanoseconds."""

FOLDER: Final = ".folder"
"""The file with the id of a coordinator's folder, and the bytes and lines of events that it began
with (`describe_folder`)."""
_MIRRORED: Final = ".mirrored"
"""The file with the id of the folder that was copied last, and where its files begin here."""
_EVENTS: Final = "events.jsonl"
_STATE: Final = "state.json"
_OWN: Final = frozenset({"spec.json", "plan.json", "launch.json", "submitted.json", _STATE})
"""Files that each side has for itself; the state is sent apart."""
_AT_THE_END: Final = ("checkpoints", "outputs")
_NEVER: Final = ("tasks", "tuner")
_SEQ: Final = re.compile(rb'(\{"seq":\s*)(\d+)')
"""The beginning of each line of events (`rundir.run_writer.to_line`)."""
_PART: Final = ".part"
_COMING: Final = ".partial-coming-"
"""The prefix of a checkpoint's folder that is not complete yet; a store ignores it."""
_SLICE: Final = 1 << 18
_INTERVAL_S: Final = 0.2
_SIGN_OF_LIFE_S: Final = 2.0


def send(folder: Path, have: Have, stream: IO[bytes], *, pause: Pause) -> None:
    """Send what changes in `folder` until its run is over, or `pause` says that nobody reads."""
    sender = _Sender(folder, dict(have), stream)
    while not sender.send_changes() and pause(_INTERVAL_S):
        pass


class Pause:
    """The wait between two checks; stdin ends with the reader."""

    def __call__(self, seconds: float) -> bool:
        """Wait; return whether there is still a reader."""
        readable, _, _ = select.select([0], [], [], seconds)
        return not readable or bool(os.read(0, 1))


@dataclass(slots=True)
class _Sender:
    folder: Path
    sent: Have
    stream: IO[bytes]
    _state: bytes = b""
    _said_at: float = float("-inf")

    def send_changes(self) -> bool:
        """Send what is new; return whether the run is over and everything is sent.

        The state is read first and sent last, so that it is never ahead of the logs.
        """
        try:
            state = (self.folder / _STATE).read_bytes()
        except FileNotFoundError:
            return False
        is_over = Status(foreign_json.parse_json_object(state)["status"]).is_final
        for path in _files(self.folder, everything=is_over):
            self._send_file(path)
        if state != self._state:
            head = {"path": _STATE, "at": 0, "mtime_ns": 0, "last": True, "over": is_over}
            self._frame(head, state)
            self._state = state
        if is_over or time.monotonic() - self._said_at >= _SIGN_OF_LIFE_S:
            self._frame({"synced": True}, b"")
            self._said_at = time.monotonic()
        self.stream.flush()
        return is_over

    def _send_file(self, path: str) -> None:
        try:
            with (self.folder / path).open("rb") as file:
                status = os.fstat(file.fileno())
                size, mtime_ns, mode = status.st_size, status.st_mtime_ns, status.st_mode & 0o777
                had, had_mtime_ns = self.sent.get(path, (-1, 0))
                is_same = _grows(path) or had_mtime_ns == mtime_ns
                if had == size and is_same:
                    return
                at = had if is_same and 0 < had < size else 0
                file.seek(at)
                while True:
                    data = file.read(min(_SLICE, size - at))
                    is_last = at + len(data) >= size or not data
                    about = {"mtime_ns": mtime_ns, "mode": mode, "last": is_last}
                    self._frame({"path": path, "at": at, **about}, data)
                    at += len(data)
                    if is_last:
                        break
                self.sent[path] = at, mtime_ns
        except FileNotFoundError:
            return

    def _frame(self, head: Mapping[str, Any], data: bytes) -> None:
        self.stream.write(json.dumps({**head, "bytes": len(data)}).encode() + b"\n" + data)


def _files(folder: Path, *, everything: bool) -> Iterator[str]:
    """Yield the paths of the files to send, relative to `folder`."""
    for found, folders, names in os.walk(folder):
        top = Path(found) == folder
        skipped = {*_NEVER, *(() if everything else _AT_THE_END)} if top else set[str]()
        own = "." if top else ".partial-"
        folders[:] = sorted(n for n in folders if n not in skipped and not n.startswith(own))
        for name in sorted(names):
            is_own = top and (name in _OWN or name.startswith("."))
            if not is_own and not name.endswith(_PART):
                yield os.path.relpath(os.path.join(found, name), folder)


def _grows(path: str) -> bool:
    """Return whether the file is only appended to."""
    return path.endswith((".jsonl", ".log")) or "tfevents" in path.rpartition("/")[2]


def describe_folder(folder_id: str, events: Path) -> dict[str, Any]:
    """Return what `FOLDER` says about a new folder with these events."""
    data = events.read_bytes()
    return {"id": folder_id, "events": len(data), "lines": data.count(b"\n")}


@dataclass(slots=True)
class _Renumbered:
    """The events of a folder that follow those of an earlier one: `seq` has no gap and no repeat.

    Lines are written whole, so that the file here shows how much of the other one has arrived.
    """

    begins_at: int
    """The place of its first event in the file of this machine, in bytes."""
    skipped: int
    """The bytes at its beginning that both folders have."""
    ahead: int
    """The difference of the numbers."""
    _partial: bytes = b""

    def size(self, events: Path) -> int:
        """Return the bytes of the other folder's events that have arrived."""
        with events.open("rb") as file:
            file.seek(self.begins_at)
            return self.skipped + sum(len(self._shift(line, -self.ahead)) for line in file)

    def append(self, events: Path, data: bytes) -> None:
        whole, end, self._partial = (self._partial + data).rpartition(b"\n")
        with events.open("ab") as file:
            file.writelines(
                self._shift(line, self.ahead) for line in (whole + end).splitlines(True)
            )

    @staticmethod
    def _shift(line: bytes, by: int) -> bytes:
        match = _SEQ.match(line)
        if match is None:
            return line
        return b"%s%d%s" % (match[1], int(match[2]) + by, line[match.end() :])


@dataclass(slots=True)
class Applier:
    """The side that applies frames to its own run folder."""

    paths: RunPaths
    final_state: bytes | None = None
    """The state of a run that is over, which is not applied yet (`finish`)."""
    _shifts: dict[str, int] = field(default_factory=dict)
    """Path of a log → where its copy begins in the file of this machine."""
    _events: _Renumbered | None = None
    """The events of a later folder; those of the first are copied as they are."""

    def meet(self, folder: Mapping[str, Any]) -> None:
        """Note which folder is copied. After another one, its events and logs are appended."""
        note = self.paths.root / _MIRRORED
        known = foreign_json.read_json_object(note) if note.exists() else {}
        if known.get("id") != folder["id"]:
            followed = self._follow(folder) if known else {"shifts": {}, "events": None}
            known = {"id": folder["id"], **followed}
            note.write_text(json.dumps(known))
        self._shifts = dict(known["shifts"])
        events = known["events"]
        self._events = None if events is None else _Renumbered(*events)

    def _follow(self, folder: Mapping[str, Any]) -> dict[str, Any]:
        """Return where the files of another folder of the run begin here."""
        self._events, self._shifts = None, {}
        shifts = {path: has[0] for path, has in self.have().items() if _grows(path)}
        begins_at, data = shifts.pop(_EVENTS), self.paths.events.read_bytes()
        ahead = data.count(b"\n") - folder["lines"]
        return {"shifts": shifts, "events": [begins_at, folder["events"], ahead]}

    def have(self) -> Have:
        """Return what this folder has, also of files that did not arrive whole."""
        found = Have()
        for top, _, names in os.walk(self.paths.root):
            for name in names:
                path = os.path.join(top, name)
                try:
                    status = os.stat(path)
                except FileNotFoundError:
                    continue
                shown = os.path.relpath(path, self.paths.root).replace(_COMING, "")
                if name.endswith(_PART):
                    found[shown.removesuffix(_PART)] = status.st_size, status.st_mtime_ns
                else:
                    size = max(0, status.st_size - self._shifts.get(shown, 0))
                    found.setdefault(shown, (size, status.st_mtime_ns))
        if self._events is not None:
            found[_EVENTS] = self._events.size(self.paths.events), 0
        return found

    def apply(self, head: Mapping[str, Any], data: bytes) -> None:
        """Apply a frame."""
        path = _require_sent(head["path"])
        if path == _STATE:
            if head["over"]:
                self.final_state = data
            else:
                self._write_state(data)
            return
        if path == _EVENTS and self._events is not None:
            self._events.append(self.paths.events, data)
            return
        target = self._place_of(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        grown = target if _grows(path) else target.with_name(f"{target.name}{_PART}")
        with grown.open("r+b" if grown.exists() else "xb") as file:
            file.seek(head["at"] + self._shifts.get(path, 0))
            if head["at"] == 0 or not _grows(path):
                file.truncate()
            file.write(data)
        if not _grows(path):
            grown.chmod(head["mode"])
            os.utime(grown, ns=(head["mtime_ns"], head["mtime_ns"]))
            if head["last"]:
                grown.replace(target)

    def place_checkpoints(self) -> None:
        """Make checkpoints that have arrived whole visible."""
        for coming in sorted(self.paths.checkpoints.glob(f"{_COMING}*")):
            target = coming.with_name(coming.name.removeprefix(_COMING))
            if target.exists():
                shutil.copytree(coming, target, dirs_exist_ok=True)
                shutil.rmtree(coming)
            else:
                coming.rename(target)

    def finish(self) -> None:
        """Apply the state of a run that is over."""
        assert self.final_state is not None
        self._write_state(self.final_state)

    def _place_of(self, path: str) -> Path:
        top, _, rest = path.partition("/")
        if top == self.paths.checkpoints.name and "/" in rest:
            return self.paths.checkpoints / f"{_COMING}{rest}"
        return self.paths.root / path

    def _write_state(self, data: bytes) -> None:
        fresh = self.paths.state.with_name(f".{_STATE}.new")
        fresh.write_bytes(data)
        fresh.replace(self.paths.state)


def frames(stream: IO[bytes]) -> Iterator[Frame]:
    """Yield the frames of a stream until it ends."""
    while line := stream.readline():
        if not line.endswith(b"\n"):
            return
        head = foreign_json.parse_json_object(line)
        data = stream.read(head["bytes"])
        if len(data) < head["bytes"]:
            return
        yield head, data


def _require_sent(path: str) -> str:
    """Return `path`; raise ValueError for one outside of the folder, or of this side's own."""
    if path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"the coordinator's pod sends a file outside of the run folder: {path}")
    if path.startswith(".") or path in _OWN - {_STATE}:
        raise ValueError(f"the coordinator's pod sends a file of this machine: {path}")
    return path


def main() -> None:
    """Send the folder that the command line names, once it exists."""
    folder, pause = Path(sys.argv[1]), Pause()
    while not (folder / FOLDER).exists():
        time.sleep(_INTERVAL_S)
    about = {"folder": foreign_json.read_json_object(folder / FOLDER), "bytes": 0}
    sys.stdout.buffer.write(json.dumps(about).encode() + b"\n")
    sys.stdout.buffer.flush()
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(0, 1)):
            return
        line += byte
    have = {
        path: (size, at)
        for path, (size, at) in foreign_json.parse_json_object(line)["have"].items()
    }
    send(folder, have, sys.stdout.buffer, pause=pause)


if __name__ == "__main__":
    main()
