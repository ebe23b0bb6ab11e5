"""On a screen, a script's lines come without what TensorFlow's native code writes at each start."""

from __future__ import annotations

from pathlib import Path

import pyte
import pytest

from .commandline import CommandLine, screen

NATIVE = Path(__file__).parents[1] / "launcher/ui/native/2.21-worker.log"
SCRIPT = """
import sys
lines = [line[2:] for line in open(sys.argv[1]).read().splitlines()[1:]]
print("importing", *lines, sep="\\n", flush=True)
if "fail" in sys.argv:
    raise ValueError("the data is missing")
print("trained")
"""


def shown(line: CommandLine, *args: str) -> tuple[int, list[str]]:
    """Return the exit code of a command, and the lines that its screen has shown."""
    with screen(line, *args, columns=80, rows=24) as window:
        code = window.read_all()
        history = pyte.HistoryScreen(240, 1000)
        pyte.ByteStream(history).feed(window.seen)
    return code, [row.rstrip() for row in history.display]


@pytest.fixture
def prepared(shell: CommandLine) -> CommandLine:
    shell.script("train.py", SCRIPT)
    return shell


def test_the_first_screen_of_a_run_is_ours_and_the_scripts(prepared: CommandLine) -> None:
    code, rows = shown(prepared, "run", "-n", "2", "train.py", str(NATIVE))
    assert code == 0
    assert not [row for row in rows if ".cc:" in row or "absl::" in row]
    lines = [row.partition(" │ ")[2] for row in rows if row.startswith("worker:0 │ ")]
    assert (lines[0], lines[-1]) == ("importing", "trained")
    assert "epoch 1 loss 0.677890 accuracy 0.796000 learning rate 0.001" in lines
    assert b"port.cc:153] oneDNN" in prepared.log("worker:0"), "the log keeps everything"


def test_everything_is_shown_on_request_and_in_a_pipe(prepared: CommandLine) -> None:
    code, rows = shown(prepared, "run", "-n", "1", "--native-logs", "train.py", str(NATIVE))
    assert code == 0
    native = prepared.log("worker:0").count(b".cc:")
    assert sum(".cc:" in row for row in rows) == native
    assert sum(".cc:" in row for row in shown(prepared, "logs", "--all")[1]) == native
    assert prepared.run("logs").out.count(b".cc:") == native

    _, rows = shown(prepared, "logs")
    assert not [row for row in rows if ".cc:" in row]
    assert any("22 start lines of TensorFlow not shown: --all shows all" in row for row in rows)


def test_nothing_of_a_failed_task_is_left_out_of_its_log(prepared: CommandLine) -> None:
    code, rows = shown(prepared, "run", "-n", "1", "train.py", str(NATIVE), "fail")
    assert code == 1
    assert any("ValueError: the data is missing" in row for row in rows)
    cause = next(n for n, row in enumerate(rows) if row.startswith("root cause: "))
    assert not [row for row in rows[cause:] if ".cc:" in row], "its last lines are the script's"
    assert sum(".cc:" in row for row in shown(prepared, "logs")[1]) == prepared.log(
        "worker:0"
    ).count(b".cc:")
