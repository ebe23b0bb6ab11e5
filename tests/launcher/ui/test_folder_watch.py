"""The live view wakes up when its run folder changes, and sleeps otherwise."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tfcluster.rundir.paths import RunPaths
from tfcluster.ui import folder_watch as folder_watch_module
from tfcluster.ui.folder_watch import FolderWatch
from tfcluster.ui.follow import RunView
from tfcluster.ui.terminal import Terminal

Write = Callable[..., Path]
HOURS = 10_000.0


@pytest.fixture
def folder_watch(monkeypatch: pytest.MonkeyPatch) -> FolderWatch:
    """Return a watch whose wait is ended only by a change or by `wake`."""
    monkeypatch.setattr(folder_watch_module, "RECHECK_S", HOURS)
    return FolderWatch()


@pytest.fixture
def no_inotify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the watch work as on a system without inotify."""
    monkeypatch.setattr(folder_watch_module, "IS_LINUX", False)


@pytest.mark.linux("inotify")
def test_a_write_ends_the_wait(folder_watch: FolderWatch, tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.touch()
    folder_watch.watch(tmp_path)
    threading.Timer(0.1, log.write_text, ["a line\n"]).start()
    folder_watch.wait(found_new=False)
    (tmp_path / "new").write_text("{}")
    (tmp_path / "new").rename(tmp_path / "state.json")
    folder_watch.wait(found_new=False)  # a state that is replaced
    folder_watch.close()


@pytest.mark.linux("inotify")
def test_any_thread_can_end_the_wait_and_waking_after_close_does_nothing(
    folder_watch: FolderWatch,
) -> None:
    threading.Timer(0.1, folder_watch.wake).start()
    folder_watch.wait(found_new=False)
    folder_watch.wake()
    folder_watch.wait(found_new=False)  # it was woken before
    folder_watch.close()
    folder_watch.wake()


@pytest.mark.usefixtures("no_inotify")
def test_without_inotify_the_view_polls_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder_watch, slept = FolderWatch(), []
    monkeypatch.setattr(folder_watch, "_sleep", lambda seconds, *_: slept.append(seconds))
    folder_watch.watch(tmp_path)
    for found_new in (True, False, False, False, False, False, True):
        folder_watch.wait(found_new=found_new)
    assert slept == [0.02, 0.04, 0.08, 0.16, 0.2, 0.2, 0.02]
    folder_watch.close()


@pytest.mark.usefixtures("no_inotify")
def test_without_inotify_lines_are_still_shown(
    paths: RunPaths, write_log: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    view = RunView(paths, Terminal(environ={}))
    view.start()
    write_log("worker:0", b"here\n")
    deadline, shown = time.monotonic() + 60, ""
    while "here" not in shown:
        shown += capfd.readouterr().out
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert view.finish(timeout_s=60)


@pytest.mark.linux("inotify")
def test_a_quiet_run_is_not_polled(
    paths: RunPaths, write_log: Write, folder_watch: FolderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_watch.close()
    write_log("worker:0", b"line\n")
    view, rounds = RunView(paths, Terminal(environ={})), []
    advance = view.logs.advance

    def counted_advance() -> Iterator[bytes]:
        rounds.append(1)
        return advance()

    monkeypatch.setattr(view.logs, "advance", counted_advance)
    view.start()
    before = -1
    while before != len(rounds):  # would never end if the view polled
        before = len(rounds)
        time.sleep(1)
    write_log("worker:0", b"another\n")
    while len(rounds) == before:
        time.sleep(0.01)
    assert view.finish(timeout_s=60)
