"""Records how TensorFlow behaves when a peer fails, with a hand-set TF_CONFIG and no launcher.

    .venv/bin/python -m tests.integration.faults.bare            # rewrite recordings.json

`recordings.json` keeps the observations; stub workers replay them and a test compares them with
real TensorFlow.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.integration.faults.seen import Observation, observe
from tests.integration.live import free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PYTHONS = {"newest": ROOT / ".venv/bin/python", "tf215": ROOT / ".venv-tf215/bin/python"}
RECORDINGS = HERE / "recordings.json"
TASKS = ("worker:0", "worker:1")
HANG_S = 280.0


@dataclass(slots=True)
class Process:
    """The process of one task, and its log."""

    popen: subprocess.Popen[bytes]
    log: Path
    ended_at: float | None = None

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def observe(self, since: float) -> Observation:
        delay_s = None if self.ended_at is None else round(self.ended_at - since, 1)
        return observe(self.popen.returncode, self.text(), delay_s)

    def fault_at(self) -> float | None:
        found = re.search(r"^fault \S+ at ([\d.]+)$", self.text(), re.M)
        return float(found[1]) if found else None


class Bare:
    """A run of two tasks without a launcher, in its own folder."""

    def __init__(self, python: Path, folder: Path) -> None:
        self._python, self._folder = python, folder
        self.ports = free_ports(len(TASKS))
        self.processes: dict[str, Process] = {}

    def start(self, task: str, fault: str = "") -> Process:
        job, _, index = task.partition(":")
        cluster = {"worker": [f"127.0.0.1:{port}" for port in self.ports]}
        config = {"cluster": cluster, "task": {"type": job, "index": int(index)}}
        log = self._folder / f"{index}.log"
        env = clean_environment() | {
            "TF_CONFIG": json.dumps(config),
            "FAULT": fault,
            "TFCLUSTER_CHECKPOINT_DIR": str(self._folder / f"checkpoints-{index}"),
            "PYTHONPATH": str(ROOT / "workers"),
        }
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [self._python, HERE / "train.py"],
                env=env,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes[task] = Process(popen, log)
        return self.processes[task]

    def wait(self, *tasks: str, timeout_s: float = HANG_S) -> bool:
        """Wait until all of `tasks` have ended, and note when; return False on a time-out."""
        deadline = time.time() + timeout_s
        waiting = [self.processes[task] for task in tasks or self.processes]
        while any(process.ended_at is None for process in waiting):
            for process in self.processes.values():
                if process.ended_at is None and process.popen.poll() is not None:
                    process.ended_at = time.time()
            if time.time() > deadline:
                return False
            time.sleep(0.01)
        return True

    def close(self) -> None:
        for process in self.processes.values():
            process.popen.kill()
            process.popen.wait()


@contextmanager
def bare(tensorflow: str) -> Iterator[Bare]:
    with tempfile.TemporaryDirectory(prefix="tfc-bare-") as folder:
        gang = Bare(PYTHONS[tensorflow], Path(folder))
        try:
            yield gang
        finally:
            gang.close()


def clean_environment() -> dict[str, str]:
    dropped = ("TF_CONFIG", "PYTHONPATH")
    kept = {n: v for n, v in os.environ.items() if n not in dropped and "TFCLUSTER" not in n}
    return kept | {"CUDA_VISIBLE_DEVICES": "-1", "PYTHONUNBUFFERED": "1"}


# -- situations: each returns the observations of its tasks --------------------------------------


def peer_fails(tensorflow: str, fault: str) -> dict[str, Observation]:
    """Observe culprit and survivor of `fault` (`sigkill worker:1 training`) among two tasks."""
    culprit = fault.split()[1]
    (survivor,) = set(TASKS) - {culprit}
    with bare(tensorflow) as gang:
        for task in TASKS:
            gang.start(task, fault)
        gang.wait(survivor)
        if "sigstop" not in fault:
            gang.wait(culprit)
        began = gang.processes[culprit].fault_at()
        assert began is not None, gang.processes[culprit].text()[-3000:]
        return {
            "culprit": gang.processes[culprit].observe(began),
            "survivor": gang.processes[survivor].observe(began),
        }


def port_is_taken(tensorflow: str) -> dict[str, Observation]:
    with bare(tensorflow) as gang, socket.socket() as thief:
        thief.bind(("0.0.0.0", gang.ports[1]))
        thief.listen()
        began = time.time()
        victim = gang.start("worker:1")
        gang.wait("worker:1")
        return {"victim": victim.observe(began)}


SITUATIONS: dict[str, Callable[[str], dict[str, Observation]]] = {
    **{
        fault: partial(peer_fails, fault=fault)
        for kind in ("sigkill", "sigstop", "sigterm", "exception", "exit-3")
        for fault in (f"{kind} {task} training" for task in TASKS)
    },
    "port-thief": port_is_taken,
}


# -- the file -----------------------------------------------------------------------------------


def record(tensorflow: str) -> dict[str, Any]:
    """Record every situation once, one after the other, for the delays of a quiet machine."""
    found = {name: play(tensorflow) for name, play in SITUATIONS.items()}
    return {
        "tensorflow": version(PYTHONS[tensorflow]),
        "recorded": time.strftime("%Y-%m-%d"),
        "situations": {
            name: {role: asdict(observation) for role, observation in roles.items()}
            for name, roles in found.items()
        },
    }


def version(python: Path) -> str:
    code = "import tensorflow as tf; print(tf.__version__)"
    env = clean_environment() | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([python, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(names: Sequence[str]) -> None:
    known = json.loads(RECORDINGS.read_text()) if RECORDINGS.exists() else {}
    for name in names or PYTHONS:
        known[name] = record(name)
        RECORDINGS.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
