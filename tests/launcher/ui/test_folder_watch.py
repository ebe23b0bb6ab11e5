"""What wakes a view, and what lets it sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfcluster.agent.processes import IS_LINUX
from tfcluster.rundir.paths import RunPaths
from tfcluster.ui import folder_watch as bell_module
from tfcluster.ui.folder_watch import Bell
from tfcluster.ui.follow import RunView
from tfcluster.ui.terminal import Terminal

Write = Callable[..., Path]
HOURS = 10_000.0


@pytest.fixture
def bell(monkeypatch: pytest.MonkeyPatch) -> Bell:
    """Only what happens ends its wait."""
    if not IS_LINUX:
        pytest.skip("no kernel that tells of changes")
    monkeypatch.setattr(bell_module, "UNTOLD_S", HOURS)
    return Bell()


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that tells of no changes."""
    monkeypatch.setattr(bell_module, "IS_LINUX", False)


def test_a_write_ends_the_wait(bell: Bell, tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.touch()
    bell.watch(tmp_path)
    threading.Timer(0.1, log.write_text, ["a line\n"]).start()
    assert not bell.wait(moved=False), "no file came"
    bell.close()


def test_what_was_written_before_the_wait_is_told(bell: Bell, tmp_path: Path) -> None:
    bell.watch(tmp_path)
    (tmp_path / "worker-0.log").write_text("a line\n")
    assert bell.wait(moved=True), "a file came"
    bell.close()


def test_a_state_that_is_replaced_ends_the_wait(bell: Bell, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "new").write_text("{}")
    bell.watch(tmp_path / "run")
    (tmp_path / "new").rename(tmp_path / "run" / "state.json")
    assert not bell.wait(moved=False)
    bell.close()


def test_more_changes_than_are_told_may_have_been_files(bell: Bell, tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    logs = [tmp_path / "worker-0.log", tmp_path / "worker-1.log"]
    for log in logs:
        log.touch()
    bell.watch(tmp_path)
    with logs[0].open("ab", buffering=0) as one, logs[1].open("ab", buffering=0) as other:
        for _ in range(most // 2 + 1):
            one.write(b".")
            other.write(b".")
    assert bell.wait(moved=True)
    bell.close()


def test_anybody_ends_the_wait_and_after_the_end_nothing_happens(bell: Bell) -> None:
    threading.Timer(0.1, bell.ring).start()
    assert not bell.wait(moved=False)
    bell.ring()
    assert not bell.wait(moved=False), "it was rung before"
    bell.close()
    bell.ring()


def test_a_thousand_rings_are_one(bell: Bell) -> None:
    for _ in range(100_000):
        bell.ring()
    bell.wait(moved=False)
    bell._sleep(0)
    assert not bell._sleep(0.01)
    bell.close()


@pytest.mark.usefixtures("deaf")
def test_where_nobody_tells_the_view_looks_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bell, slept = Bell(), []
    monkeypatch.setattr(bell, "_sleep", lambda seconds, *_: slept.append(seconds))
    bell.watch(tmp_path)
    for moved in (True, False, False, False, False, False, True):
        bell.wait(moved=moved)
    assert slept == [0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.02]
    bell.close()


@pytest.mark.usefixtures("deaf")
def test_where_nobody_tells_lines_are_shown_all_the_same(
    paths: RunPaths, write_log: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    view = RunView(paths, Terminal(environ={}))
    view.start()
    write_log("worker:0", b"here\n")
    deadline, shown = time.monotonic() + 10, ""
    while "here" not in shown:
        shown += capfd.readouterr().out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert view.finish(timeout_s=10)


def test_a_quiet_run_is_not_looked_at(
    paths: RunPaths, write_log: Write, bell: Bell, monkeypatch: pytest.MonkeyPatch
) -> None:
    bell.close()
    write_log("worker:0", b"line\n")
    view, looks = RunView(paths, Terminal(environ={})), []
    advance = view.logs.advance

    def look() -> Iterator[bytes]:
        looks.append(1)
        return advance()

    monkeypatch.setattr(view.logs, "advance", look)
    view.start()
    before = -1
    while before != len(looks):  # for ever, if it looked by itself
        before = len(looks)
        time.sleep(1)
    write_log("worker:0", b"another\n")
    while len(looks) == before:
        time.sleep(0.01)
    assert view.finish(timeout_s=10)
