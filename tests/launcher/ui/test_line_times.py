"""`logs --time`, `--since` and `--json` know when each line was written."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.documentation import unprinted
from tests.launcher.conftest import Tfcluster
from tests.launcher.ui.conftest import MakeEnded

from tfcluster.cli.options import parse_moment
from tfcluster.errors import UsageError
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.merged_logs import LineStyle, LogFilter, MergedLogs

Write = Callable[..., Path]
NOON = datetime(2026, 9, 14, 12, 0, 0).timestamp()
TIMES = LineStyle(times=True)


def add_times(log: Path, *entries: tuple[int, float]) -> None:
    with log.with_suffix(".times").open("ab") as file:
        file.write(b"".join(struct.pack("<Qd", at, NOON + seconds) for at, seconds in entries))


def shown(logs: MergedLogs) -> list[str]:
    return b"".join(logs.drain()).decode().splitlines()


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
    assert [line.partition(" │ ")[2] for line in shown(logs)] == expected
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
