"""Log lines come in pages from any place, in order, each line once, whatever the files hold."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.conftest import MakeRun

from tfcluster.agent.tasks.output import TIMES_ENTRY, times_path
from tfcluster.errors import UsageError
from tfcluster.rundir import registry, run_writer
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.states import Status
from tfcluster.web import log_pages
from tfcluster.web.log_pages import Query, read_page

from .conftest import Write

NATIVE = Path(__file__).parents[1] / "ui" / "native"
NATIVE_LINE = (
    b"WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
)


def page(paths: RunPaths, **question: Any) -> dict[str, Any]:
    return read_page(paths, registry.load(paths), replace(Query(), **question))


def texts(found: dict[str, Any]) -> list[str]:
    return [line["text"] for line in found["lines"]]


def walk(paths: RunPaths, cursor: str, **question: Any) -> list[dict[str, Any]]:
    """Return all lines from the cursor on, page by page, in the order of the files."""
    backward = question.get("backward", True)
    lines: list[dict[str, Any]] = []
    for _ in range(10_000):
        found = page(paths, cursor=cursor, **question)
        lines = [*found["lines"], *lines] if backward else [*lines, *found["lines"]]
        if found["before"] is None if backward else found["at_end"]:
            return lines
        cursor = found["before"] if backward else found["after"]
    raise AssertionError("the pages do not end")


@pytest.fixture
def paths(make_run: MakeRun) -> RunPaths:
    return make_run(status=Status.FAILED)


def test_the_newest_lines_come_first_and_a_cursor_leads_to_those_before(
    paths: RunPaths, write_log: Write
) -> None:
    write_log(paths, "worker:0", b"".join(b"line %d\n" % n for n in range(10)))

    newest = page(paths, lines=3)
    before = page(paths, lines=3, cursor=newest["before"])

    assert texts(newest) == ["line 7", "line 8", "line 9"]
    assert newest["lines"][0] == {"task": "worker:0", "attempt": 1, "offset": 49, "text": "line 7"}
    assert (newest["at_end"], newest["behind"]) == (True, 0)
    assert texts(before) == ["line 4", "line 5", "line 6"]
    assert texts(page(paths, cursor=before["after"], backward=False)) == texts(newest)
    assert page(paths, lines=99)["before"] is None


def test_lines_that_were_added_follow_the_cursor(make_run: MakeRun, write_log: Write) -> None:
    paths = make_run(status=Status.RUNNING)
    write_log(paths, "worker:0", b"one\ntwo\nthr")
    first = page(paths)
    assert texts(first) == ["one", "two"]
    assert first["at_end"]

    write_log(paths, "worker:0", b"ee\nfour\n")
    write_log(paths, "worker:1", b"other\n")
    second = page(paths, cursor=first["after"], backward=False)

    assert sorted(texts(second)) == ["four", "other", "three"]
    assert texts(page(paths, cursor=second["after"], backward=False)) == []


def random_log(chance: random.Random) -> bytes:
    """Return lines of all kinds: empty, long, longer than a block and than a chunk, no UTF-8."""
    lines = []
    for number in range(chance.randrange(1, 60)):
        size = chance.choice([0, 1, 10, 80, 5000, 40_000] + [300_000] * (number == 7))
        lines.append(b"%d:" % number + bytes(chance.choices(b"abc \xff\xc3\r", k=size)))
    return b"\n".join(lines) + chance.choice([b"\n", b""])


@pytest.mark.parametrize("seed", range(6))
def test_every_line_is_on_exactly_one_page_in_both_directions(
    paths: RunPaths, write_log: Write, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    expected = dict[str, list[int]]()
    for number in range(chance.randrange(1, 4)):
        content = random_log(chance)
        write_log(paths, f"worker:{number}", content)
        starts = [0, *(at + 1 for at, byte in enumerate(content) if byte == 10)]
        expected[f"worker:{number}"] = [at for at in starts if at < len(content)]
    count = chance.choice([1, 3, 50])
    if seed % 3 == 0:  # blocks of the least size, as with very many tasks
        monkeypatch.setattr(log_pages, "_SCANNED_BYTES", 16_000)
    for backward, cursor in ((True, "end"), (False, "start")):
        lines = walk(paths, cursor, backward=backward, lines=count)
        for task, offsets in expected.items():
            assert [line["offset"] for line in lines if line["task"] == task] == offsets
        assert len(lines) == sum(map(len, expected.values()))


def test_a_very_long_line_is_cut_and_a_progress_bar_shown_in_its_last_state(
    paths: RunPaths, write_log: Write
) -> None:
    bar = b"".join(b"\r%d/9000" % n for n in range(1, 9001))
    write_log(paths, "worker:0", b"a" * 1_000_000 + b"\n" + bar + b"\n" + b"end\n")

    for found in (page(paths), page(paths, cursor="start", backward=False)):
        long, progress, end = found["lines"]
        assert (len(long["text"]), long["cut"]) == (8192, 1_000_001)
        assert progress["text"] == "9000/9000"
        assert "cut" not in progress
        assert end["text"] == "end"


def test_a_text_is_found_in_any_case_and_is_no_pattern(paths: RunPaths, write_log: Write) -> None:
    write_log(paths, "worker:0", b"Loss (a+)+$ 1\nother\nLOSS (A+)+$ 2\n" * 50)

    assert len(walk(paths, "end", grep="loss (a+)+$", lines=7)) == 100
    assert len(walk(paths, "start", grep="loss (a+)+$", lines=7, backward=False)) == 100
    assert texts(page(paths, grep="l.ss")) == []
    assert page(paths, grep="l.ss")["before"] is None


def test_a_search_reads_a_limited_part_of_the_logs_and_goes_on_from_there(
    paths: RunPaths, write_log: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_pages, "_SCANNED_BYTES", 64 * 1024)
    for task in ("worker:0", "worker:1"):
        write_log(paths, task, b"needle\n" + b"hay and hay\n" * 20_000)

    first = page(paths, grep="needle")

    assert (texts(first), first["before"] is None) == ([], False)
    assert [line["task"] for line in walk(paths, "end", grep="needle")] == ["worker:0", "worker:1"]
    ahead = walk(paths, "start", grep="needle", backward=False)
    assert [line["offset"] for line in ahead] == [0, 0]


def test_a_page_can_be_about_one_task_and_one_attempt(paths: RunPaths, write_log: Write) -> None:
    for attempt in (1, 2):
        for task in ("worker:0", "worker:1"):
            write_log(paths, task, b"%s %d\n" % (task.encode(), attempt), attempt=attempt)

    assert texts(page(paths, task="worker-1")) == ["worker:1 2"]
    assert texts(page(paths, task="worker:1", attempt=1)) == ["worker:1 1"]
    assert sorted(texts(page(paths))) == ["worker:0 2", "worker:1 2"]
    assert texts(page(paths, attempt=3)) == []
    with pytest.raises(UsageError, match="no task worker:7"):
        page(paths, task="worker:7")


def test_after_a_restart_the_cursor_leads_to_the_lines_of_the_new_attempt(
    paths: RunPaths, write_log: Write
) -> None:
    empty = {"lines": [], "hidden": 0, "before": None, "after": "", "behind": 0, "at_end": True}
    assert page(paths) == empty
    write_log(paths, "worker:0", b"first\n")
    cursor = page(paths)["after"]
    write_log(paths, "worker:0", b"last\n")
    write_log(paths, "worker:0", b"again\n", attempt=2)

    found = page(paths, cursor=cursor, backward=False)

    assert sorted(texts(found)) == ["again", "last"]
    assert texts(page(paths, cursor=found["after"], backward=False)) == []


def test_escape_sequences_and_control_characters_do_not_reach_the_page(
    paths: RunPaths, write_log: Write
) -> None:
    write_log(
        paths, "worker:0", b"\x1b[31mred\x1b[0m\x1b]52;c;aGk=\x07 \x00\x07 \xff \xe2\x80\xae\n"
    )

    assert texts(page(paths)) == ["red ␀␇ � �"]


def note_times(log: Path, *entries: tuple[int, float]) -> None:
    Path(times_path(str(log))).write_bytes(b"".join(TIMES_ENTRY.pack(*entry) for entry in entries))


def test_lines_come_in_the_order_of_the_times_that_were_noted(
    paths: RunPaths, write_log: Write
) -> None:
    first = write_log(paths, "worker:0", b"a1\na2\na3\n")
    second = write_log(paths, "worker:1", b"b1\nb2\nb3\n")
    note_times(first, (0, 1000.0), (3, 1030.0), (6, 1060.0))
    note_times(second, (0, 1010.0), (3, 1020.0), (6, 1070.0))

    for found in (page(paths), page(paths, cursor="start", backward=False)):
        assert texts(found) == ["a1", "b1", "b2", "a2", "a3", "b3"]
        assert [line["time"] for line in found["lines"]] == [1000, 1010, 1020, 1030, 1060, 1070]
    assert texts(page(paths, lines=2)) == ["a3", "b3"]
    assert texts(page(paths, lines=2, cursor=page(paths, lines=2)["before"])) == ["b2", "a2"]


def test_tensorflows_own_lines_can_be_left_out(paths: RunPaths, write_log: Write) -> None:
    recorded = (NATIVE / "2.21-worker.log").read_bytes().splitlines(keepends=True)
    native = [line[2:] for line in recorded if line.startswith(b"- ")]
    write_log(paths, "worker:0", b"".join([b"mine 1\n", *native, b"mine 2\n"]))

    questions: list[dict[str, Any]] = [{}, {"cursor": "start", "backward": False}]
    for question in questions:
        assert len(texts(page(paths, **question))) == len(native) + 2 > 10
        found = page(paths, shows_native=False, **question)
        assert texts(found) == ["mine 1", "mine 2"]
        assert found["hidden"] == len(native)
        assert page(paths, shows_native=False, lines=1, **question)["hidden"] == 0


def test_tensorflows_own_lines_stay_where_a_task_has_failed_by_itself(
    paths: RunPaths, write_log: Write
) -> None:
    state = registry.load(paths)
    for task, ended_by in (("worker:0", "itself"), ("worker:1", "tfcluster")):
        found = state.task(task)
        found.exit_code, found.ended_by = 1, ended_by
        write_log(paths, task, NATIVE_LINE)
    run_writer.write_json(paths.state, state.to_json())

    shown = page(paths, shows_native=False)
    assert [line["task"] for line in shown["lines"]] == ["worker:0"]
    assert shown["hidden"] == 1
