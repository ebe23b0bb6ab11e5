"""The live view reads only the run folder, and nothing waits for it."""

from __future__ import annotations

import io
import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import pyte
import pytest

from tfcluster.rundir.events import (
    Event,
    Progress,
    RunFinished,
    TaskExited,
    Warned,
)
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.run_writer import to_line
from tfcluster.ui import follow
from tfcluster.ui.follow import RunView
from tfcluster.ui.terminal import Terminal

Write = Callable[..., Path]
OpenScreen = Callable[..., tuple[int, TextIO]]


def write_events(paths: RunPaths, *events: Event) -> None:
    with paths.events.open("ab") as file:
        for seq, event in enumerate(events, start=1):
            file.write(to_line(event, seq=seq, time=1.7e9))


def write_state(paths: RunPaths, **more: Any) -> None:
    task = {"task": "worker:0", "node": "local", "address": "127.0.0.1:4000", "state": "running"}
    state = {
        "run": paths.run_id, "name": "demo", "status": "running", "host": "h", "boot_id": "b",
        "pid": 1, "pid_start": 1, "started_at": time.time(), "tasks": [task | more],
    }  # fmt: skip
    paths.state.write_text(json.dumps(state))


def wait_until(is_so: Callable[[], bool], seen: Callable[[], object] = str) -> None:
    """Wait until `is_so`; a failure shows what was `seen`."""
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, seen()
        time.sleep(0.01)


class Watcher:
    """A user at a screen, who reads what programs write to it while `may_read` is set."""

    def __init__(self, user: int, columns: int = 80, rows: int = 24) -> None:
        self.screen = pyte.Screen(columns, rows)
        self.received, self._fed = bytearray(), 0
        self._stream = pyte.ByteStream(self.screen)
        self._user = user
        self.may_read = threading.Event()
        self.may_read.set()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        while True:
            self.may_read.wait()
            try:
                block = os.read(self._user, 65536)
            except OSError:
                return
            self.received += block

    @property
    def lines(self) -> list[str]:
        """The lines on the screen now."""
        new = bytes(self.received[self._fed :])
        self._fed += len(new)
        self._stream.feed(new)
        return [line.rstrip() for line in self.screen.display if line.strip()]


