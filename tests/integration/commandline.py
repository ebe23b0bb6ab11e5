"""Starts `tfcluster` as a user's shell does: a real process with its own home and folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import psutil
from tests.forked import COMMAND, ForkServer, differs, outer_environment

_T = TypeVar("_T")
_FORKABLE = {"stdin", "stdout", "stderr", "env", "cwd"}
"""Popen options that the fork server supports; any other starts the installed command."""


@dataclass(frozen=True, slots=True)
class Done:
    """The exit code and output of a command that has ended."""

    code: int
    out: bytes
    err: str


@dataclass(slots=True)
class CommandLine:
    """Starts commands in `cwd`; `clean_up` kills the processes that they left."""

    root: Path
    """A short path, because sockets are made below it."""
    server: ForkServer | None = None
    patience_s: float = 120.0
    """Seconds after which a command, or what it is to do, counts as hung."""
    forks: bool = True
    """Lets the fork server (if any) start commands; False for tests that measure the command."""
    is_doubtful: bool = False
    """True where runs may stall or give alerts; elsewhere `clean_up` fails the test."""
    env: dict[str, str] = field(init=False)
    cwd: Path = field(init=False)
    started: list[subprocess.Popen[bytes]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.cwd = self.root / "work"
        for folder in (self.cwd, self.root / "run"):
            folder.mkdir()
        self.env = outer_environment() | {
            "TFCLUSTER_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "VIRTUAL_ENV": sys.prefix,
            "TERM": "xterm-256color",
            "TFCLUSTER_TEST_ROOT": str(self.root),
        }

    @property
    def home(self) -> Path:
        return self.root / "home"

    def script(self, name: str, text: str) -> Path:
        """Write a stub job into the current folder."""
        path = self.cwd / name
        path.write_text(text)
        return path

    def spec(self, name: str, job: Mapping[str, Any], *, workers: int = 2, **more: Any) -> Path:
        """Write a spec file into the current folder."""
        value = {"version": 1, "name": "s", "cluster": {"worker": workers}, "job": job, **more}
        path = self.cwd / name
        path.write_text(json.dumps(value))
        return path

    def start(self, *args: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start `tfcluster ARGS` with pipes, unless `options` (those of Popen) say otherwise."""
        known: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        known |= {"stdin": subprocess.DEVNULL, "env": self.env, "cwd": self.cwd} | options
        server = self._server() if known.keys() <= _FORKABLE else None
        process: subprocess.Popen[bytes] = (
            server.start(args, **known) if server else subprocess.Popen([COMMAND, *args], **known)
        )
        self.started.append(process)
        return process

    def start_on(self, terminal: int, *args: str) -> subprocess.Popen[bytes]:
        """Start `tfcluster ARGS` with `terminal` as its streams and controlling terminal."""
        known: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
        known |= {"env": self.env, "cwd": self.cwd}
        if server := self._server():
            return server.start(args, terminal=True, **known)
        return subprocess.Popen(["setsid", "--ctty", COMMAND, *args], **known)

    def _server(self) -> ForkServer | None:
        return self.server if self.forks and not differs(self.env) else None

    def run(self, *args: str, timeout: float | None = None, **options: Any) -> Done:
        """Run `tfcluster ARGS` to its end; `input` may be given as bytes."""
        given = options.pop("input", None)
        if given is not None:
            options["stdin"] = subprocess.PIPE
        process = self.start(*args, **options)
        out, err = process.communicate(given, timeout=timeout or self.patience_s)
        return Done(process.returncode, out or b"", (err or b"").decode(errors="replace"))

    def shell(self, script: str, *, timeout: float = 120) -> Done:
        """Run a line of bash in which `tfcluster` is the installed command."""
        env = self.env | {"PATH": f"{Path(COMMAND).parent}:{self.env['PATH']}"}
        return self._complete(["bash", "-c", script], env, timeout)

    def python(self, *args: str, timeout: float = 240) -> Done:
        """Run a Python program to its end."""
        return self._complete([sys.executable, *args], self.env, timeout)

    def _complete(self, argv: Sequence[str], env: Mapping[str, str], timeout: float) -> Done:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.started.append(process)
        out, err = process.communicate(timeout=timeout)
        return Done(process.returncode, out, err.decode(errors="replace"))

    # -- results of a run

    def runs(self) -> list[Path]:
        return sorted((self.home / "runs").glob("*"))

    def last_run(self) -> Path:
        return max(self.runs(), key=lambda run: run.stat().st_mtime_ns)

    def events(self) -> list[dict[str, Any]]:
        return read_events(self.last_run())

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.last_run() / "state.json").read_text())
        return state

    def log(self, task: str) -> bytes:
        return (
            self.last_run() / "logs" / "attempt-1" / f"{task.replace(':', '-')}.log"
        ).read_bytes()

    # -- clean-up

    def left(self) -> list[psutil.Process]:
        """Return the live processes with our mark: tasks, agents, guards, coordinators."""
        mark = f"TFCLUSTER_TEST_ROOT={self.root}".encode()
        found = []
        # psutil would parse the environment of every process on this machine.
        for pid in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, psutil.Error):
                if mark in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                    process = psutil.Process(int(pid))
                    if process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def clean_up(self) -> None:
        """Kill all leftover processes; fail if commands that had ended left any."""
        ended = all(process.poll() is not None for process in self.started)
        if ended:
            self._await_coordinators()
        left = self.left() if ended else []
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        for orphan in left if ended else self.left():
            with contextlib.suppress(psutil.Error):
                orphan.kill()
        assert not left, f"a command has ended and left {left}"
        assert self.is_doubtful or not (found := self._doubts()), f"nothing was wrong: {found}"

    def _await_coordinators(self) -> None:
        """Wait for those of ended runs: in the background they report the end, and then exit."""
        ended = set[int]()
        for path in self.home.glob("runs/*/state.json"):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                state = json.loads(path.read_text())
                if state["exit_code"] is not None:
                    ended.add(state["pid"])
        with contextlib.suppress(AssertionError):  # then it is one of those that are left
            wait_for(lambda: not any(each.pid in ended for each in self.left()), timeout=20)

    def _doubts(self) -> list[dict[str, Any]]:
        """Return the events of all runs that tell of a stall or an alert without a cause.

        A coordinator of parameter servers may wait long until it is connected again to a worker
        that has started anew: TensorFlow holds its lock meanwhile.
        """
        doubts = list[dict[str, Any]]()
        for log in self.home.glob("runs/*/events.jsonl"):
            lines = log.read_text(errors="replace").splitlines()
            events = map(json.loads, filter(_DOUBTS.search, lines))
            kinds = {"alert", "stalled"}
            for event in events:
                if event["type"] == "restarting" and event.get("task"):
                    kinds.discard("stalled")
                elif event["type"] in kinds:
                    doubts.append(event)
        return doubts


