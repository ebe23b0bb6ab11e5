"""Every line of a task reaches its log and the merged stream: whole, in order, labelled."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import psutil
import pyte
import pytest

from .commandline import CommandLine, Screen, screen
from .streams import WRITER, expected_log, split_by_task

WORKERS, LINES = 4, 200_000
BAR = """
import sys, time
for epoch in (1, 2):
    print(f"Epoch {epoch}/2")
    for step in range(1, 21):
        bar = f"\\x1b[1m{step}/20\\x1b[0m [{'=' * step:<20}] - loss: {1 / step:.4f}"
        sys.stdout.write("\\b" * len(bar) + "\\r" + bar)
        sys.stdout.flush()
        time.sleep(0.05)
    print()
print("done")
"""
STEPS = """
import os, time
for n in range(5):
    print(os.environ["TFCLUSTER_TASK"], "step", n, flush=True)
    time.sleep(0.05)
"""


class Memory:
    """The resident bytes of coordinator, agent and guard together, while all three live."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self.sizes: list[int] = []

    def sample(self) -> None:
        family = [self._process, *self._process.children(recursive=True)]
        ours = [p for p in family if b"TFCLUSTER_TASK=" not in _environ(p)]
        sizes = [_rss(p) for p in ours]
        if len(sizes) == 3 and all(sizes):  # a process that is ending has no memory
            self.sizes.append(sum(sizes))


def _environ(process: psutil.Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return b"TFCLUSTER_TASK="


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


@pytest.mark.slow
def test_every_line_of_four_workers_arrives_whole_in_order_and_attributed(
    shell: CommandLine,
) -> None:
    shell.forks = False
    shell.script("writer.py", WRITER)
    merged = shell.root / "merged"

    with merged.open("wb") as out:
        process = shell.start("run", "-n", "4", "writer.py", str(LINES), stdout=out)
        memory = Memory(psutil.Process(process.pid))
        while process.poll() is None:
            memory.sample()
            time.sleep(0.02)

    assert process.returncode == 0
    parts = split_by_task(merged.read_bytes())
    assert parts.keys() == {f"worker:{n}" for n in range(WORKERS)}
    for task, part in parts.items():
        expected = expected_log(task, LINES)
        assert len(expected.splitlines()[0]) == 85
        assert shell.log(task) == expected
        assert part == expected
    # 69 MB went through: a component that kept them would show it.
    assert max(memory.sizes) < 100e6
    assert max(memory.sizes) - min(memory.sizes) < 20e6


TASK_ROW = re.compile(r"worker:[01]  (?:starting|running) .* (\d+)/20 \[")


def test_a_progress_bar_on_a_pipe_is_shown_in_its_last_state_only(shell: CommandLine) -> None:
    shell.script("bar.py", BAR)

    done = shell.run("run", "-n", "2", "bar.py")

    assert done.code == 0, done.err
    for part in split_by_task(done.out).values():
        assert part.decode().splitlines() == [
            "Epoch 1/2",
            "20/20 [====================] - loss: 0.0500",
            "Epoch 2/2",
            "20/20 [====================] - loss: 0.0500",
            "done",
        ]
    assert b"\r\x1b[1m1/20" in shell.log("worker:0"), "the log keeps what the task wrote"


TASK_ROW = re.compile(r"worker:[01]  (?:starting|running) .* (\d+)/20 \[")


def test_a_progress_bar_on_a_terminal_moves_in_the_row_of_its_task(shell: CommandLine) -> None:
    shell.script("bar.py", BAR)

    with screen(shell, "run", "-n", "2", "bar.py", columns=120, rows=50) as window:
        assert window.read_all() == 0
        text = window.seen.decode()

    rows_drawn = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\r\n")
    states = {found[1] for row in rows_drawn if (found := re.match(TASK_ROW, row))}
    assert len(states) > 1, "the bar was seen moving"
    rows = final_rows(window)
    assert sum("20/20 [====================] - loss: 0.0500" in row for row in rows) == 4
    assert not [row for row in rows if re.search(r"│ 1?\d/20", row)], "no state but the last"


def final_rows(window: Screen) -> list[str]:
    """Return the rows that the terminal shows at the end."""
    shown = pyte.Screen(window.columns, window.rows)
    pyte.ByteStream(shown).feed(window.seen)
    return [row.rstrip() for row in shown.display]


def test_collapse_shows_equal_lines_once(shell: CommandLine) -> None:
    shell.script("same.py", "import os\nprint('loading')\nprint(os.environ['TFCLUSTER_TASK'])\n")

    done = shell.run("run", "-n", "3", "--collapse", "same.py")

    rows = done.out.decode().splitlines()
    assert sum("loading" in row for row in rows) == 1, rows
    assert any(row.endswith("loading (×3)") for row in rows)
    assert sorted(row.rpartition(" ")[2] for row in rows if "worker" in row.rpartition(" ")[2]) == [
        "worker:0",
        "worker:1",
        "worker:2",
    ]


def test_json_writes_events_to_stdout_and_the_lines_to_stderr(shell: CommandLine) -> None:
    shell.script("steps.py", STEPS)

    done = shell.run("run", "-n", "2", "--json", "steps.py")

    assert done.code == 0
    events = [json.loads(row) for row in done.out.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "run_started"
    assert events[-1] == events[-1] | {"type": "run_finished", "exit_code": 0}
    assert done.out == (shell.last_run() / "events.jsonl").read_bytes()
    for task in ("worker:0", "worker:1"):
        assert f"{task} │ {task} step 4\n" in done.err


TURNS = """
import os, time
from pathlib import Path
me = int(os.environ["TFCLUSTER_TASK"][-1])
logs = Path(os.environ["TFCLUSTER_HOME"], "runs", os.environ["TFCLUSTER_RUN_ID"], "logs/attempt-1")
for n in range(4):
    other = logs / f"worker-{1 - me}.log"
    while n % 2 == me and n and not (other.exists() and f"turn {n - 1}" in other.read_text()):
        time.sleep(0.02)
    if n % 2 == me:
        time.sleep(0.2)  # a log's times are 0.1 s apart
        print("turn", n, flush=True)
for n in range(40):
    print(os.environ["TFCLUSTER_TASK"], "step", n)
"""


def test_logs_of_an_ended_run_are_what_was_streamed_by_time_or_by_task(shell: CommandLine) -> None:
    shell.script("turns.py", TURNS)
    streamed = shell.run("run", "-n", "2", "turns.py").out

    again = shell.run("logs").out
    by_task = shell.run("logs", "--by-task").out
    tail = shell.run("logs", "--task", "worker:1", "--tail", "5").out
    found = shell.run("logs", "--grep", "step 3[0-9]").out

    assert split_by_task(again) == split_by_task(by_task) == split_by_task(streamed)
    assert len(again) == len(by_task) == len(streamed)
    assert re.findall(rb"turn (\d)", again) == [b"0", b"1", b"2", b"3"]
    assert re.findall(rb"turn (\d)", by_task) == [b"0", b"2", b"1", b"3"]
    assert tail.decode().splitlines() == [f"worker:1 │ worker:1 step {n}" for n in range(35, 40)]
    assert len(found.splitlines()) == 20
    assert b"step 29" not in found