def test_finish_shows_all_remaining_output(
    paths: RunPaths, write_log: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    view = RunView(paths, Terminal(environ={}))
    view.start()
    write_log("worker:0", b"line\n" * 5000 + b"last words")
    write_events(paths, Warned(message="mind the gap"), RunFinished(status="failed", exit_code=1))
    view.say("goodbye")
    assert view.finish(timeout_s=60)
    out, err = capfd.readouterr()
    assert out == "worker:0 │ line\n" * 5000 + "worker:0 │ last words\n"
    assert sorted(err.splitlines()) == ["goodbye", "mind the gap"]


def test_a_task_s_end_is_shown_after_its_last_line(paths: RunPaths, write_log: Write) -> None:
    both = io.StringIO()
    write_log("worker:0", b"last words")
    write_events(
        paths, TaskExited(task="worker:0", attempt=1, exit_code=None, signal=9, duration_s=75)
    )
    view = RunView(paths, Terminal(both, both, environ={}))
    view.start()
    wait_until(lambda: "ended" in both.getvalue())
    assert both.getvalue().splitlines() == [
        "worker:0 │ last words",
        "worker:0 ended after 1 min 15 s: SIGKILL",
    ]
    view.finish()


def test_with_json_stdout_gets_only_event_lines(
    paths: RunPaths, write_log: Write, capfd: pytest.CaptureFixture[str]
) -> None:
    view = RunView(paths, Terminal(environ={}), json_lines=True)
    view.start()
    write_log("worker:0", b"a line\n")
    write_events(
        paths,
        Progress(task="worker:0", attempt=1, step=7),
        RunFinished(status="succeeded", exit_code=0),
    )
    view.finish()
    out, err = capfd.readouterr()
    assert [json.loads(line)["type"] for line in out.splitlines()] == ["progress", "run_finished"]
    assert out.encode() == paths.events.read_bytes()
    assert err == "worker:0 │ a line\n"


def test_unknown_events_and_torn_lines_are_ignored(
    paths: RunPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    paths.events.write_bytes(
        b'{"type":"of_the_future"}\n{"type":"task_exited"}\n[]\nnonsense\n{"type":"warned",'
    )
    view = RunView(paths, Terminal(environ={}))
    view.start()
    assert view.finish(timeout_s=60)
    assert capfd.readouterr() == ("", "")


def test_a_closed_stdout_is_reported_once_and_the_view_continues(
    paths: RunPaths, write_log: Write
) -> None:
    reader, writer = os.pipe()
    stdout, stderr = io.TextIOWrapper(os.fdopen(writer, "wb", buffering=0)), io.StringIO()
    view = RunView(paths, Terminal(stdout, stderr, environ={}))
    view.start()
    os.close(reader)
    for _ in range(3):
        write_log("worker:0", b"line\n")
        time.sleep(0.05)
    write_events(paths, Warned(message="still here"))
    assert view.finish(timeout_s=60)
    assert stderr.getvalue().splitlines().count(f"stdout is closed; {follow.CLOSED_NOTE}") == 1
    assert "still here" in stderr.getvalue()
    stdout.close()


def test_the_frame_stays_below_the_lines_and_leaves_nothing_behind(
    paths: RunPaths, write_log: Write, open_screen: OpenScreen
) -> None:
    user, screen = open_screen(columns=80)
    watcher = Watcher(user)
    write_state(paths, step=1200, steps_per_second=41.23, metrics={"loss": 0.3141})
    view = RunView(paths, Terminal(screen, screen, environ={"TERM": "xterm"}))
    view.start()
    for number in range(3):
        write_log("worker:0", b"line %d\n" % number)
        time.sleep(0.05)
    lines = [f"worker:0 │ line {number}" for number in range(3)]
    frame = [
        "loss 0.3141  41.2 steps/s",
        "step 1,200, total unknown",
        "task      state     step  steps/s",
        "worker:0  running  1,200     41.2",
    ]

    def shows_all() -> bool:  # a frame that is drawn anew may have come in part
        seen = watcher.lines
        return (seen[:3], seen[4:]) == (lines, frame) and seen[3].startswith("── demo · running ")

    wait_until(shows_all, lambda: watcher.lines)
    view.finish()
    wait_until(lambda: watcher.lines == lines)


def test_a_low_screen_shows_one_line_with_the_latest_state_of_a_progress_bar(
    paths: RunPaths, write_log: Write, open_screen: OpenScreen
) -> None:
    user, screen = open_screen(columns=60, rows=10)
    watcher = Watcher(user, columns=60, rows=10)
    write_state(paths)
    write_log("worker:0", b"10%|#   |\r40%|##  |")
    view = RunView(paths, Terminal(screen, screen, environ={"TERM": "xterm"}))
    view.start()
    shown = "1 task running · worker:0 │ 40%|##  |"
    wait_until(lambda: "".join(watcher.lines[:1]).endswith(shown), lambda: watcher.lines)
    view.finish()


def test_a_closed_screen_does_not_end_the_view(
    paths: RunPaths, write_log: Write, open_screen: OpenScreen
) -> None:
    user, screen = open_screen()
    terminal = Terminal(screen, screen, environ={"TERM": "xterm"})
    write_state(paths)
    view = RunView(paths, terminal)
    view.start()
    time.sleep(0.1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, user)
    os.close(nowhere)
    write_log("worker:0", b"line\n")
    view.say("nobody reads this")
    assert view.finish(timeout_s=60)
    assert terminal.stdout.error == terminal.stderr.error == "Input/output error"


def test_a_stopped_screen_blocks_only_the_view_and_loses_nothing(
    paths: RunPaths, write_log: Write, open_screen: OpenScreen
) -> None:
    user, screen = open_screen()
    watcher = Watcher(user)
    watcher.may_read.clear()
    os.write(user, b"")
    view = RunView(paths, Terminal(screen, screen, environ={"TERM": "dumb"}))
    view.start()
    for number in range(20_000):
        if number % 1000 == 0:
            write_log("worker:0", b"".join(b"line %d\n" % n for n in range(number, number + 1000)))
    view.say("a message does not wait either")
    assert not view.finish(timeout_s=0.3)
    watcher.may_read.set()
    assert view.finish(timeout_s=60)
    wait_until(lambda: b"line 19999\r\n" in watcher.received)
    lines = [line for line in bytes(watcher.received).decode().split("\r\n") if "│" in line]
    assert lines == [f"worker:0 │ line {n}" for n in range(20_000)]


def test_a_screen_far_behind_skips_to_the_newest_lines_and_says_so(
    paths: RunPaths,
    write_log: Write,
    open_screen: OpenScreen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "SKIP_ABOVE", 3_000_000)
    user, screen = open_screen()
    watcher = Watcher(user)
    write_log("worker:0", b"".join(b"line %06d\n" % n for n in range(400_000)))
    view = RunView(paths, Terminal(screen, screen, environ={"TERM": "dumb"}))
    view.start()
    assert view.finish(timeout_s=60)
    wait_until(lambda: b"line 399999\r\n" in watcher.received)
    text = bytes(watcher.received).decode()
    notice = next(line for line in text.split("\r\n") if "not shown" in line)
    skipped = int(notice.split()[1].replace(",", ""))
    assert skipped > 200_000
    assert text.count("│ line ") + skipped == 400_000


def test_a_pipe_far_behind_gets_everything(
    paths: RunPaths,
    write_log: Write,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follow, "SKIP_ABOVE", 1000)
    write_log("worker:0", b"line\n" * 50_000)
    view = RunView(paths, Terminal(environ={}))
    view.start()
    assert view.finish(timeout_s=60)
    assert capfd.readouterr().out == "worker:0 │ line\n" * 50_000
