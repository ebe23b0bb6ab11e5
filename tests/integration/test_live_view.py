"""The live view in a real terminal: resized, stopped with Ctrl-Z and continued, left without trace.

tmux is the terminal: like most of them, it wraps the lines of a window that becomes narrower.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.forked import COMMAND

from .commandline import CommandLine, wait_for
from .live import is_alive

REPORTS = """
import os, time
from tfcluster_workers import reporting
for step in range(1, 1_000_000):
    reporting.progress(step, metrics={"loss": 5 / step}, batch_size=32)
    if step % 20 == 0:
        print("reached", step, flush=True)
    time.sleep(0.02)
    if os.path.exists("finish"):
        break
"""


class Window:
    """A shell in a window of tmux."""

    def __init__(self, shell: CommandLine, columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-L", f"live-{os.getpid()}-{shell.root.name}", "-f", os.devnull]
        env = shell.env | {"PS1": "$ ", "PATH": f"{Path(COMMAND).parent}:{shell.env['PATH']}"}
        size = ["-x", str(columns), "-y", str(rows)]
        bash = ["bash", "--norc", "--noprofile", "-i"]
        subprocess.run(
            [*self._tmux, "new-session", "-d", *size, *bash], env=env, cwd=shell.cwd, check=True
        )

    def _do(self, *words: str) -> str:
        return subprocess.run(
            [*self._tmux, *words], check=True, capture_output=True, text=True
        ).stdout

    def type(self, *keys: str) -> None:
        self._do("send-keys", *keys)

    def resize(self, columns: int, rows: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(rows))

    @property
    def lines(self) -> list[str]:
        """The lines on the screen and those that scrolled off it."""
        text = self._do("capture-pane", "-p", "-S", "-")
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    def wait(self, is_so: Callable[[list[str]], bool]) -> list[str]:
        """Wait until the screen is as wanted, and return its lines."""
        found: list[str] = []

        def look() -> bool:
            found[:] = self.lines
            return bool(found) and is_so(found)

        wait_for(look)
        return found

    def close(self) -> None:
        server, bash = map(int, self._do("display-message", "-p", "#{pid} #{pane_pid}").split())
        self._do("kill-server")
        wait_for(lambda: not is_alive(server) and not is_alive(bash))


@pytest.fixture
def window(shell: CommandLine) -> Iterator[Window]:
    shell.script("train.py", REPORTS)
    opened = Window(shell, 80, 24)
    yield opened
    opened.close()


def headers(lines: list[str]) -> list[int]:
    """Return which lines are the first line of a frame."""
    return [place for place, line in enumerate(lines) if line.startswith("── ")]


def is_frame_last(lines: list[str]) -> bool:
    """Return whether one whole frame, and nothing else of a frame, ends the screen."""
    places = headers(lines)
    if len(places) != 1:
        return False
    *frame, keys = lines[places[0] :]
    rows = [line for line in frame if line.startswith(("worker:0  run", "worker:1  run"))]
    is_whole = len(rows) == 2 and frame[1].startswith("loss") and rows == frame[-2:]
    return is_whole and keys.startswith("d detach · ? keys")


def test_a_frame_survives_resizing_and_a_stop_and_leaves_nothing_behind(
    shell: CommandLine, window: Window
) -> None:
    window.type(shlex.join(["tfcluster", "run", "-n", "2", "train.py"]), "Enter")
    window.wait(lambda lines: is_frame_last(lines) and "reached 20" in "\n".join(lines))
    for columns, rows in ((60, 24), (100, 30), (70, 16)):
        window.resize(columns, rows)
        window.wait(lambda lines, c=columns: is_frame_last(lines) and max(map(len, lines)) < c + 1)  # type: ignore[misc]
    window.type("Enter", "Enter", "x", "?")
    window.wait(lambda lines: lines[-1] == "Closing the terminal ends the run.")
    assert len(headers(window.lines)) <= 1, "an Enter leaves no part of a frame behind"
    window.type("?")
    window.wait(is_frame_last)

    window.type("C-z")
    stopped = window.wait(lambda lines: "Stopped" in lines[-2] and lines[-1] == "$")
    assert headers(stopped) == []
    window.type("echo between", "Enter", "fg", "Enter")
    window.wait(lambda lines: "between" in lines and is_frame_last(lines))

    shell.script("finish", "")
    ended = window.wait(lambda lines: lines[-1] == "$")
    assert headers(ended) == []
    assert not any(line.startswith(("task      state", "loss ")) for line in ended)
    assert any("succeeded after" in line for line in ended)


def table_after(lines: list[str], command: str) -> list[str]:
    """Return what `command` has printed, with ``done`` after it."""
    start = max(place for place, line in enumerate(lines) if line.endswith(command))
    return lines[start + 1 :]


def test_d_leaves_a_run_that_every_width_lists_and_attach_shows_again(
    shell: CommandLine, window: Window
) -> None:
    window.type("tfcluster run -n 2 --name demo train.py; echo code $?", "Enter")
    shown = window.wait(is_frame_last)
    assert shown[-1].endswith("closing the terminal ends the run")
    window.type("d")
    left = window.wait(lambda lines: "code 0" in lines)
    assert headers(left) == []
    state = shell.state()
    assert f"`tfcluster attach {state['run'][-4:]}`" in " ".join(left)
    assert (state["status"], state["background"]) == ("running", True)

    for columns in (60, 80, 120):
        window.resize(columns, 24)
        looks = f"tfcluster ps; tfcluster status; echo done {columns}"
        window.type(looks, "Enter")
        shown = window.wait(lambda lines: lines[-2:] == [f"done {columns}", "$"])  # noqa: B023
        table = table_after(shown, looks)
        assert (table[0].split()[:2], table[1].split()[1]) == (["RUN", "STATUS"], "running")
        tasks = next(n for n, line in enumerate(table) if line.startswith("  task "))
        assert [row.split()[0] for row in table[tasks + 1 : tasks + 3]] == ["worker:0", "worker:1"]

    window.type("tfcluster attach", "Enter")
    shown = window.wait(is_frame_last)
    assert shown[-1].endswith("closing the terminal leaves the run")
    window.type("d")
    left = window.wait(lambda lines: lines[-1] == "$" and "detached;" in " ".join(lines))
    assert headers(left) == []
    shell.script("finish", "")
    assert shell.run("wait", state["run"]).code == 0


def test_a_closed_run_leaves_the_terminal_as_it_was(shell: CommandLine, window: Window) -> None:
    window.type(
        "stty -a > before; tfcluster run -n 1 train.py; stty -a > after; tfcluster top", "Enter"
    )
    window.wait(lambda lines: len(headers(lines)) == 1)
    window.type("C-c")
    window.wait(lambda lines: lines[-1].startswith("no run is live"))
    window.type("q")
    window.wait(lambda lines: lines[-1] == "$")
    assert not any("no run is live" in line for line in window.lines)
    assert (shell.cwd / "before").read_bytes() == (shell.cwd / "after").read_bytes()
    window.type("stty -a > top", "Enter")
    wait_for(lambda: (shell.cwd / "top").exists() and (shell.cwd / "top").read_bytes())
    assert (shell.cwd / "top").read_bytes() == (shell.cwd / "before").read_bytes()
