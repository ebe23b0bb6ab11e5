"""`tfcluster` commands as forks of one Python that has imported everything already.

To start a Python and to import the launcher takes most of the time of a short command, and the
tests start hundreds. A fork has everything a test can see: its own process id, arguments,
environment, folder, descriptors, signals, terminal and exit status. It lacks what
`differs` tells and what belongs to the program as a file: memory, time, and `/proc/PID/environ`;
tests of those start the installed command (`CommandLine.forks`).
"""

from __future__ import annotations

import inspect
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("tfcluster"))
SERVER = Path(__file__).with_name("fork_server.py")
DROPPED = ("CI", "NO_COLOR", "COLUMNS", "CONDA_PREFIX", "PYTHONPATH", "TF_CONFIG")
"""Variables of whoever starts the tests that would change what they see."""


def outer_environment() -> dict[str, str]:
    """The environment of the tests without what would change them."""
    return {name: value for name, value in os.environ.items() if name not in DROPPED}


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """What an interpreter heeds before it runs anything."""
    found = env.items()
    return {name: value for name, value in found if name.startswith(("PYTHON", "LC_", "LANG"))}


def differs(env: Mapping[str, str]) -> bool:
    """Whether an interpreter would start otherwise in `env` than the server has."""
    return read_at_start(env) != read_at_start(outer_environment())


class ForkServer:
    """Started by the first command; ends with the tests."""

    def __init__(self) -> None:
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, args: Sequence[str], *, terminal: bool = False, **options: Any
    ) -> subprocess.Popen[bytes]:
        """As `Popen` with these arguments; `terminal`: stdin becomes the controlling one."""
        return _Forked(self, [COMMAND, *args], terminal=terminal, **options)

    def fork(self, order: Mapping[str, Any], fds: Sequence[int]) -> int:
        """The id of the new process."""
        control = self._control or self._connect()
        socket.send_fds(control, [json.dumps(order).encode()], fds)
        return int(control.recv(16))

    def _connect(self) -> socket.socket:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, SERVER, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=outer_environment(),
                stdin=subprocess.DEVNULL,
            )
        return self._control

    def close(self) -> None:
        if self._control is not None and self._process is not None:
            self._control.close()
            self._process.wait(10)


class _Forked(subprocess.Popen[bytes]):
    """A Popen whose process is made by the server, and whose end the server tells."""

    def __init__(
        self, server: ForkServer, args: Sequence[str], *, terminal: bool, **options: Any
    ) -> None:
        self._server, self._terminal = server, terminal
        super().__init__(args, **options)

    def _execute_child(self, *args: Any) -> None:
        execute = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
        given = execute.bind(self, *args).arguments
        self._ended, theirs = os.pipe()
        order = {
            "argv": [os.fspath(arg) for arg in given["args"]],
            "env": given["env"],
            "cwd": os.fspath(given["cwd"]),
            "terminal": self._terminal,
        }
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        fds = [own if end == -1 else end for own, end in enumerate(ends)]
        try:
            self.pid = self._server.fork(order, [*fds, theirs])
        finally:
            os.close(theirs)
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))  # type: ignore[attr-defined]

    def _try_wait(self, flags: int) -> tuple[int, int]:
        """As waitpid: 0 instead of the process while it runs."""
        if flags & os.WNOHANG and not select.select([self._ended], [], [], 0)[0]:
            return 0, 0
        status = os.read(self._ended, 16)
        os.close(self._ended)
        assert status, "the fork server has ended"
        return self.pid, int(status)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None and (ended := self._try_wait(os.WNOHANG))[0]:
            self._handle_exitstatus(ended[1])  # type: ignore[attr-defined]
        return self.returncode
