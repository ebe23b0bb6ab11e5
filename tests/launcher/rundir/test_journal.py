"""No event is lost to a full disk, and files are complete at every moment."""

from __future__ import annotations

import errno
import json
from typing import Any

import pytest

from tfcluster.rundir import events as ev
from tfcluster.rundir import journal
from tfcluster.rundir.journal import Journal
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.snapshot import RunSnapshot

STEP = ev.Progress(task="worker:0", attempt=1, step=1)


class Disk:
    """A disk with `room` bytes left for ``events.jsonl``, and none for the state while full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 1 << 30
        self._open, self._write = journal.EventLog, journal.write_json
        monkeypatch.setattr(journal, "write_json", self._write_json)
        monkeypatch.setattr(journal, "EventLog", self._event_log)

    def _event_log(self, *args: Any, **options: Any) -> journal.EventLog:
        log = self._open(*args, **options)
        vars(log)["_file"] = _Narrow(log._file, self)
        return log

    def _write_json(self, *args: Any) -> bool:
        return self.room > 0 and self._write(*args)


class _Narrow:
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


def test_events_delayed_by_a_full_disk_follow_complete_and_in_order(
    disk: Disk, state: RunSnapshot, paths: RunPaths
) -> None:
    kept = Journal(state, paths)
    kept.record(ev.Warned(message="one"))
    disk.room = 20  # half a line
    for word in ("two", "three", "four"):
        kept.record(ev.Warned(message=word))
    assert kept.save() is False
    assert paths.events.read_bytes().count(b"\n") == 1

    disk.room = 1 << 20
    assert kept.save() is True
    kept.record(ev.Warned(message="five"))
    assert kept.close() == ""
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
    kept = Journal(state, paths)
    disk.room = 0
    kept.record(ev.RunFinished(status="succeeded", exit_code=0))
    assert kept.close() == "the disk is full"
    assert json.loads(paths.state.read_text())["status"] == "starting"


def test_progress_writes_the_state_four_times_a_second(
    state: RunSnapshot, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Any] = []

    def write(*args: Any) -> bool:
        written.append(args)
        return True

    monkeypatch.setattr(journal, "write_json", write)
    now = 100.0
    kept = Journal(state, paths, clock=lambda: now)
    first = len(written)
    for _ in range(101):
        now += 0.01
        kept.record(STEP)
        kept.save()
    assert 3 <= len(written) - first <= 5
    assert kept.wake_s == pytest.approx(0.25), "the last of it is not left lying"
    kept.record(ev.TaskReady(task="worker:0", attempt=1))
    before = len(written)
    kept.save()
    assert len(written) == before + 1, "anything else is written at once"
    assert kept.wake_s is None
    kept.close()


def test_writing_a_large_state_takes_a_tenth_of_the_time(
    monkeypatch: pytest.MonkeyPatch, state: RunSnapshot, paths: RunPaths
) -> None:
    now, written = 100.0, 0

    def write(*args: Any) -> bool:
        nonlocal now, written
        now, written = now + 0.1, written + 1
        return True

    monkeypatch.setattr(journal, "write_json", write)
    kept = Journal(state, paths, clock=lambda: now, timer=lambda: now)
    began, written = now, 0
    while now < began + 20:
        kept.record(ev.TaskReady(task="worker:0", attempt=1))
        kept.keep_up()
        now += 0.01
    assert 15 <= written <= 21
    kept.record(ev.TaskReady(task="worker:0", attempt=1))
    assert 0 < (kept.wake_s or 0) <= 0.9, "the last of it is not left lying"
    now += kept.wake_s or 0
    kept.keep_up()
    assert kept.wake_s is None
    kept.close()


def test_writing_to_a_full_disk_is_retried(disk: Disk, state: RunSnapshot, paths: RunPaths) -> None:
    now = 100.0
    kept = Journal(state, paths, timer=lambda: now)
    disk.room = 0
    kept.record(ev.Warned(message="one"))
    now += 1
    kept.keep_up()
    assert kept.wake_s == pytest.approx(0.25), "and not again at once"
    disk.room = 1 << 20
    now += 0.25
    kept.keep_up()
    assert kept.wake_s is None
    kept.close()
