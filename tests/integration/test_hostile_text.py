"""What tasks, hosts and specs say can harm no screen: foreign escape sequences end here."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from .commandline import CommandLine, screen

CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
"""Writes a command into the clipboard of many terminals."""
HOSTILE = f"a{CLIPBOARD}b\x1b[2J\x1b[31mc\x9b1Ad\x1bP1;1|e\x1b\\f\u202eg\x08\x7f"
OURS = re.compile(r"\x1b\[[0-9;]*m|\r+(?=\n)|\r(?=[^\r\n]*\x1b\[K)|\x1b\[K")
"""Colours, and what keeps the status line at the bottom."""
NOT_PLAIN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def seen_on_a_screen(shell: CommandLine, *words: str) -> tuple[int, str]:
    """The exit code of a command on a terminal, and all that the terminal got."""
    with screen(shell, *words, columns=200) as shown:
        code = shown.read_all()
        return code, shown.seen.decode()


def controls_in(seen: str) -> list[str]:
    """Pieces with characters that are neither text nor ours."""
    text = OURS.sub("", seen)
    return [repr(text[max(0, m.start() - 30) :][:60]) for m in NOT_PLAIN.finditer(text)]


@pytest.fixture
def spec(shell: CommandLine) -> str:
    """Its prepare fails with hostile words; so do its values look."""
    shell.script("task.py", "print('never')")
    shell.script("prepare.py", f"raise SystemExit({HOSTILE!r})")
    job = {"script": "task.py", "args": [HOSTILE], "env": {"GREETING": HOSTILE}, "hooks": "off"}
    shell.spec("s.json", {**job, "prepare": {"script": "prepare.py"}})
    return "s.json"


def test_no_command_passes_on_what_others_put_into_words(shell: CommandLine, spec: str) -> None:
    """Each of these had clipboard and cursor in the hands of who wrote the spec or the script."""
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
        found, seen = seen_on_a_screen(shell, *words)
        assert found == code, seen
        assert controls_in(seen) == [], words
        assert "b␛[2J" not in seen, "what can be taken out is, and not shown as text"


def test_what_is_piped_is_said_without_them_too(shell: CommandLine, spec: str) -> None:
    """A log of a build machine is looked at on a screen later."""
    done = shell.run("up", spec)
    assert done.code == 3
    assert controls_in(done.err) == []
    assert "its last line: abc�1Ad␛P1;1|e␛\\f�g␈␡" in done.err


def test_data_on_a_pipe_is_what_it_is(shell: CommandLine, spec: str) -> None:
    shell.run("up", spec)
    raw = next(shell.last_run().glob("logs/prepare/*.log")).read_bytes()
    assert CLIPBOARD.encode() in raw
    assert shell.run("logs").out == "prepare │ ".encode() + raw
    plan = json.loads(shell.run("plan", spec, "--json").out)
    assert HOSTILE in plan["tasks"][0]["command"]["argv"]


def test_a_plans_variables_can_be_pasted(shell: CommandLine, spec: str) -> None:
    """What a screen shows harmless still is the value, to bash."""
    lines = shell.run("plan", spec, "--task", "worker:0").out.decode().splitlines()
    (export,) = [line for line in lines if line.startswith("export GREETING=")]
    assert controls_in(export) == []
    told = shell.shell(f'{export}\nprintf %s "$GREETING"')
    assert told.out.decode() == HOSTILE
