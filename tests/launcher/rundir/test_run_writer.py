"""The run writer loses no event when the disk is full, and its files are always complete."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from tfcluster.rundir import events as ev
from tfcluster.rundir import run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import RunWriter
from tfcluster.rundir.snapshot import RunSnapshot

STEP = ev.Progress(task="worker:0", attempt=1, step=1)


class Disk:
    """A disk with `room` bytes left for ``events.jsonl``; while full it takes no state either."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._open, self._write = run_writer.EventLog, run_writer.write_json
        monkeypatch.setattr(run_writer, "write_json", self._write_json)
        monkeypatch.setattr(run_writer, "EventLog", self._event_log)

    def _event_log(self, *args: Any, **options: Any) -> run_writer.EventLog:
        log = self._open(*args, **options)
        vars(log)["_file"] = _LimitedFile(log._file, self)
        return log

    def _write_json(self, *args: Any) -> None:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._write(*args)


class _LimitedFile:
    def __init__(self, file: Any, disk: Disk) -> None:
        self._file, self._disk = file, disk

    def write(self, data: bytes) -> int:
        if self._disk.room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written: int = self._file.write(data[: self._disk.room])
        self._disk.room -= written
        return written

    def close(self) -> None:
        self._file.close()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def seqs(paths: RunPaths) -> list[int]:
    return [json.loads(line)["seq"] for line in paths.events.read_text().splitlines()]


def test_events_delayed_by_a_full_disk_are_written_later_complete_and_in_order(
    disk: Disk, state: RunSnapshot, paths: RunPaths
) -> None:
    writer = RunWriter(state, paths)
    writer.record(ev.Warned(message="one"))
    disk.room = 20  # half a line
    for word in ("two", "three", "four"):
        writer.record(ev.Warned(message=word))
    assert writer.save() is False
    assert paths.events.read_bytes().count(b"\n") == 1

    disk.room = 1 << 20
    assert writer.save() is True
    writer.record(ev.Warned(message="five"))
    assert writer.close() == ""
    assert seqs(paths) == [1, 2, 3, 4, 5]
    assert json.loads(paths.state.read_text())["warnings"] == [
        "one",
        "two",
        "three",
        "four",
        "five",
    ]


def test_a_disk_that_stays_full_is_reported_and_the_old_state_stays_readable(
    disk: Disk, state: RunSnapshot, paths: RunPaths
) -> None:
    writer = RunWriter(state, paths)
    disk.room = 0
    writer.record(ev.RunFinished(status="succeeded", exit_code=0))
    assert writer.close() == "the disk is full"
    assert json.loads(paths.state.read_text())["status"] == "starting"


def test_progress_writes_the_state_four_times_a_second(
    state: RunSnapshot, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []

    monkeypatch.setattr(run_writer, "write_json", lambda *args: written.append(args))
    now = 100.0
    writer = RunWriter(state, paths, clock=lambda: now)
    first = len(written)
    for _ in range(101):
        now += 0.01
        writer.record(STEP)
        writer.save()
    assert 3 <= len(written) - first <= 5
    assert writer.wake_s == pytest.approx(0.25), "the last change will be written"
    writer.record(ev.TaskReady(task="worker:0", attempt=1))
    before = len(written)
    writer.save()
    assert len(written) == before + 1, "any other event is written at once"
    assert writer.wake_s is None
    writer.close()


def test_writing_a_large_state_takes_at_most_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, state: RunSnapshot, paths: RunPaths
) -> None:
    now, written = 100.0, 0

    def write(*args: Any) -> None:
        nonlocal now, written
        now, written = now + 0.1, written + 1

    monkeypatch.setattr(run_writer, "write_json", write)
    writer = RunWriter(state, paths, clock=lambda: now, timer=lambda: now)
    began, written = now, 0
    while now < began + 20:
        writer.record(ev.TaskReady(task="worker:0", attempt=1))
        writer.keep_up()
        now += 0.01
    assert 15 <= written <= 21
    writer.record(ev.TaskReady(task="worker:0", attempt=1))
    assert 0 < (writer.wake_s or 0) <= 0.9, "the last change will be written"
    now += writer.wake_s or 0
    writer.keep_up()
    assert writer.wake_s is None
    writer.close()


def test_writing_to_a_full_disk_is_retried(disk: Disk, state: RunSnapshot, paths: RunPaths) -> None:
    now = 100.0
    writer = RunWriter(state, paths, timer=lambda: now)
    disk.room = 0
    writer.record(ev.Warned(message="one"))
    now += 1
    writer.keep_up()
    assert writer.wake_s == pytest.approx(0.25), "it is not retried at once"
    disk.room = 1 << 20
    now += 0.25
    writer.keep_up()
    assert writer.wake_s is None
    writer.close()
