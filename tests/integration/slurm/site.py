"""A user of a Slurm cluster, who starts runs on its login node and observes them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.integration.hosts.office import COUNT, HANG_S, Run, import_path, until
from tests.lab.slurm import PATH, SlurmCluster
from tests.lab.slurm_files import USERS

STUBBORN = """
import signal, time
from tfcluster_workers import reporting
signal.signal(signal.SIGTERM, signal.SIG_IGN)
reporting.saves_on_sigterm()
print("deaf", flush=True)
time.sleep(3600)
"""
"""A job that ignores SIGTERM, for the whole grace time and not for ten seconds of it."""


class Site:
    """A folder of one user for one test, removed at its end."""

    def __init__(self, cluster: SlurmCluster, user: str = "ann") -> None:
        self.cluster, self.user = cluster, user
        self.desk = cluster.home(user) / "work"
        self.desk.mkdir()
        os.chown(self.desk, USERS[user], USERS[user])
        self._started: list[subprocess.Popen[str]] = []
        self.files_before = self.files(*cluster.names)

    def write(self, name: str, content: str) -> Path:
        path = self.desk / name
        path.write_text(content)
        os.chown(path, USERS[self.user], USERS[self.user])
        return path

    def spec(
        self, script: str = COUNT, *, count: int = 20, lasts: bool = False, **sections: Any
    ) -> Path:
        """Write a spec of two workers; with `lasts`, their first attempt goes on to `release`."""
        self.write("train.py", script)
        env = {"COUNT": str(count), **({"RELEASE": str(self.desk / "release")} if lasts else {})}
        spec: dict[str, Any] = {
            "name": "far",
            "cluster": {"worker": 2},
            "job": {"script": "train.py", "hooks": "off", "env": env},
            **sections,
        }
        return self.write("spec.json", json.dumps(spec))

    def release(self) -> None:
        """Let the tasks of a spec that `lasts` end."""
        self.write("release", "")

    def start(
        self,
        *arguments: str,
        within: Sequence[str] = (),
        at: str = "login",
        env: Mapping[str, str] | None = None,
    ) -> Run:
        """Start `tfcluster ARGUMENTS`; `within`: a command for it, such as `salloc -N2`."""
        return self.python("-m", "tfcluster.cli.main", *arguments, within=within, at=at, env=env)

    def python(
        self,
        *arguments: str,
        within: Sequence[str] = (),
        at: str = "login",
        env: Mapping[str, str] | None = None,
    ) -> Run:
        """Start a Python that can import tfcluster."""
        activated = {"PATH": f"{Path(sys.executable).parent}:{PATH}", "PYTHONPATH": import_path()}
        process = self.cluster.start(
            [*within, sys.executable, *arguments],
            user=self.user,
            at=at,
            cwd=self.desk,
            env={**activated, "TERM": "dumb", **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._started.append(process)
        return Run(process, self.cluster.home(self.user) / ".local/state/tfcluster/runs")

    def up(self, spec: Path, *more: str, within: Sequence[str] = (), **where: Any) -> Run:
        return self.start("up", str(spec), *more, within=within, **where)

    def tasks(self) -> dict[int, str]:
        """Return this machine's pid → command line of every process on a node but Slurm's own."""
        found: dict[int, str] = {}
        for name in self.cluster.names:
            if name in self.cluster.lab.machines:
                found |= self.cluster.processes(name)
        # Where slurmctld was away, a step's daemon stays for long to report the end of the step.
        return {pid: words for pid, words in found.items() if "slurmstepd" not in words}

    def files(self, *nodes: str) -> set[str]:
        """Return the files in the /tmp of nodes."""
        machines = self.cluster.lab.machines
        folders = [machines[node].folder / "tmp" for node in nodes if node in machines]
        return {str(path) for folder in folders for path in folder.rglob("*") if not path.is_dir()}

    def close(self) -> None:
        """Kill what is still running; fails if commands that had ended left processes."""
        ended = all(process.poll() is not None for process in self._started)
        try:
            if ended:
                until(lambda: not self.tasks(), f"the end of {self.tasks()}", HANG_S / 3)
        finally:
            self._kill()
            shutil.rmtree(self.desk)
            shutil.rmtree(self.cluster.home(self.user) / ".local", ignore_errors=True)

    def _kill(self) -> None:
        for pid, words in self.cluster.login.processes().items():
            if "tfcluster.cli.main" in words:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.communicate()
