"""`logs`, `--time`, `--since` and `--json` know when each line was written."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain
from operator import itemgetter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.documentation import unprinted
from tests.launcher.conftest import Tfcluster
from tests.launcher.ui.conftest import MakeEnded

from tfcluster.cli.options import parse_moment
from tfcluster.errors import UsageError
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui import merged_logs
from tfcluster.ui.merged_logs import LineStyle, LogFilter, MergedLogs

Write = Callable[..., Path]
NOON = datetime(2026, 9, 14, 12, 0, 0).timestamp()
TIMES = LineStyle(times=True)


def add_times(log: Path, *entries: tuple[int, float]) -> None:
    with log.with_suffix(".times").open("ab") as file:
        file.write(b"".join(struct.pack("<Qd", at, NOON + seconds) for at, seconds in entries))


def shown(logs: MergedLogs) -> list[str]:
    return b"".join(logs.drain()).decode().splitlines()


def texts(logs: MergedLogs) -> list[str]:
    return [line.partition(" │ ")[2] for line in shown(logs)]


def test_each_line_begins_with_its_time(paths: RunPaths, write_log: Write) -> None:
    log = write_log("worker:0", b"one\n1/2\r2/2\nthree\nno end")
    add_times(log, (0, 0.0), (8, 1.25), (18, 3600.0))
    assert shown(MergedLogs(paths, line_style=TIMES)) == [
        "2026-09-14 12:00:00.0 worker:0 │ one",
        "2026-09-14 12:00:01.2 worker:0 │ 2/2",
        "2026-09-14 12:00:01.2 worker:0 │ three",
        "2026-09-14 13:00:00.0 worker:0 │ no end",
    ]


def test_times_and_filters_work_together(paths: RunPaths, write_log: Write) -> None:
    start = b"I0000 00:00:1795436664.6   260 grpc_server_lib.cc:467] Started server with target: x"
    log = write_log("worker:0", start + b"\na 1\nb 2\na 3\n")
    add_times(log, (0, 0.0), (len(start) + 1, 5.0), (len(start) + 5, 6.0))
    found = LogFilter(grep=re.compile(b"^a", re.MULTILINE), tail=1)
    assert shown(MergedLogs(paths, found, TIMES)) == ["2026-09-14 12:00:06.0 worker:0 │ a 3"]
    screen = LineStyle(is_screen=True, colours=True, folds=True, times=True)
    first = shown(MergedLogs(paths, line_style=screen))[0]
    assert first == "\x1b[2m2026-09-14 12:00:05.0\x1b[0m \x1b[36mworker:0 │\x1b[0m a 1"
    write_log("worker:0", b"again\n", attempt=2)
    newest = shown(MergedLogs(paths, LogFilter(first_attempt=2), TIMES))
    assert newest == [" " * 22 + "worker:0 │ again"]


def test_the_lines_of_several_tasks_come_by_their_times(paths: RunPaths, write_log: Write) -> None:
    add_times(write_log("worker:0", b"a\nd\n"), (0, 1.0), (2, 4.0))
    add_times(write_log("worker:1", b"b\nc\ne\nno end"), (0, 2.0), (2, 3.0), (4, 4.0))
    add_times(write_log("ps:0", b"unknown time\nf\n"), (13, 5.0))
    assert texts(MergedLogs(paths)) == ["unknown time", "a", "b", "c", "d", "e", "no end", "f"]
    assert texts(MergedLogs(paths, LogFilter(tail=1))) == ["d", "no end", "f"]
    by_task = ["a", "d", "b", "c", "e", "no end", "unknown time", "f"]
    assert texts(MergedLogs(paths, LogFilter(by_task=True))) == by_task
    logs = MergedLogs(paths)
    assert b"".join(logs.catch_up()).count(b"\n") == 7, "a line without end may go on"
    add_times(write_log("worker:0", b"later\n"), (4, 6.0))
    assert texts(logs) == ["no end", "later"]


WRITES = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.0625, 0.25]), st.sampled_from([1, 2, 40])),
    max_size=60,
)
"""Task, seconds since the last write (the index holds milliseconds), and lines."""


@given(WRITES)
def test_merged_lines_are_sorted_by_time_and_whole_and_in_order_per_task(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, float, int]]
) -> None:
    paths = RunPaths(tmp_path_factory.mktemp("home") / "runs" / "demo-20260914-153012-k7f3")
    paths.attempt_logs(1).mkdir(parents=True)
    lines: list[list[tuple[float, str]]] = [[], [], []]
    now = 0.0
    for number, (task, seconds, count) in enumerate(writes):
        now += seconds
        log = paths.attempt_logs(1) / f"worker-{task}.log"
        with log.open("ab") as file:
            add_times(log, (file.tell(), now))
            for part in range(count):
                file.write(f"{number} {part}\n".encode())
                lines[task].append((now, f"worker:{task} │ {number} {part}"))
    expected = sorted(chain.from_iterable(lines), key=itemgetter(0))  # a stable sort
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merged_logs, "_LEAST_BLOCK", 16)
        patch.setattr(merged_logs, "_MOST_READ", 64)
        assert shown(MergedLogs(paths)) == [text for _, text in expected]


MERGE = """
import re, sys
from pathlib import Path
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui import merged_logs
from tfcluster.ui.merged_logs import MergedLogs
logs = MergedLogs(RunPaths(Path(sys.argv[1])))
def peak_kb():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
before = peak_kb()
print(sum(len(block) for block in logs.drain()))
print(peak_kb() - before)
"""


@pytest.mark.linux("/proc/self/status")
def test_large_logs_are_merged_without_being_read_into_memory(
    paths: RunPaths, write_log: Write
) -> None:
    line, count = b"x" * 79 + b"\n", 500_000
    for task in ("worker:0", "worker:1"):
        log = write_log(task, line * count)
        add_times(log, *((at, at / 1e6) for at in range(0, len(line) * count, 1000)))
    argv = [sys.executable, "-c", MERGE, str(paths.root)]
    size, grown_kb = subprocess.run(argv, capture_output=True, check=True).stdout.split()
    assert int(size) == 2 * count * len("worker:0 │ ".encode() + line)
    assert int(grown_kb) < 20_000


def test_lines_are_followed_with_their_times(paths: RunPaths, write_log: Write) -> None:
    log = write_log("worker:0", b"one\n")
    add_times(log, (0, 0.0))
    logs = MergedLogs(paths, line_style=TIMES)
    assert b"".join(logs.advance()).endswith(b"one\n")
    add_times(log, (4, 9.0))
    write_log("worker:0", b"two\n")
    assert b"".join(logs.advance()).decode() == "2026-09-14 12:00:09.0 worker:0 │ two\n"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(-5, ["one", "two", "three"]), (0.5, ["two", "three"]), (2, ["three"]), (9, [])],
)
def test_since_begins_with_the_line_that_ended_then(
    paths: RunPaths, write_log: Write, seconds: float, expected: list[str]
) -> None:
    log = write_log("worker:0", b"one\ntwo\nthree\n")
    add_times(log, (0, 0.0), (6, 1.0), (10, 2.0))
    logs = MergedLogs(paths, LogFilter(since=NOON + seconds))
    assert texts(logs) == expected
    write_log("worker:0", b"later\n")
    assert b"".join(logs.advance()).decode() == "worker:0 │ later\n"


def test_since_shows_the_line_that_was_unfinished_then_from_its_beginning(
    paths: RunPaths, write_log: Write
) -> None:
    log = write_log("worker:0", b"one\nloss")
    add_times(log, (0, 0.0))
    assert shown(MergedLogs(paths, LogFilter(since=NOON + 5))) == []
    logs = MergedLogs(paths, LogFilter(since=NOON + 5))
    write_log("worker:0", b" 0.5\n")
    assert b"".join(logs.advance()).decode() == "worker:0 │ loss 0.5\n"


def test_a_json_line_has_time_task_attempt_and_text(paths: RunPaths, write_log: Write) -> None:
    log = write_log("worker:0", '"é" \x1b[2J\u202e\n'.encode() + b"\xff\n" + b"x" * 600_000)
    add_times(log, (0, 0.0), (600_000, 5.0))
    write_log("chief:0", b"hi\n", attempt=2)
    lines = shown(MergedLogs(paths, line_style=LineStyle(as_json=True)))
    assert "\x1b" not in "".join(lines)
    assert "\u202e" not in "".join(lines)
    assert [json.loads(line) for line in lines] == [
        {"time": None, "task": "chief:0", "attempt": 2, "line": "hi"},
        {"time": NOON, "task": "worker:0", "attempt": 1, "line": '"é" \x1b[2J\u202e'},
        {"time": NOON, "task": "worker:0", "attempt": 1, "line": "�"},
        {"time": NOON + 5, "task": "worker:0", "attempt": 1, "line": "x" * 600_000},
    ]


def test_logs_with_times(tfcluster: Tfcluster, make_ended: MakeEnded) -> None:
    paths = make_ended()
    add_times(paths.attempt_logs(1) / "worker-0.log", (0, 0.0), (8, 60.0))
    timed = tfcluster("logs", "--time", "--task", "worker:0", "--tail", "2")
    assert timed.out.splitlines() == [
        "2026-09-14 12:01:00.0 worker:0 │ loss 0.5",
        "2026-09-14 12:01:00.0 worker:0 │ no end",
    ]
    as_json = tfcluster("logs", "--json", "--task", "worker:0", "--tail", "2").out
    assert unprinted("guides/logs.md", "worker:0", timed.out, as_json) == []
    since = tfcluster("logs", "--since", "2026-09-14 12:00:30", "--json", "--task", "worker:0")
    lines = [json.loads(line) for line in since.out.splitlines()]
    assert [(line["time"], line["line"]) for line in lines] == [
        (NOON + 60, "loss 0.5"),
        (NOON + 60, "no end"),
    ]
    assert tfcluster("logs", "--since", "5m", "--task", "worker:0").out == ""
    add_times(paths.attempt_logs(1) / "worker-1.log", (0, 30.0))
    tasks = [line[:8] for line in tfcluster("logs").out.splitlines()]
    assert tasks == ["worker:0", "worker:1", "worker:1", "worker:0", "worker:0"]
    tasks = [line[:8] for line in tfcluster("logs", "--by-task").out.splitlines()]
    assert tasks == ["worker:0"] * 3 + ["worker:1"] * 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", "2026-09-14 11:58:30"),
        ("1.5h", "2026-09-14 10:30:00"),
        ("1d", "2026-09-13 12:00:00"),
        ("11:30", "2026-09-14 11:30:00"),
        ("12:00:01", "2026-09-13 12:00:01"),
        ("2026-09-01", "2026-09-01 00:00:00"),
        (" 2026-09-01T08:15 ", "2026-09-01 08:15:00"),
        ("11:30Z", "2026-09-14 11:30:00"),
        ("12:30Z", "2026-09-13 12:30:00"),
        ("13:30+02:00", "2026-09-14 11:30:00"),
        ("23:30+12:00", "2026-09-14 11:30:00"),
    ],
)
def test_a_moment_is_an_age_a_time_or_a_date_maybe_with_a_time_zone(
    text: str, expected: str
) -> None:
    zone = UTC if re.search("Z$|[+]", text) else None
    moment = parse_moment(text, datetime(2026, 9, 14, 12, tzinfo=zone).timestamp())
    assert f"{datetime.fromtimestamp(moment, zone):%Y-%m-%d %H:%M:%S}" == expected


@pytest.mark.parametrize("text", ["", "5", "5y", "-5m", "25:00", "yesterday", "0001-01-01"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_moment(text, NOON)
