"""A script's lines are shown without TensorFlow's start lines, until the task fails."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launcher.ui.test_follow import Watcher, wait_until, write_events, write_state

from tfcluster.rundir.events import TaskExited
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui.follow import RunView, line_style_for
from tfcluster.ui.merged_logs import LineStyle, LogFilter, MergedLogs
from tfcluster.ui.terminal import Terminal

Write = Callable[..., Path]
START = (
    b"I0000 00:00:1795436664.643702   26030 grpc_server_lib.cc:467] Started server with target: x"
)
CPU = (
    b"I0000 00:00:1795436664.643702   26030 cpu_feature_guard.cc:227] This TensorFlow binary is op"
)
CPU += b"timized to use available CPU instructions in performance-critical operations.\n"
CPU += b"To enable the following instructions: AVX2 FMA, in other operations, rebuild TensorFlow"
CPU += b" with the appropriate compiler flags.\n"
FOLDING = LineStyle(is_screen=True, folds=True)


def shown(logs: MergedLogs) -> list[str]:
    lines = b"".join(logs.drain()).decode().splitlines()
    return [line.partition(" │ ")[2] for line in lines]


def test_start_lines_are_omitted_and_counted(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", START + b"\nepoch 1\n" + CPU + b"epoch 2\n")
    write_log("worker:1", START + b"\n")
    logs = MergedLogs(paths, line_style=FOLDING)
    assert shown(logs) == ["epoch 1", "epoch 2"]
    assert logs.omitted() == 4
    collapsed = LineStyle(is_screen=True, folds=True, collapse=True)
    assert shown(MergedLogs(paths, line_style=collapsed)) == ["epoch 1", "epoch 2"]
    assert len(shown(MergedLogs(paths, line_style=LineStyle(is_screen=True)))) == 6


def test_the_last_lines_are_counted_without_start_lines(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", b"one\ntwo\n" + CPU * 3 + b"three\n" + CPU + b"four\n" + CPU)
    for count, expected in [(0, []), (1, ["four"]), (2, ["three", "four"])]:
        logs = MergedLogs(paths, LogFilter(tail=count), FOLDING)
        assert shown(logs) == expected
    all_of_them = ["one", "two", "three", "four"]
    assert shown(MergedLogs(paths, LogFilter(tail=4), FOLDING)) == all_of_them
    assert shown(MergedLogs(paths, LogFilter(tail=9), FOLDING)) == all_of_them


def test_a_search_finds_start_lines_too_and_the_tail_counts_what_is_shown(
    paths: RunPaths, write_log: Write
) -> None:
    write_log("worker:0", b"one\ntwo\n" + CPU * 3)
    found = LogFilter(tail=1, grep=re.compile(b"t"))
    (last,) = shown(MergedLogs(paths, found, FOLDING))
    assert last.startswith("To enable")
    every = LogFilter(tail=8, grep=re.compile(b"t"))
    assert len(shown(MergedLogs(paths, every, FOLDING))) == 7


def test_nothing_of_a_failed_task_is_omitted(paths: RunPaths, write_log: Write) -> None:
    write_log("worker:0", START + b"\nepoch 1\n")
    write_log("worker:1", START + b"\nepoch 1\n")
    logs = MergedLogs(paths, LogFilter(failed=["worker:1"]), FOLDING)
    assert shown(logs) == ["epoch 1", START.decode(), "epoch 1"]


@pytest.mark.parametrize("exit_code", [0, 1])
def test_start_lines_after_a_failure_are_shown(
    paths: RunPaths, write_log: Write, exit_code: int
) -> None:
    write_log("worker:0", START + b"\n")
    logs = MergedLogs(paths, line_style=FOLDING)
    assert list(logs.advance()) == []
    logs.mark_ended("worker:0", 1, has_failed=exit_code != 0)
    write_log("worker:0", START + b"\n")
    assert shown(logs) == [START.decode()] * (exit_code != 0)
    write_log("worker:0", START + b"\nnext\n", attempt=2)
    assert shown(logs) == ["next"]


def test_a_line_after_a_skip_continues_nothing(paths: RunPaths, write_log: Write) -> None:
    first, second = CPU.splitlines(keepends=True)
    write_log("worker:0", first)
    logs = MergedLogs(paths, line_style=FOLDING)
    assert list(logs.advance()) == []
    write_log("worker:0", b"x\n" * 100 + second)
    logs.skip_to_newest(keep=len(second) + 1)
    assert shown(logs) == [second.decode().rstrip()]


def test_a_screen_and_a_pipe_fold_unless_asked(
    paths: RunPaths, open_screen: Callable[..., tuple[int, object]]
) -> None:
    _, screen = open_screen()
    terminal = Terminal(screen, None, environ={})  # type: ignore[arg-type]
    for stream in (terminal.stdout, terminal.stderr):
        assert line_style_for(terminal, stream, False).folds
        assert not line_style_for(terminal, stream, False, native=True).folds


def test_the_live_view_folds_until_the_task_fails(
    paths: RunPaths, write_log: Write, open_screen: Callable[..., tuple[int, object]]
) -> None:
    user, screen = open_screen(columns=200)
    watcher = Watcher(user, columns=200)
    write_state(paths)
    terminal = Terminal(screen, screen, environ={"TERM": "dumb"})  # type: ignore[arg-type]
    view = RunView(paths, terminal)
    view.start()
    write_log("worker:0", START + b"\nepoch 1\n")
    wait_until(lambda: len(watcher.lines) == 1)
    write_events(paths, TaskExited(task="worker:0", attempt=1, exit_code=1, ended_by="itself"))
    wait_until(lambda: len(watcher.lines) == 2)
    write_log("worker:0", START + b"\n")
    view.finish()
    wait_until(lambda: len(watcher.lines) == 3)
    assert watcher.lines[0] == "worker:0 │ epoch 1"
    assert watcher.lines[2] == f"worker:0 │ {START.decode()}"
