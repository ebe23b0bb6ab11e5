"""`tfcluster` commands as forks of one Python that has imported everything already.

Starting a Python and importing the launcher takes most of the time of a short command, and the
tests start hundreds. A fork looks like a new process to a test: it has its own process id,
arguments, environment, folder, descriptors, signals, terminal and exit status. It differs in its
memory, its time and `/proc/PID/environ`, and in what `differs` checks; tests of those start the
installed command (`CommandLine.forks`).
"""

from __future__ import annotations

import inspect
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

COMMAND = str(Path(sys.executable).with_name("tfcluster"))
SERVER = Path(__file__).with_name("fork_server.py")
DROPPED = (
    "CI",
    "COLUMNS",
    "CONDA_PREFIX",
    "NO_COLOR",
    "PYTHONPATH",
    "TFCLUSTER_HOME",
    "TF_CONFIG",
)
"""Variables of the developer's environment that would change the results of tests."""


def outer_environment() -> dict[str, str]:
    """Return the environment without the variables that would change the results of tests."""
    return {name: value for name, value in os.environ.items() if name not in DROPPED}


def read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that an interpreter reads at its start."""
    found = env.items()
    return {name: value for name, value in found if name.startswith(("PYTHON", "LC_", "LANG"))}


def differs(env: Mapping[str, str]) -> bool:
    """Return whether an interpreter would start differently in `env` than the server did."""
    return read_at_start(env) != read_at_start(outer_environment())


class ForkServer:
    """The client of the fork server, which runs from the first command to the end of the tests.

    Several threads of a test may use it at once.
    """

    def __init__(self) -> None:
        self._one_order = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(
        self, args: Sequence[str], *, terminal: bool = False, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start a command like `Popen`; `terminal`: stdin becomes its controlling terminal."""
        return _Forked(self, [COMMAND, *args], terminal=terminal, **options)

    def fork(self, order: Mapping[str, Any], fds: Sequence[int]) -> int:
        """Request a fork; return the new process's id."""
        with self._one_order:
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


class PlainStarts(ForkServer):
    """The same without forks, for macOS, whose libraries do not survive them."""

    def start(
        self, args: Sequence[str], *, terminal: bool = False, **options: Any
    ) -> subprocess.Popen[bytes]:
        assert not terminal
        return subprocess.Popen([sys.executable, "-m", "tfcluster", *args], **options)


class _Forked(subprocess.Popen[bytes]):
    """A Popen whose process is a fork of the server; the server reports its exit status."""

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
        """Return process id and status, or 0, 0 while it runs, like waitpid."""
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
