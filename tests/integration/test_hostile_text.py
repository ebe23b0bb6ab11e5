"""Escape sequences in the output of tasks, hosts and specs never reach the user's terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .commandline import CommandLine, screen

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
"""An escape sequence that writes a command into the clipboard of many terminals."""
HOSTILE = f"a{CLIPBOARD}b\x1b[2J\x1b[31mc\x9b1Ad\x1bP1;1|e\x1b\\f\u202eg\x08\x7f"
OURS = re.compile(
    r"\x1b\[[0-9;]*m|\r+(?=\n)|\r(?=[^\r\n]*\x1b\[K)|\x1b\[K"
    r"|(?:\x1b\[[0-9]+A)?\r\x1b\[J|\x1b\[C\x1b\[J\r|\x1b\[[0-9]+A\r|\x1b\[\?(?:7|2026)[hl]"
)
"""The sequences of tfcluster itself: colours, and those that keep the live view in place."""
NOT_PLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def run_on_a_terminal(shell: CommandLine, *words: str) -> tuple[int, str]:
    """Run a command on a terminal; return its exit code and all that the terminal received."""
    with screen(shell, *words, columns=200) as shown:
        code = shown.read_all()
        return code, shown.seen.decode()


def controls_in(seen: str) -> list[str]:
    """Return excerpts around control characters that are not tfcluster's own."""
    text = OURS.sub("", seen)
    return [repr(text[max(0, m.start() - 30) :][:60]) for m in NOT_PLAIN.finditer(text)]


@pytest.fixture
def spec(shell: CommandLine) -> str:
    """A spec with hostile values, whose prepare fails with a hostile message."""
    shell.script("task.py", "print('never')")
    shell.script("prepare.py", f"raise SystemExit({HOSTILE!r})")
    job = {"script": "task.py", "args": [HOSTILE], "env": {"GREETING": HOSTILE}, "hooks": "off"}
    shell.spec("s.json", {**job, "prepare": {"script": "prepare.py"}})
    return "s.json"


def test_no_command_passes_foreign_escape_sequences_to_a_terminal(
    shell: CommandLine, spec: str
) -> None:
    """Each of these commands once let the author of spec or script control clipboard and cursor."""
    wrong = json.loads(Path(shell.cwd, spec).read_text()) | {f"key {HOSTILE}": HOSTILE}
    Path(shell.cwd, "wrong.json").write_text(json.dumps(wrong))
    expected = {
        ("plan", spec): 0,
        ("plan", spec, "--task", "worker:0"): 0,
        ("plan", spec, "--json"): 0,
        ("validate", "wrong.json"): 2,
        ("up", spec): 3,
        ("status",): 0,
        ("ps", "-a"): 0,
        ("logs",): 0,
        (f"no{HOSTILE}",): 2,
        ("--debug", "down", f"no{HOSTILE}"): 2,
    }
    for words, code in expected.items():
        found, seen = run_on_a_terminal(shell, *words)
        assert found == code, seen
        assert controls_in(seen) == [], words
        assert "b␛[2J" not in seen, "what can be taken out is, and not shown as text"


def test_messages_on_a_pipe_have_no_escape_sequences_either(shell: CommandLine, spec: str) -> None:
    """The log of a build machine may be shown on a terminal later."""
    done = shell.run("up", spec)
    assert done.code == 3
    assert controls_in(done.err) == []
    assert "its last line: abc�1Ad␛P1;1|e␛\\f�g␈␡" in done.err


def test_task_output_and_json_on_a_pipe_stay_unchanged(shell: CommandLine, spec: str) -> None:
    shell.run("up", spec)
    raw = next(shell.last_run().glob("logs/prepare/*.log")).read_bytes()
    assert CLIPBOARD.encode() in raw
    assert shell.run("logs").out == "prepare │ ".encode() + raw
    plan = json.loads(shell.run("plan", spec, "--json").out)
    assert HOSTILE in plan["tasks"][0]["command"]["argv"]


def test_a_plans_variables_can_be_pasted(shell: CommandLine, spec: str) -> None:
    """The form that is harmless on a terminal still gives bash the original value."""
    lines = shell.run("plan", spec, "--task", "worker:0").out.decode().splitlines()
    (export,) = [line for line in lines if line.startswith("export GREETING=")]
    assert controls_in(export) == []
    printed = shell.shell(f'{export}\nprintf %s "$GREETING"')
    assert printed.out.decode() == HOSTILE
