"""The completion script in a real bash completes commands, and file names for file arguments."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.forked import COMMAND

from .commandline import CommandLine


class Bash:
    """An interactive bash in its own terminal, with the completion script loaded."""

    def __init__(self, line: CommandLine) -> None:
        self._terminal, program = os.openpty()
        path = f"{os.path.dirname(COMMAND)}:{line.env['PATH']}"
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"],
            stdin=program,
            stdout=program,
            stderr=program,
            env=line.env | {"PATH": path, "PS1": "ready> ", "INPUTRC": "/dev/null"},
            cwd=line.cwd,
        )
        os.close(program)
        self.type('eval "$(tfcluster completion bash)"; echo load""ed\n')
        self.read_until("loaded\r\n")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, expected: str, *, timeout: float = 30) -> None:
        seen, deadline = "", time.monotonic() + timeout
        while expected not in seen:
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {expected!r}, and saw {seen!r}"
            if select.select([self._terminal], [], [], left)[0]:
                read = os.read(self._terminal, 4096).decode(errors="replace")
                seen += re.sub(r"\x1b\[[?\d;]*[a-zA-Z]|\x07", "", read)

    def close(self) -> None:
        os.close(self._terminal)  # bash gets SIGHUP
        try:
            self.process.wait(10)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def bash(shell: CommandLine) -> Iterator[Bash]:
    for name in ("cluster-spec.json", "train-it.py", "more-data.csv"):
        (shell.cwd / name).touch()
    bash = Bash(shell)
    yield bash
    bash.close()


def test_tab_completes_commands_and_file_names(bash: Bash) -> None:
    for typed, completed in (
        ("tfcluster vali", "validate "),
        ("tfcluster up cluster-s", "cluster-spec.json "),
        ("tfcluster run -n 2 train-i", "train-it.py "),
        ("tfcluster status cluster-s", "cluster-spec.json "),
        ("tfcluster up cluster-spec.json -- --data more-d", "more-data.csv "),
    ):
        bash.type(f"{typed}\t")
        bash.read_until(completed)
        bash.type("\x15")  # Ctrl-U: the line is empty again
