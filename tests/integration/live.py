"""A live run as a second terminal sees it: its folder, its processes, its ports."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from .commandline import CommandLine, wait_for
from .run_folder import RunFolder

FAMILY = """
import json, multiprocessing, os, socket, subprocess, time
config, name = json.loads(os.environ["TF_CONFIG"]), os.environ["TFCLUSTER_TASK"]
kind, index = name.split(":")
host, port = config["cluster"][kind][int(index)].rsplit(":", 1)
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind((host, int(port)))
listener.listen()
multiprocessing.set_start_method("fork")
child = multiprocessing.Process(target=time.sleep, args=(300,))
child.start()
shell = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 300; :"])
facts = {"port": int(port), "pids": [os.getpid(), child.pid, shell.pid]}
os.write(1, f"family {json.dumps(facts)} whole\\n".encode())
while not os.path.exists("finish"):
    time.sleep(0.05)
child.kill()
shell.kill()
"""
"""A job that listens where TensorFlow would, with two children that outlive its own SIGTERM.

It exits with 0 once its working directory holds a file called ``finish``.
"""


class Live(RunFolder):
    """A `tfcluster up` or `run` with its own run name; its output goes to files."""

    def __init__(
        self, shell: CommandLine, command: str, *args: str, name: str = "r", **options: Any
    ) -> None:
        self.shell, self.name = shell, name
        self.out, self.err = shell.root / f"{name}.out", shell.root / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process: subprocess.Popen[bytes] = shell.start(
                command, "--name", name, *args, stdout=out, stderr=err, **options
            )

    @property
    def folder(self) -> Path:
        def look() -> list[Path]:
            return list(self.shell.home.glob(f"runs/{self.name}-*/state.json"))

        what = f"a run called {self.name}; {self.said()}"
        return wait_for(look, timeout=self.shell.patience_s, what=what)[0].parent

    @property
    def run_id(self) -> str:
        return self.folder.name

    def said(self) -> str:
        """Return what the command has written to stderr so far."""
        return self.err.read_text(errors="replace")

    def agents(self) -> tuple[int, int]:
        """Return the process ids of the only node's agent and guard."""
        (agent,) = wait_for(lambda: self.state()["agents"], what="the agent").values()
        return agent["pid"], agent["guard_pid"]

    def wait_for_line(self, text: str, *tasks: str) -> None:
        """Wait until each of `tasks` has written a line with `text`."""
        for task in tasks or ("worker:0", "worker:1"):
            wait_for(
                lambda task=task: self.has_line(text, task) or self.is_over(),  # type: ignore[misc]
                timeout=self.shell.patience_s,
                what=f"{text!r} of {task}; {self.said()}",
            )
            assert self.has_line(text, task), self.said()

    def is_over(self) -> bool:
        return self.process.poll() is not None

    def end(self, timeout: float | None = None) -> int:
        """Wait until the command has ended, and return its exit code."""
        try:
            return self.process.wait(timeout or self.shell.patience_s)
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"{late}: {self.said()}") from None

    def end_timed(self, *signals: signal.Signals, timeout: float = 120) -> tuple[int, float]:
        """Send these signals and wait until the command has ended.

        Return its exit code and the seconds from before the first signal.
        """
        since = time.monotonic()
        for number in signals:
            self.process.send_signal(number)
        return self.process.wait(timeout), time.monotonic() - since


class Family:
    """The processes and ports of a run of `FAMILY`."""

    def __init__(self, run: Live, tasks: Sequence[str] = ("worker:0", "worker:1")) -> None:
        run.wait_for_line(" whole", *tasks)
        self.pids: list[int] = []
        self.ports: list[int] = []
        for task in tasks:
            line = next(line for line in run.log(task).splitlines() if line.startswith("family"))
            facts = json.loads(line.removeprefix("family ").removesuffix(" whole"))
            self.pids += facts["pids"]
            self.ports.append(facts["port"])

    def living(self) -> list[int]:
        return [pid for pid in self.pids if is_alive(pid)]

    def assert_gone(self, within_s: float = 20.0) -> float:
        """Wait until no process lives and every port is free; return the seconds that took.

        `within_s` is a guard against a hang: docs/benchmarks.md has the time it takes.
        """
        since = time.monotonic()
        while living := self.living():
            assert time.monotonic() - since < within_s, f"alive after {within_s} s: {living}"
            time.sleep(0.005)
        while taken := [port for port in self.ports if not is_free(port)]:
            assert time.monotonic() - since < within_s, f"taken after {within_s} s: {taken}"
            time.sleep(0.005)
        return time.monotonic() - since


def is_alive(pid: int) -> bool:
    """Return whether the process is alive; a zombie is not: it holds nothing."""
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def is_free(port: int) -> bool:
    """Return whether another process could bind the port exclusively."""
    with socket.socket() as probe:
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
    return True


def _own_ports() -> Iterator[int]:
    """Yield ports that only this process of the tests gives to its tests, again and again.

    They are below the ranges from which the kernel and Kubernetes give ports to whoever asks. Who
    has bound the first port of a block has the block.
    """
    for first in range(20_000, 30_000, _BLOCK):
        with socket.socket() as claim:
            try:
                claim.bind(("0.0.0.0", first))
            except OSError:
                continue
            yield from itertools.cycle(range(first + 1, first + _BLOCK))
    raise AssertionError("other processes of tests have all ports")


_BLOCK = 400
_ports = _own_ports()


def free_ports(count: int) -> list[int]:
    """Return ports in a row that no process has, and that no other test takes meanwhile."""
    while True:
        ports = [next(_ports) for _ in range(count)]
        if ports[-1] - ports[0] == count - 1 and all(map(is_free, ports)):
            return ports


def the_status(shell: CommandLine, run: str) -> dict[str, Any]:
    done = shell.run("status", "--json", run)
    assert done.code == 0, done.err
    status: dict[str, Any] = json.loads(done.out)
    return status


class InBackground(Live):
    """A `tfcluster up -d` or `run -d` that has returned; its run continues."""

    def __init__(
        self, shell: CommandLine, command: str, *args: str, name: str = "r", **options: Any
    ) -> None:
        super().__init__(shell, command, "-d", *args, name=name, **options)
        assert self.process.wait(self.shell.patience_s) == 0, self.said()
        self.id = self.out.read_text().strip()

    @property
    def folder(self) -> Path:
        return self.shell.home / "runs" / self.id

    def is_over(self) -> bool:
        return self.state()["status"] not in ("starting", "running", "restarting", "stopping")

    def coordinator(self) -> int:
        return int(self.state()["pid"])

    def down(self) -> None:
        done = self.shell.run("down", self.id)
        assert done.code == 0, done.err
