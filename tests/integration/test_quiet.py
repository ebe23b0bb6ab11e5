"""A script's lines come without what TensorFlow's native code writes at each start."""

from __future__ import annotations

from pathlib import Path

import pyte

from .commandline import CommandLine, screen
from .streams import split_by_task

NATIVE = Path(__file__).parents[1] / "launcher/ui/native/2.21-worker.log"
SCRIPT = """
import sys
lines = [line[2:] for line in open(sys.argv[1]).read().splitlines()[1:]]
print("importing", *lines, sep="\\n", flush=True)
print("trained")
"""


def test_the_first_screen_of_a_run_is_ours_and_the_scripts(shell: CommandLine) -> None:
    shell.script("train.py", SCRIPT)
    args = ("run", "-n", "2", "train.py", str(NATIVE))
    with screen(shell, *args, columns=80, rows=24) as window:
        assert window.read_all() == 0
        history = pyte.HistoryScreen(240, 1000)
        pyte.ByteStream(history).feed(window.seen)
    rows = [row.rstrip() for row in history.display]
    assert not [row for row in rows if ".cc:" in row or "absl::" in row]
    lines = [row.partition(" │ ")[2] for row in rows if row.startswith("worker:0 │ ")]
    assert (lines[0], lines[-1]) == ("importing", "trained")
    assert "epoch 1 loss 0.677890 accuracy 0.796000 learning rate 0.001" in lines
    assert b"port.cc:153] oneDNN" in shell.log("worker:0"), "the log keeps everything"


def test_a_pipe_gets_the_same_lines_and_all_on_request(shell: CommandLine) -> None:
    shell.script("train.py", SCRIPT)
    piped = shell.run("run", "-n", "2", "train.py", str(NATIVE)).out
    again, complete = shell.run("logs"), shell.run("logs", "--native-logs")
    assert b".cc:" not in piped
    assert b"absl::" not in piped
    assert split_by_task(again.out) == split_by_task(piped)
    assert "start lines of TensorFlow not shown: --native-logs shows all" in again.err
    assert split_by_task(complete.out)["worker:0"] == shell.log("worker:0")
    assert complete.err == ""
