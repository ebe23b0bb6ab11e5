"""The time at which each part of a log was written is found in the index beside it."""

from __future__ import annotations

import bisect
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.agent.tasks.output import TimeIndex
from tfcluster.rundir import log_times
from tfcluster.rundir.log_times import LogTimes

Entries = list[tuple[int, float]]


def write(log: Path, entries: Entries, *, more: bytes = b"") -> LogTimes:
    packed = b"".join(struct.pack("<Qd", *entry) for entry in entries)
    log.with_suffix(".times").write_bytes(packed + more)
    return LogTimes(log)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def test_a_byte_has_the_time_of_the_write_that_it_was_part_of(log: Path) -> None:
    times = write(log, [(0, 100.0), (50, 107.5), (80, 110.0)])
    assert [times.at(offset) for offset in (0, 49, 50, 79, 80, 10**9)] == [
        100.0, 100.0, 107.5, 107.5, 110.0, 110.0,
    ]  # fmt: skip


def test_without_an_index_no_time_is_known(log: Path) -> None:
    times = LogTimes(log)
    assert (times.exists, times.at(0), times.find(0.0)) == (False, None, None)
    assert (write(log, []).exists, write(log, []).at(5)) == (True, None)


def test_bytes_before_the_first_entry_have_no_time(log: Path) -> None:
    times = write(log, [(50, 107.5)])
    assert (times.at(49), times.at(50)) == (None, 107.5)


def test_half_an_entry_and_impossible_times_are_ignored(log: Path) -> None:
    assert write(log, [(0, 100.0)], more=b"\1" * 11).at(500) == 100.0
    for damaged in (-5.0, 1e300, float("inf"), float("nan")):
        assert write(log, [(0, damaged)]).at(3) is None


def test_new_entries_are_seen_after_a_refresh(log: Path) -> None:
    times = write(log, [(0, 100.0)])
    assert times.at(60) == 100.0
    write(log, [(0, 100.0), (50, 107.5)])
    times.refresh()
    assert (times.at(60), times.at(10)) == (107.5, 100.0)


@given(
    st.lists(st.tuples(st.integers(1, 99), st.floats(0.1, 9)), max_size=40),
    st.lists(st.integers(0, 4000), min_size=1, max_size=20),
    st.floats(1000, 1400),
    st.integers(2, 7),
)
def test_lookups_agree_with_a_search_of_the_whole_index(
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[tuple[int, float]],
    offsets: list[int],
    moment: float,
    window: int,
) -> None:
    entries, at, now = [], 0, 1000.0
    for length, seconds in steps:
        entries.append((at, now))
        at, now = at + length, now + seconds
    times = write(tmp_path_factory.mktemp("index") / "worker-0.log", entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_times, "_WINDOW", window)
        for offset in offsets:
            place = bisect.bisect_right([entry[0] for entry in entries], offset) - 1
            assert times.at(offset) == (entries[place][1] if entries else None)
        later = [entry[0] for entry in entries if entry[1] >= moment]
        assert times.find(moment) == (later[0] if later else None)


def test_the_writer_adds_an_entry_at_most_every_interval(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, now = TimeIndex(str(log)), [50.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "time", lambda: now[0] + 1e9)
    for offset, now[0] in [(0, 50.0), (10, 50.05), (20, 50.11), (30, 50.2), (40, 90.0)]:
        index.note(offset)
    times = LogTimes(log)
    assert [times.at(offset) for offset in (5, 25, 45)] == [1e9 + 50, 1e9 + 50.11, 1e9 + 90]
    assert log.with_suffix(".times").stat().st_size == 3 * 16


def test_the_writer_repairs_half_an_entry(log: Path) -> None:
    write(log, [(0, 100.0)], more=b"\1" * 5)
    TimeIndex(str(log)).note(50)
    times = LogTimes(log)
    assert times.at(0) == 100.0
    assert (times.at(50) or 0.0) > 1e9


def test_the_writer_ignores_a_disk_that_refuses(tmp_path: Path) -> None:
    TimeIndex(str(tmp_path / "missing" / "worker-0.log")).note(0)
