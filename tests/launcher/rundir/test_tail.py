"""A growing file is read in whole lines, at any pace, in constant memory."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfcluster.rundir import tail as tail_module
from tfcluster.rundir.log_times import LogTimes
from tfcluster.rundir.tail import (
    CHUNK,
    LogSource,
    end_of_lines,
    latest_states,
    tail_offset,
)
from tfcluster.ui.lines import read_end


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


def test_a_last_line_without_newline_gets_one_after_the_end(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    append(log, b"first\nlast words")
    source = LogSource(log)
    assert [read(source), read(source)] == [b"first\n", b""]
    source.has_ended = True
    assert read(source) == b"last words\n"
    assert read(source) == b""


def test_output_of_a_grandchild_after_the_end_is_still_read(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    append(log, b"last words")
    source = LogSource(log)
    source.has_ended = True
    read(source)
    append(log, b"a late one\n")
    assert read(source) == b"a late one\n"


@given(st.lists(st.binary(max_size=40).map(lambda b: b.replace(b"\r", b"\n")), max_size=12))
def test_lines_of_a_growing_file_are_read_whole_and_once(
    tmp_path_factory: pytest.TempPathFactory, writes: list[bytes]
) -> None:
    log = tmp_path_factory.mktemp("grow") / "worker-0.log"
    source, got = LogSource(log), []
    for written in writes:
        append(log, written)
        block = read(source)
        assert block.endswith(b"\n") or not block
        got.append(block)
    source.has_ended = True
    got.append(read(source))
    whole = b"".join(writes)
    assert b"".join(got) == (whole if whole.endswith(b"\n") or not whole else whole + b"\n")


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


def test_an_unreadable_file_yields_nothing(tmp_path: Path) -> None:
    (tmp_path / "worker-0.log").mkdir()
    source = LogSource(tmp_path / "worker-0.log")
    assert read(source) == b""


def test_a_huge_line_without_newline_is_not_lost_at_the_end(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    append(log, b"x" * (2 * CHUNK + 5))
    source = LogSource(log)
    assert read(source) == b""
    source.has_ended = True
    assert read(source) == b"x" * (2 * CHUNK + 5) + b"\n"


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
    assert tail_offset(log, 2, re.compile(rb"loss")) == len(b"loss 1\n")
    assert tail_offset(log, 2, re.compile(rb"nowhere")) == log.stat().st_size


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
from tfcluster.rundir.tail import LogSource, tail_offset
from tfcluster.ui.excerpt import excerpt
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
log = Path(sys.argv[1])
print(tail_offset(log, 1), tail_offset(log, 2, re.compile(b"x")), len(excerpt(log)))
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
        patch.setattr(tail_module, "CHUNK", 4)
        patch.setattr(tail_module, "SCAN_LIMIT", 8)
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


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_or_a_device_is_an_empty_log(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "worker-0.log"
    os.mkfifo(log) if kind == "pipe" else log.symlink_to("/dev/zero")

    source = LogSource(log)

    assert (read(source), list(source.lines()), source.partial()) == (b"", [], b"")
    assert (end_of_lines(log), tail_offset(log, 5), read_end(log, within=100)) == (0, 0, [])
    assert LogTimes(log).find(1.0) is None
