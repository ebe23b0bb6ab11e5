"""The merged stream has every line whole, with its task, in order per task."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.lines import MAX_LINE_BYTES
from tfcluster.ui.merged_logs import LineStyle, LogFilter, MergedLogs, task_colour

Write = Callable[..., Path]
JSON = LineStyle(as_json=True)


def drained(
    paths: RunPaths, log_filter: LogFilter | None = None, style: LineStyle | None = None
) -> str:
    logs = MergedLogs(paths, log_filter, style)
    return b"".join(logs.drain()).decode("utf-8", "surrogateescape")


def test_later_files_and_lines_are_shown_once(paths: RunPaths, write_log: Write) -> None:
    logs = MergedLogs(paths)
    assert list(logs.advance()) == []
    write_log("worker:0", b"a\nb")
    logs.discover()
    assert b"".join(logs.advance()) == "worker:0 │ a\n".encode()
    write_log("worker:0", b"\n")
    write_log("worker:1", b"c")
    logs.mark_ended("worker:1", 1)
    assert b"".join(logs.advance()) == "worker:0 │ b\nworker:1 │ c\n".encode()
    assert list(logs.drain()) == []


def test_progress_bars_are_shown_in_their_last_state(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"1/3\r2/3\r3/3\nnext\n4/9\r5/9")
    logs = MergedLogs(paths)
    assert b"".join(logs.advance()).decode() == "worker:0 │ 3/3\nworker:0 │ next\n"
    assert logs.partials() == {"worker:0": "5/9"}


def keras_bar(steps: int) -> bytes:
    """Return what Keras 3 writes during an epoch to a pipe (keras/src/utils/progbar.py)."""
    states = [
        f"\r\x1b[1m{step}/{steps}\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m━\x1b[0m - loss: 0.5"
        for step in range(1, steps + 1)
    ]
    return ("\b" * 20).join(states).encode() + b"\n"


@pytest.mark.parametrize("steps", [1, 20, 9000])
def test_a_pipe_gets_a_progress_bar_as_plain_text_in_its_last_state(
    paths: RunPaths, write_log: Write, steps: int
) -> None:
    write_log("worker:0", b"Epoch 1/2\n" + keras_bar(steps) + b"\x1b[1mnext\r\n")
    shown = ["Epoch 1/2", f"{steps}/{steps} ━━━ - loss: 0.5", "\x1b[1mnext"]
    for style in (LineStyle(), LineStyle(times=True), LineStyle(collapse=True)):
        lines = drained(paths, style=style).splitlines()
        assert [line.partition("│ ")[2] for line in lines] == shown
    texts = [json.loads(line)["line"] for line in drained(paths, style=JSON).splitlines()]
    assert texts == shown


def test_a_native_message_that_was_written_into_a_progress_bar_is_not_shown_with_it(
    paths: RunPaths, write_log: Write
) -> None:
    message = b"2026-11-28 12:23:46.9: W tensorflow/core/framework/local_rendezvous.cc:404] Local"
    message += b" rendezvous is aborting with status: OUT_OF_RANGE: End of sequence\n"
    message += b"\t [[{{node x}}]]\n"
    write_log("worker:0", keras_bar(2)[:-1] + message + keras_bar(3))
    for is_screen in (False, True):
        shown = drained(paths, style=LineStyle(is_screen=is_screen, folds=True))
        assert shown == "worker:0 │ 3/3 ━━━ - loss: 0.5\n"


def test_a_pipe_gets_other_bytes_unchanged_and_a_screen_sanitized_ones(
    paths: RunPaths, write_log: Write
) -> None:
    write_log("worker:0", b"\x00\xff\x1b[2J\x07\n")
    assert b"".join(MergedLogs(paths).drain()) == "worker:0 │ ".encode() + b"\x00\xff\x1b[2J\x07\n"
    assert drained(paths, style=LineStyle(is_screen=True)) == "worker:0 │ ␀�␇\n"


def test_a_screen_shows_task_names_in_one_column_and_colour(
    paths: RunPaths, write_log: Write
) -> None:
    write_log("worker:0", b"a\n")
    write_log("evaluator:0", b"b\n")
    shown = drained(paths, style=LineStyle(is_screen=True, colours=True))
    assert shown == ("\x1b[36mworker:0    │\x1b[0m a\n\x1b[95mevaluator:0 │\x1b[0m b\n")


def test_a_task_has_the_same_colour_whatever_the_others_are() -> None:
    assert [task_colour(f"worker:{index}") for index in range(3)] == ["cyan", "yellow", "green"]
    small = ["chief:0", "worker:0", "worker:1", "ps:0", "evaluator:0"]
    assert len({task_colour(label) for label in small}) == len(small)


def test_a_screen_gets_the_beginning_of_a_huge_line_and_a_note(
    paths: RunPaths, write_log: Write
) -> None:
    write_log("worker:0", b"x" * 10_000_000 + b"\nafter\n")
    cut, after = drained(paths, style=LineStyle(is_screen=True)).splitlines()
    assert cut.endswith("x … (a line of 10,000,000 bytes; the log has it)")
    assert len(cut) < 10_000
    assert after == "worker:0 │ after"


@pytest.mark.parametrize("length", [8191, 8192, 8193, 100_000, 262_143, 262_144, 300_000])
@pytest.mark.parametrize("kind", ["plain", "collapse", "times"])
def test_a_screen_gets_8_kib_of_a_line_of_any_length(
    paths: RunPaths, write_log: Write, length: int, kind: str
) -> None:
    write_log("worker:0", b"before\n" * 5 + b"x" * length + b"\nafter\n")
    style = LineStyle(is_screen=True, collapse=kind == "collapse", times=kind == "times")
    texts = [line.partition("│ ")[2] for line in drained(paths, style=style).splitlines()]
    assert texts[:5] == ["before"] * 5
    assert texts[6:] == ["after"]
    assert max(len(text.encode()) for text in texts) < MAX_LINE_BYTES
    assert (texts[5] == "x" * length) == (length < MAX_LINE_BYTES)


@pytest.mark.parametrize("tail", [0, 1])
def test_an_unfinished_line_is_followed_from_its_beginning(
    paths: RunPaths, write_log: Write, tail: int
) -> None:
    write_log("worker:0", b"one\nloss")
    assert drained(paths, LogFilter(tail=tail)) == "worker:0 │ loss\n" * tail
    logs = MergedLogs(paths, LogFilter(tail=tail))
    write_log("worker:0", b" 0.5\n")
    assert b"".join(logs.advance()).decode() == "worker:0 │ loss 0.5\n"


@pytest.mark.parametrize(
    ("log_filter", "shown"),
    [
        (LogFilter(tasks=("worker:1",)), ["worker:1 │ b1", "worker:1 │ b2 loss"]),
        (LogFilter(grep=re.compile(rb"loss")), ["worker:0 │ a2 loss", "worker:1 │ b2 loss"]),
        (LogFilter(tail=1), ["worker:0 │ a3", "worker:1 │ b2 loss"]),
        (LogFilter(tail=1, grep=re.compile(rb"^.1")), ["worker:0 │ a1", "worker:1 │ b1"]),
        (LogFilter(tail=0), []),
    ],
)
def test_lines_are_filtered_by_task_pattern_and_tail(
    paths: RunPaths, write_log: Write, log_filter: LogFilter, shown: list[str]
) -> None:
    write_log("worker:0", b"a1\na2 loss\na3\n")
    write_log("worker:1", b"b1\nb2 loss\n")
    assert drained(paths, log_filter).splitlines() == shown


def test_one_round_passes_over_blocks_without_a_match(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"nothing\n" * 200_000 + b"loss 1\n")
    logs = MergedLogs(paths, LogFilter(grep=re.compile(rb"loss")))
    assert b"".join(logs.advance()).decode() == "worker:0 │ loss 1\n"
    assert list(logs.advance()) == []


def test_attempts_follow_each_other_and_can_be_chosen(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"first\nwithout end")
    write_log("worker:0", b"second\n", attempt=2)
    assert drained(paths).splitlines() == [
        "worker:0 │ first",
        "worker:0 │ without end",
        "worker:0 │ second",
    ]
    only_first = LogFilter(first_attempt=1, last_attempt=1)
    assert drained(paths, only_first).splitlines() == [
        "worker:0 │ first",
        "worker:0 │ without end",
    ]


def test_a_run_deleted_meanwhile_ends_the_stream_quietly(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"line\n")
    logs = MergedLogs(paths)
    shutil.rmtree(paths.root)
    logs.discover()
    assert list(logs.drain()) == []


def test_the_prepare_step_comes_first_and_has_its_name(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"train\n")
    paths.step_log("prepare", "local").parent.mkdir()
    paths.step_log("prepare", "local").write_bytes(b"fetched\n")
    assert drained(paths).splitlines() == ["prepare │ fetched", "worker:0 │ train"]


def test_identical_lines_are_shown_once_and_every_task_keeps_its_order(
    paths: RunPaths, write_log: Write
) -> None:
    write_log("worker:0", b"start\nloss 1\nend\n")
    write_log("worker:1", b"start\nonly here\nloss 1\nend\n")
    write_log("worker:2", b"loss 1\nstart\nend\n")
    shown = drained(paths, style=LineStyle(collapse=True)).splitlines()
    assert shown == [
        "worker:0 │ start (×2)",
        "worker:1 │ only here",
        "worker:0 │ loss 1 (×3)",
        "worker:2 │ start",
        "worker:0 │ end (×3)",
    ]


def test_the_backlog_is_counted_and_can_be_skipped(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"line\n" * 1000)
    logs = MergedLogs(paths)
    assert logs.behind() == 5000
    assert logs.skip_to_newest(keep=50) == 991
    assert b"".join(logs.advance()).count(b"\n") == 9
