"""Tasks do not wait for a slow or stopped reader of their lines, and no line is lost or torn."""

from __future__ import annotations

import os
import re

from .commandline import CommandLine, screen, wait_for
from .streams import WRITER, expected_log, split_by_task

WORKERS, LINES = 4, 20_000
"""7 MB: far more than a pipe or a terminal holds."""
TASKS = [f"worker:{n}" for n in range(WORKERS)]
PIECES = """
import os, random, sys, time
random.seed(os.environ["TFCLUSTER_TASK"])
task = os.environ["TFCLUSTER_TASK"]
lines = ["", "naïve “café” 学習", "tab\\tand │ bar", "x" * 5000, "y" * 600_000, "│" * 300_000]
text = "".join(f"{task} {n} {random.choice(lines[: 6 if n % 400 == 7 else 4])}\\n"
               for n in range(2000)).encode()
with open(f"written-{task[-1]}", "wb") as file:
    file.write(text + b"no newline at the end\\n")
at = 0
while at < len(text):
    at += os.write(1, text[at : at + random.choice((1, 3, 80, 2000, 100_000))])
    if random.random() < 0.01:
        time.sleep(0.002)
os.write(1, b"no newline at the end")
"""


def exits(shell: CommandLine) -> list[str]:
    """Return the tasks that have ended."""
    if not shell.runs() or not (shell.last_run() / "events.jsonl").exists():
        return []
    lines = (shell.last_run() / "events.jsonl").read_text().split("\n")[:-1]
    return [task for line in lines if '"task_exited"' in line for task in TASKS if task in line]


def assert_logs_are_whole(shell: CommandLine) -> None:
    for task in TASKS:
        assert shell.log(task) == expected_log(task, LINES)


def test_a_stopped_reader_delays_no_task_and_gets_every_line_later(
    shell: CommandLine,
) -> None:
    shell.script("writer.py", WRITER)
    run = shell.start("run", "-n", str(WORKERS), "writer.py", str(LINES))

    wait_for(lambda: len(exits(shell)) == WORKERS, what="all tasks, while nobody reads")
    assert_logs_are_whole(shell)
    assert run.poll() is None, "the rest of the lines still waits for its reader"
    out, err = run.communicate(timeout=200)

    assert run.returncode == 0, err
    assert split_by_task(out) == {task: expected_log(task, LINES) for task in TASKS}


def test_a_terminal_stopped_with_ctrl_s_delays_no_task_and_shows_every_line_later(
    shell: CommandLine,
) -> None:
    shell.script("writer.py", WRITER)
    with screen(shell, "run", "-n", str(WORKERS), "writer.py", str(LINES)) as window:
        window.type(b"\x13")
        wait_for(lambda: len(exits(shell)) == WORKERS, what="all tasks, at a stopped terminal")
        assert_logs_are_whole(shell)
        window.type(b"\x11")
        assert window.read_all() == 0

    text = re.sub(rb"\x1b\[[0-9;]*[mK]", b"", window.seen)
    for task in TASKS:
        shown = re.findall(rf"{task} │ ({task} .*)\r\n".encode(), text)
        assert b"".join(line + b"\n" for line in shown) == expected_log(task, LINES)


def test_lines_written_in_pieces_of_any_size_stay_whole_in_order_and_attributed(
    shell: CommandLine,
) -> None:
    shell.script("pieces.py", PIECES)
    run = shell.start("run", "-n", str(WORKERS), "pieces.py")
    assert run.stdout is not None

    merged = bytearray()
    while bite := os.read(run.stdout.fileno(), 4093):
        merged += bite

    assert run.wait(30) == 0
    written = {task: (shell.cwd / f"written-{task[-1]}").read_bytes() for task in TASKS}
    assert split_by_task(bytes(merged)) == written
    for task, text in written.items():
        assert shell.log(task) + b"\n" == text
