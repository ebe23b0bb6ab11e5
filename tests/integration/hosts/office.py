"""A user at one machine of the lab who starts runs on other machines and observes them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from tests.integration.run_folder import RunFolder
from tests.lab.machines import Lab, Machine

T = TypeVar("T")
COUNT = """
import os, time
number, release = 0, os.environ["TFCLUSTER_ATTEMPT"] == "1" and os.environ.get("RELEASE")
while number < int(os.environ["COUNT"]) or (release and not os.path.exists(release)):
    os.write(1, f"line {number}\\n".encode())
    number += 1
    time.sleep(0.05)
if release:
    os.write(1, f"released after {number} lines\\n".encode())
"""
"""A job that writes COUNT numbered lines, 20 a second.

With a file RELEASE, its first attempt writes lines until that file exists, and a last one then.
"""

HANG_S = 100.0
"""The longest wait: below the time-out of a test, which would leave the machines running."""


class Office:
    """A desk and hosts for one test (or file of tests), removed at its end."""

    def __init__(self, lab: Lab) -> None:
        self.lab, self.home = lab, lab.machines["home"]
        self.hosts: list[Machine] = []
        self.left: dict[str, Any] = {}
        self.folders_stay = False
        """Set by tests whose run leaves folders on hosts, as after a kill of its coordinator."""
        self._runs: list[subprocess.Popen[str]] = []
        self.desk = self.home.root / f"desk-{len(lab.machines)}"
        self.desk.mkdir()

    def add_hosts(self, count: int) -> list[Machine]:
        used = {int(m.address.rpartition(".")[2]) for m in self.lab.machines.values()}
        for number in [n for n in range(1, 250) if n not in used][:count]:
            self.hosts.append(self.lab.add(f"gpu{number}", number=number))
        return self.hosts

    def write(self, name: str, content: str) -> None:
        path = self.desk / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    def spec(
        self, script: str = COUNT, *, count: int = 20, lasts: bool = False, **sections: Any
    ) -> Path:
        """Write a spec with one worker on each host, on ports that their agents choose.

        With `lasts`, the first attempt goes on until `release`.
        """
        self.write("train.py", script)
        env = {"COUNT": str(count), **({"RELEASE": str(self.desk / "release")} if lasts else {})}
        runtime = {"hosts": {"*": {"python": sys.executable}}}
        spec: dict[str, Any] = {
            "name": "far",
            "cluster": {"worker": [f"{host.address}:0" for host in self.hosts]},
            "job": {"script": "train.py", "hooks": "off", "env": env},
            "runtime": runtime,
            **sections,
        }
        self.write("spec.json", json.dumps(spec))
        return self.seen("spec.json")

    def release(self) -> None:
        """Let the tasks of a spec that `lasts` end; every machine sees the desk at its own path."""
        self.write("release", "")

    def seen(self, name: str) -> Path:
        """Return the path of a file of the desk, as commands that are started there see it."""
        return Path(_home()) / self.desk.name / name

    def start(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        return self.python("-m", "tfcluster.cli.main", *arguments, env=env)

    def python(self, *arguments: str, env: Mapping[str, str] | None = None) -> Run:
        """Start a Python at the desk that can import tfcluster."""
        process = self.home.start(
            [sys.executable, *arguments],
            env={"PYTHONPATH": import_path(), "TERM": "dumb", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._runs.append(process)
        return Run(process, self.home.root / ".local/state/tfcluster/runs")

    def up(self, spec: Path, *more: str, env: Mapping[str, str] | None = None) -> Run:
        return self.start("up", str(spec), *more, env=env)

    def send(self, words: str, number: signal.Signals) -> bool:
        """Send a signal to the desk's processes with `words` in argv; return whether any is there.

        Some end meanwhile: helpers of those that were signalled, and children that are not yet
        what they were started for.
        """
        found = [pid for pid, line in self.home.processes().items() if words in line]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(found)

    def close(self) -> None:
        for process in self._runs:
            if process.poll() is None:
                # Our own child process is only a wrapper of it.
                self.send("tfcluster.cli.main", signal.SIGKILL)
            process.communicate()
        for host in self.hosts:
            if host.process.poll() is None:
                self._check(host)
            self.lab.remove(host)
        shutil.rmtree(self.desk)
        shutil.rmtree(self.home.root / ".local", ignore_errors=True)

    def _check(self, host: Machine) -> None:
        """Note processes, sockets and run folders that the runs have left on the host."""
        deadline = time.monotonic() + HANG_S / 3
        while (processes := host.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        nodes = host.root / ".cache" / "tfcluster" / "nodes"
        files = [str(path) for path in nodes.rglob("*")] if nodes.is_dir() else []
        if processes or (files and not self.folders_stay):
            self.left[host.name] = (processes, files)


class Run(RunFolder):
    """A `tfcluster` command that was started at a desk, and its run in the folder `runs`."""

    def __init__(self, process: subprocess.Popen[str], runs: Path) -> None:
        self._process, self._runs = process, runs
        self.said = ""
        self.name = "far"
        """The name in the spec, with which the name of the run folder begins."""

    def end(self, hang_s: float = HANG_S) -> int:
        """Wait until the command has ended and return its exit code; its output is in `said`."""
        if not self.said:
            self.said = self._process.communicate(timeout=hang_s)[0]
        return self._process.returncode

    @property
    def folder(self) -> Path:
        pattern = f"{self.name}-*/state.json"
        found: list[Path] = until(lambda: list(self._runs.glob(pattern)), "a run")
        return found[0].parent

    @property
    def waits_for(self) -> str:
        """What the run waits for, as `status` shows it."""
        return self.state()["waits_for"] or ""

    def wait_for_line(self, text: str, *tasks: str) -> None:
        """Wait until each of `tasks` has written a line with `text`."""
        for task in tasks:
            until(
                lambda task=task: self.has_line(text, task) or self._is_over(),  # type: ignore[misc]
                f"{text!r} of {task}",
            )
            assert self.has_line(text, task), self.said

    def _is_over(self) -> bool:
        if self._process.poll() is None:
            return False
        self.end()
        return True

    def wait_for_event(self, kind: str, hang_s: float = HANG_S) -> dict[str, Any]:
        until(lambda: self.of_type(kind) or self._is_over(), f"an event {kind}", hang_s)
        found = self.of_type(kind)
        assert found, f"no {kind}: {self.said}"
        return found[0]


def until(look: Callable[[], Any], what: str, hang_s: float = HANG_S) -> Any:
    """Call `look` until it returns something true, and return that."""
    deadline = time.monotonic() + hang_s
    while not (found := look()):
        assert time.monotonic() < deadline, f"{what} did not come"
        time.sleep(0.05)
    return found


def one(look: Callable[[], Iterable[T]], what: str) -> T:
    """Wait until `look` finds exactly one thing, and return it.

    A process that is starting another one has for a moment a child with its own command line.
    """
    found: list[T] = until(lambda: len(now := [*look()]) == 1 and now, f"one {what}")
    return found[0]


def numbered(count: int) -> list[str]:
    """Return all lines that `COUNT` writes."""
    return [f"line {number}" for number in range(count)]


def is_whole(log: str) -> bool:
    """Return whether a log is all that `COUNT` writes until it is released."""
    count = max(0, len(log.splitlines()) - 1)
    return log.splitlines() == [*numbered(count), f"released after {count} lines"]


def _home() -> str:
    return str(Path("~").expanduser())


def import_path() -> str:
    """Return a PYTHONPATH to the launcher under test, even if another one is installed."""
    found = [importlib.util.find_spec(name) for name in ("tfcluster", "tfcluster_workers")]
    return ":".join(str(Path(spec.origin or "").parents[1]) for spec in found if spec is not None)