_DOUBTS = re.compile(r'"(alert|stalled|restarting)"')


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return the complete events of a run: the last line may still be incomplete."""
    lines = (folder / "events.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def wait_for(look: Callable[[], _T], *, timeout: float = 120, what: str = "") -> _T:
    """Call `look` until it returns something true, and return that."""
    deadline = time.monotonic() + timeout
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {timeout} s for {what or look}"
        time.sleep(0.02)
    return found


class Screen:
    """A terminal window: the controlling terminal of one `tfcluster` command."""

    def __init__(
        self, line: CommandLine, args: Sequence[str], *, columns: int = 100, rows: int = 30
    ) -> None:
        self._user, program = os.openpty()
        fcntl.ioctl(program, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns, self.rows = columns, rows
        self.process = line.start_on(program, *args)
        os.close(program)
        self.seen = b""

    def type(self, keys: bytes) -> None:
        os.write(self._user, keys)

    def local_modes(self) -> int:
        """Return the modes of the terminal that `termios.ECHO` is one of."""
        modes: int = termios.tcgetattr(self._user)[3]
        return modes

    def read(self, seconds: float) -> bool:
        """Read output for `seconds`; return False once the program has closed its end."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._user], [], [], left)[0]:
                break
            try:
                self.seen += os.read(self._user, 1 << 16)
            except OSError:
                return False
        return True

    def read_all(self, timeout: float = 120) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + timeout
        while self.read(0.2):
            assert time.monotonic() < deadline, self.seen[-2000:]
        return self.process.wait(60)

    def close(self) -> None:
        os.close(self._user)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()


@contextlib.contextmanager
def screen(line: CommandLine, *args: str, columns: int = 100, rows: int = 30) -> Iterator[Screen]:
    """Open a terminal for the block, then close it as closing its window would."""
    shown = Screen(line, args, columns=columns, rows=rows)
    try:
        yield shown
    finally:
        shown.close()
