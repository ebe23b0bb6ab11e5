"""A run folder is copied while it is written, over a connection that breaks."""

from __future__ import annotations

import io
import json
import socket
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import pytest

from tfcluster.rundir.events import Warned
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.wire import folder_stream
from tfcluster.wire.folder_stream import Applier, frames


@dataclass
class Copy:
    """A run folder far away, and the copy of it here."""

    far: Path
    near: RunPaths
    id: str = "first"
    base: str = ""
    """The events that the folder began with."""
    applied: list[str] = field(default_factory=list)

    def write(self, path: str, text: str, *, append: bool = False) -> None:
        target = self.far / path
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("a" if append else "w") as file:
            file.write(text)

    def state(self, status: str) -> None:
        self.write("state.json", json.dumps({"status": status}))

    def read(self, path: str) -> str:
        return (self.near.root / path).read_text()

    def pull(self, *, most: int | None = None) -> Applier:
        """Copy once; after `most` frames the connection breaks."""
        applier = Applier(self.near)
        applier.meet({"id": self.id, "events": len(self.base), "lines": self.base.count("\n")})
        ours, theirs = socket.socketpair()
        sending = threading.Thread(target=self._send, args=[theirs, applier.have()])
        sending.start()
        with ours, ours.makefile("rb") as stream:
            for number, (head, data) in enumerate(frames(stream)):
                if number == most:
                    break
                if "path" in head:
                    applier.apply(head, data)
                    self.applied.append(head["path"])
        sending.join()
        if applier.final_state is not None:
            applier.place_checkpoints()
            applier.finish()
        return applier

    def _send(self, connection: socket.socket, have: folder_stream.Have) -> None:
        stream: IO[bytes] = connection.makefile("wb")
        try:
            with connection, stream:
                folder_stream.send(self.far, have, stream, pause=lambda _: False)  # type: ignore[arg-type]
        except (BrokenPipeError, ConnectionResetError):
            pass


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    near = RunPaths(tmp_path / "near")
    near.root.mkdir()
    (tmp_path / "far").mkdir()
    made = Copy(tmp_path / "far", near)
    made.state("running")
    return made


def test_files_grow_are_replaced_and_vanish(copy: Copy) -> None:
    copy.write("events.jsonl", "one\n")
    copy.write("logs/attempt-1/worker-0.log", "a")
    copy.write("preflight.json", "old and long")
    copy.pull()
    copy.write("events.jsonl", "two\n", append=True)
    copy.write("preflight.json", "new")
    (copy.far / "logs/attempt-1/worker-0.log").unlink()
    copy.applied.clear()
    copy.pull()
    assert copy.read("events.jsonl") == "one\ntwo\n"
    assert copy.read("preflight.json") == "new"
    assert copy.read("logs/attempt-1/worker-0.log") == "a"
    assert "logs/attempt-1/worker-0.log" not in copy.applied


def test_checkpoints_come_at_the_end_and_the_final_state_is_last(copy: Copy) -> None:
    copy.write("checkpoints/ckpt-1/ckpt-1.index", "index")
    copy.write("tasks/worker-0/scratch", "not copied")
    copy.pull()
    assert not copy.near.checkpoints.exists()
    copy.state("succeeded")
    copy.pull()
    assert copy.applied[-1] == "state.json"
    assert copy.read("checkpoints/ckpt-1/ckpt-1.index") == "index"
    assert json.loads(copy.read("state.json")) == {"status": "succeeded"}
    assert not (copy.near.root / "tasks").exists()


def test_a_broken_connection_is_resumed_where_it_broke(copy: Copy) -> None:
    copy.write("outputs/model.bin", "x" * (5 << 18))
    copy.state("succeeded")
    cut = copy.pull(most=2)
    assert cut.final_state is None
    assert json.loads(copy.read("state.json") if copy.near.state.exists() else "{}") == {}
    assert (copy.near.root / "outputs/model.bin.part").stat().st_size == 2 << 18
    copy.applied.clear()
    copy.pull()
    assert copy.read("outputs/model.bin") == "x" * (5 << 18)
    assert copy.applied.count("outputs/model.bin") == 3


def events(*numbers: int, word: str) -> str:
    made = (to_line(Warned(message=word), seq=number, time=1.0) for number in numbers)
    return b"".join(made).decode()


def test_another_folder_of_the_run_is_appended_and_its_events_are_renumbered(copy: Copy) -> None:
    base = events(1, word="submitted")
    copy.write("events.jsonl", base + events(2, 3, 4, 5, 6, 7, 8, 9, word="first"))
    copy.write("logs/attempt-1/worker-0.log", "first attempt\n")
    copy.pull()
    for path in ("events.jsonl", "logs/attempt-1/worker-0.log"):
        (copy.far / path).unlink()
    copy.id, copy.base = "second", base
    torn = events(3, word="torn")
    copy.write("events.jsonl", base + events(2, word="second") + torn[:12])
    copy.write("logs/attempt-2/worker-0.log", "second attempt\n")
    copy.pull()
    copy.write("events.jsonl", torn[12:] + events(4, word="second"), append=True)
    copy.pull()
    found = [json.loads(line) for line in copy.read("events.jsonl").splitlines()]
    assert [each["seq"] for each in found] == [*range(1, 13)]
    assert [each["message"] for each in found[8:]] == ["first", "second", "torn", "second"]
    assert copy.read("logs/attempt-1/worker-0.log") == "first attempt\n"
    assert copy.read("logs/attempt-2/worker-0.log") == "second attempt\n"


def test_programs_stay_executable(copy: Copy) -> None:
    copy.write("outputs/run.sh", "true")
    (copy.far / "outputs/run.sh").chmod(0o755)
    copy.state("succeeded")
    copy.pull()
    assert (copy.near.root / "outputs/run.sh").stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("path", ["plan.json", "launch.json", ".seat-token", ".cancelled"])
def test_files_of_this_machine_are_not_overwritten(copy: Copy, path: str) -> None:
    with pytest.raises(ValueError, match="a file of this machine"):
        Applier(copy.near).apply({"path": path, "at": 0}, b"x")
    assert not (copy.near.root / path).exists()


def test_a_stream_that_ends_within_a_line_has_no_more_frames() -> None:
    assert list(frames(io.BytesIO(b'{"synced": true, "by'))) == []


def test_a_path_that_leads_out_of_the_folder_is_refused(copy: Copy) -> None:
    applier = Applier(copy.near)
    for path in ("/etc/passwd", "logs/../../x"):
        with pytest.raises(ValueError, match="outside of the run folder"):
            applier.apply({"path": path, "at": 0, "last": True, "mtime_ns": 0}, b"")
