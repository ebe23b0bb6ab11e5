"""The completion scripts in real shells: bash, zsh and fish, each in a terminal of its own."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest
from tests.forked import COMMAND

from .commandline import CommandLine

# Shell → its command without anybody's settings, and how it loads the script.
SHELLS = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], 'eval "$(tfcluster completion bash)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'autoload -Uz compinit; compinit; bindkey -e; eval "$(tfcluster completion zsh)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "tfcluster completion fish | source"),
}


CONTROLS = re.compile(r"\x1b\][^\x07\x1b]*(\x07|\x1b\\)|\x1b\[[?>\d;]*[a-zA-Z]|\x1b[=>(]B?|\x07")


def strip(read: bytes) -> str:
    """Return what a terminal was sent, without its control sequences."""
    return CONTROLS.sub("", read.decode(errors="replace"))


class Shell:
    """An interactive shell in its own terminal, with the completion script loaded."""

    def __init__(self, name: str, line: CommandLine) -> None:
        command, load = SHELLS[name]
        assert shutil.which(command[0]), f"{command[0]} is not installed"
        self._terminal, program = os.openpty()
        path = f"{os.path.dirname(COMMAND)}:{line.env['PATH']}"
        more = {"PATH": path, "INPUTRC": "/dev/null", "HOME": str(line.root), "TERM": "xterm"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],
            stdin=program,
            stdout=program,
            stderr=program,
            env=line.env | more,
            cwd=line.cwd,
        )
        os.close(program)
        self.type(f'{load}; echo load""ed\n')
        self.read_until("loaded\r\n")

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def read_until(self, expected: str, *, timeout: float = 60) -> str:
        read, deadline = b"", time.monotonic() + timeout
        while expected not in (shown := strip(read)):
            left = deadline - time.monotonic()
            assert left > 0, f"waited for {expected!r}, and saw {shown!r}"
            if select.select([self._terminal], [], [], left)[0]:
                read += os.read(self._terminal, 4096)
        return shown

    def complete(self, typed: str) -> list[str]:
        """Return the words of the line `typed` after a press of Tab."""
        self.type(f"{typed}\t")
        self.type("\x01printf '<%s>' \x05; echo; echo do''ne\n")  # to the start, to the end
        shown = self.read_until("done\r\n")
        assert "Traceback" not in shown
        found = re.findall(r"(<tfcluster>.*)\r?\n", shown)
        assert found, shown
        return re.findall(r"<([^>]*)>", found[-1])

    def close(self) -> None:
        os.close(self._terminal)  # the shell gets SIGHUP
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process.wait()


@pytest.fixture(params=SHELLS)
def interactive(request: pytest.FixtureRequest, shell: CommandLine) -> Iterator[Shell]:
    for name in ("train-it.py", "more data.csv"):
        (shell.cwd / name).touch()
    (shell.cwd / "specs").mkdir()
    shell.spec("specs/night.json", {"command": ["true"]}, workers=1)
    (shell.cwd / "cluster-spec.yaml").write_text(
        "cluster: {chief: 1, worker: [a:1]}\njob: {command: ['true']}\n"
    )
    assert shell.run("run", "-n", "1", "--name", "ended", "--no-python", "true").code == 0
    interactive = Shell(request.param, shell)
    yield interactive
    interactive.close()


def test_tab_completes_commands_options_files_runs_and_tasks(
    interactive: Shell, shell: CommandLine
) -> None:
    run = shell.last_run().name
    for typed, completed in (
        ("tfcluster vali", "validate"),
        ("tfcluster up --back", "--backend"),
        ("tfcluster up --backend do", "docker"),
        ("tfcluster up cluster-s", "cluster-spec.yaml"),
        ("tfcluster plan specs/n", "specs/night.json"),
        ("tfcluster run -n 2 train-i", "train-it.py"),
        ("tfcluster run train-it.py --data more", "more data.csv"),
        ("tfcluster up cluster-spec.yaml -- --data more", "more data.csv"),
        ("tfcluster status cluster-s", "cluster-spec.yaml"),
        ("tfcluster status ended-", run),
        ("tfcluster up --resume ended-", run),
        ("tfcluster init --template para", "parameter-server"),
        ("tfcluster plan cluster-spec.yaml --task ch", "chief:0"),
        ("tfcluster plan cluster-spec.yaml --task worker:", "worker:0"),
        ("tfcluster env cluster-spec.yaml wo", "worker:0"),
        ("tfcluster logs ended --task wor", "worker:0"),
        ("tfcluster completion fi", "fish"),
    ):
        assert interactive.complete(typed)[-1] == completed, typed
    words = interactive.complete("tfcluster plan cluster-spec.yaml --task=worker:")
    assert words[-1] == "--task=worker:0"


def test_nothing_is_completed_where_nothing_fits_and_no_error_is_shown(interactive: Shell) -> None:
    for typed in (
        "tfcluster nosuch x",
        "tfcluster down ended",  # the run is not live
        "tfcluster plan none.json --task wo",
        "tfcluster plan train-it.py --task wo",
        "tfcluster run train-it.py --n",
    ):
        assert interactive.complete(typed) == typed.split()
