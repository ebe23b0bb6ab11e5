"""A growing log is read in whole lines, at any pace, in constant memory, with their times."""

from __future__ import annotations

import bisect
import os
import re
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.agent.tasks.output import TimeIndex
from tfcluster.rundir import task_logs
from tfcluster.rundir.task_logs import (
    CHUNK,
    LogSource,
    LogTimes,
    end_of_lines,
    last_lines,
    latest_states,
    tail_offset,
)


def read(source: LogSource) -> bytes:
    return b"".join(source.read())


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def test_a_line_is_read_once_it_has_its_newline(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    source = LogSource(log)
    assert read(source) == b""
    append(log, b"first\nsec")
    assert read(source) == b"first\n"
    assert read(source) == b""
    assert source.partial() == b"sec"
    append(log, b"ond\n")
    assert read(source) == b"second\n"
    append(log, b"last words")
    source.has_ended = True
    assert read(source) == b"last words\n"
    append(log, b"a late one\n")  # of a grandchild
    assert read(source) == b"a late one\n"


def test_ten_megabytes_without_a_newline_are_read_whole_in_constant_memory(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    line = bytes(range(97, 123)) * 400_000
    append(log, line)
    source = LogSource(log)
    tracemalloc.start()
    try:
        assert read(source) == b""
        append(log, b"the end\nnext\n")
        got, largest = 0, 0
        for piece in source.read():
            got, largest = got + len(piece), max(largest, len(piece))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert got == len(line) + len(b"the end\n")
    assert largest <= CHUNK
    assert peak < 2_000_000
    assert read(source) == b"next\n"


@pytest.mark.parametrize("size", [1000, CHUNK - 4, CHUNK - 1, CHUNK, CHUNK + 3, 3 * CHUNK])
def test_a_long_progress_bar_is_read_in_its_last_state(tmp_path: Path, size: int) -> None:
    log = tmp_path / "worker-0.log"
    states = b"".join(b"%08d\r" % n for n in range(size // 9 + 1))[:size]
    append(log, states + b"\r100%")
    source = LogSource(log)
    assert read(source) == b""
    assert source.partial() == b"100%"
    append(log, b"\nnext\n")
    shown = read(source) + read(source)
    assert shown.endswith(b"100%\nnext\n")
    if size >= CHUNK:
        # Short lines keep their carriage returns here; the merged stream removes them.
        assert shown == b"100%\nnext\n"


def test_a_growing_progress_bar_is_not_read_again_at_each_poll(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, sizes = tmp_path / "worker-0.log", list[int]()
    append(log, b"\r123/999" * 500_000)
    source = LogSource(log)
    assert list(source.lines()) == []

    def pread(fd: int, count: int, offset: int, read: Callable[..., bytes] = os.pread) -> bytes:
        sizes.append(count)
        return read(fd, count, offset)

    monkeypatch.setattr(os, "pread", pread)
    for _ in range(10):
        append(log, b"\r5/9")
        assert list(source.lines()) == []
    assert sum(sizes) < 11 * CHUNK
    append(log, b"\r100%\nnext\n")
    assert list(source.lines()) == [b"100%", b"next"]


@pytest.mark.linux("/proc/self/fd")
def test_a_thousand_logs_are_followed_with_no_file_open(tmp_path: Path) -> None:
    sources = [LogSource(tmp_path / f"worker-{number}.log") for number in range(1000)]
    for source in sources:
        append(source.path, b"hello\n")
        assert list(source.lines()) == [b"hello"]
    assert not any(name.startswith(str(tmp_path)) for name in map(os.path.realpath, _open_files()))


def _open_files() -> list[str]:
    return [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]


@pytest.mark.parametrize(
    ("content", "lines", "rest"),
    [
        (b"a\nb\nc\n", 2, b"b\nc\n"),
        (b"a\nb\nc", 2, b"b\nc\n"),
        (b"a\nb\n", 5, b"a\nb\n"),
        (b"a\nb\n", 0, b""),
        (b"", 3, b""),
        (b"\n\n\n", 2, b"\n\n"),
    ],
)
def test_tail_starts_with_the_last_lines(
    tmp_path: Path, content: bytes, lines: int, rest: bytes
) -> None:
    log = tmp_path / "worker-0.log"
    append(log, content)
    source = LogSource(log, offset=tail_offset(log, lines))
    source.has_ended = True
    assert read(source) + read(source) == rest


def test_tail_counts_only_lines_that_match(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    append(log, b"loss 1\nloss 2 loss\nx\nloss 3\ny\n")
    assert tail_offset(log, 2, lambda block: re.compile(rb"loss").search) == len(b"loss 1\n")
    assert tail_offset(log, 2, lambda block: None) == log.stat().st_size


@pytest.mark.parametrize("count", [1, 3, 1000, 70_000])
def test_the_last_lines_of_a_log_of_many_blocks_are_counted_from_its_end(
    tmp_path: Path, count: int
) -> None:
    log = tmp_path / "worker-0.log"
    whole = b"".join(b"line %06d\n" % number for number in range(100_000))
    append(log, whole)
    assert tail_offset(log, count) == len(whole) - count * len(b"line 000000\n")
    append(log, b"no end")
    assert tail_offset(log, count) == len(whole) - (count - 1) * len(b"line 000000\n")
    assert end_of_lines(log) == len(whole)


HUGE = 300_000_000
TAIL = """
import re, resource, sys
from pathlib import Path
from tfcluster.rundir.task_logs import LogSource, tail_offset
from tfcluster.ui.log_excerpt import excerpt
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
log = Path(sys.argv[1])
search = re.compile(b"x").search
print(tail_offset(log, 1), tail_offset(log, 2, lambda block: search), len(excerpt(log)))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_line_larger_than_memory_is_not_read_into_it(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    with log.open("wb") as file:  # a sparse file takes no space on disk
        file.write(b"first\nx")
        file.truncate(HUGE)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    argv = [sys.executable, "-c", TAIL, str(log)]
    offsets, grown_kb = subprocess.run(argv, capture_output=True, check=True).stdout.splitlines()
    assert offsets == b"6 6 1"
    assert int(grown_kb) < 30_000


def test_skipping_counts_lines_and_continues_with_a_whole_one(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    append(log, b"".join(b"line %06d\n" % n for n in range(1000)))
    source = LogSource(log)
    skipped = source.skip_to_newest(keep=100)
    rest = read(source)
    assert rest.startswith(b"line 000")
    assert rest.endswith(b"line 000999\n")
    assert skipped + rest.count(b"\n") == 1000
    assert source.skip_to_newest(keep=100) == 0


@given(st.lists(st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n"])).map(b"".join), max_size=9))
def test_lines_longer_than_a_chunk_are_read_like_short_ones(
    tmp_path_factory: pytest.TempPathFactory, writes: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("long") / "worker-0.log"
    source, got = LogSource(log), b""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(task_logs, "CHUNK", 4)
        patch.setattr(task_logs, "SCAN_LIMIT", 8)
        for written in writes:
            append(log, written)
            for _ in range(3):
                got += read(source)
        source.has_ended = True
        while source.position < source.size():
            got += read(source)
        got += read(source)
    whole = b"".join(writes)
    if whole and not whole.endswith(b"\n"):
        whole += b"\n"
    assert latest_states(got) == latest_states(whole)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
def test_a_pipe_or_a_device_is_an_empty_log(tmp_path: Path, make: Callable[[Path], None]) -> None:
    log = tmp_path / "worker-0.log"
    make(log)

    source = LogSource(log)

    assert (read(source), list(source.lines()), source.partial()) == (b"", [], b"")
    assert (end_of_lines(log), tail_offset(log, 5), last_lines(log, within=100)) == (0, 0, [])
    assert LogTimes(log).find(1.0) is None


Entries = list[tuple[int, float]]


def write_times(log: Path, entries: Entries, *, more: bytes = b"") -> LogTimes:
    packed = b"".join(struct.pack("<Qd", *entry) for entry in entries)
    log.with_suffix(".times").write_bytes(packed + more)
    return LogTimes(log)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker-0.log"


def test_a_byte_has_the_time_of_the_write_that_it_was_part_of(log: Path) -> None:
    times = write_times(log, [(0, 100.0), (50, 107.5), (80, 110.0)])
    assert [times.at(offset) for offset in (0, 49, 50, 79, 80, 10**9)] == [
        100.0, 100.0, 107.5, 107.5, 110.0, 110.0,
    ]  # fmt: skip


def test_without_an_index_no_time_is_known(log: Path) -> None:
    times = LogTimes(log)
    assert (times.exists, times.at(0), times.find(0.0)) == (False, None, None)
    TimeIndex(str(log.parent / "missing" / "worker-0.log")).note(0)  # it refuses, and no error
    assert write_times(log, [(50, 107.5)]).at(49) is None
    assert (write_times(log, []).exists, write_times(log, []).at(5)) == (True, None)


def test_half_an_entry_and_impossible_times_are_ignored(log: Path) -> None:
    assert write_times(log, [(0, 100.0)], more=b"\1" * 11).at(500) == 100.0
    for damaged in (-5.0, 1e300, float("inf"), float("nan")):
        assert write_times(log, [(0, damaged)]).at(3) is None


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
    times = write_times(tmp_path_factory.mktemp("index") / "worker-0.log", entries)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LogTimes, "WINDOW", window)
        for offset in offsets:
            place = bisect.bisect_right([entry[0] for entry in entries], offset) - 1
            assert times.at(offset) == (entries[place][1] if entries else None)
        later = [entry[0] for entry in entries if entry[1] >= moment]
        assert times.find(moment) == (later[0] if later else None)


@given(
    st.lists(st.tuples(st.integers(0, 90), st.floats(1, 9)), max_size=12),
    st.lists(st.integers(0, 9), min_size=1, max_size=12),
    st.integers(0, 40),
    st.booleans(),
)
def test_lines_are_grouped_by_the_time_of_their_last_byte(
    tmp_path_factory: pytest.TempPathFactory,
    entries: Entries,
    lengths: list[int],
    start: int,
    is_damaged: bool,
) -> None:
    entries = entries if is_damaged else sorted(entries)
    times = write_times(tmp_path_factory.mktemp("index") / "worker-0.log", entries)
    block = b"".join(b"x" * length + b"\n" for length in lengths)
    groups = list(times.groups(block, start))
    assert b"".join(group for _, group in groups) == block
    if not is_damaged:
        ends = [start + at for at, byte in enumerate(block) if byte == ord("\n")]
        grouped = [moment for moment, group in groups for _ in range(group.count(b"\n"))]
        assert grouped == [times.at(end) for end in ends]


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
    write_times(log, [(0, 100.0)], more=b"\1" * 5)
    TimeIndex(str(log)).note(50)
    times = LogTimes(log)
    assert times.at(0) == 100.0
    assert (times.at(50) or 0.0) > 1e9
