"""The command of each launcher for the same gang: the arms of every comparison.

The baseline is a shell script that starts each task; a loop around it is the simplest restart.
Peers are in an environment of their own, `.venv-peers`, made by `make bench-peers`.
"""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchmarks.harness import Arm, Taken
from benchmarks.sandbox import TFCLUSTER

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-peers" / "bin"
STUB = Path(__file__).with_name("stub.py")


@dataclass(frozen=True, slots=True)
class Gang:
    """A number of tasks that all run one program."""

    tasks: int
    command: Sequence[str]
    restarts: int = 0
    spec: Mapping[str, object] = field(default_factory=dict)
    """Further fields of tfcluster's spec."""


def stubs(tasks: int, mode: str, *, restarts: int = 0) -> Gang:
    return Gang(tasks, [sys.executable, "-S", str(STUB), mode, str(tasks)], restarts)


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher that is measured here."""

    command: Callable[[Path, Gang], list[str]]
    """A function that writes the launcher's files into a folder and returns the command."""
    shown: str
    """The command as published, with N tasks of COMMAND."""
    package: str = ""
    """The peer's Python package, if the launcher is a peer."""

    @property
    def version(self) -> str:
        return f"{self.package} {_version(self.package)}" if self.package else ""

    @property
    def missing(self) -> str:
        is_there = not self.package or _version(self.package)
        return "" if is_there else f"no {self.package} in .venv-peers (make bench-peers)"

    def arm(self, take: Callable[[Launcher], Taken], *, most_runs: int | None = None) -> Arm:
        return Arm(lambda: take(self), self.shown, self.version, self.missing, most_runs)


def _tfcluster(folder: Path, gang: Gang) -> list[str]:
    spec: dict[str, object] = {
        "version": 1,
        "name": "b",
        "cluster": {"worker": gang.tasks},
        "job": {"command": list(gang.command)},
        "supervision": {"max_restarts": gang.restarts, "backoff_s": 0},
    }
    (folder / "bench.json").write_text(json.dumps(spec | dict(gang.spec)))
    return [TFCLUSTER, "up", "bench.json"]


def _shell(folder: Path, gang: Gang) -> list[str]:
    (folder / "gang.sh").write_text("\n".join([*by_hand(gang), "wait"]))
    return ["bash", "gang.sh"]


def _loop(folder: Path, gang: Gang) -> list[str]:
    """Write a loop that waits for its children and kills the others when one fails."""
    lines = [
        f"for attempt in $(seq 0 {gang.restarts}); do",
        "export ATTEMPT=$attempt; failed=0",
        *by_hand(gang),
        f"for one in $(seq {gang.tasks}); do wait -n || {{ failed=1; break; }}; done",
        "[ $failed = 0 ] && exit 0",
        "kill -9 $(jobs -p); wait",
        "done 2>/dev/null",
        "exit 3",
    ]
    (folder / "loop.sh").write_text("\n".join(lines))
    return ["bash", "loop.sh"]


def by_hand(gang: Gang) -> list[str]:
    """Return shell lines that start each task in the background, with its TF_CONFIG."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(gang.tasks)]}
    lines = []
    for index in range(gang.tasks):
        config = {"cluster": cluster, "task": {"type": "worker", "index": index}}
        own = f"RANK={index} TF_CONFIG={shlex.quote(json.dumps(config))}"
        lines.append(f"{own} {shlex.join(gang.command)} &")
    return lines


def free_ports(count: int) -> list[int]:
    """Return free ports, found as most scripts do: bind, note the number, release."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _torchrun(folder: Path, gang: Gang) -> list[str]:
    more = ["--standalone", "--no-python", f"--nproc-per-node={gang.tasks}"]
    more += [f"--max-restarts={gang.restarts}"] if gang.restarts else []
    return [str(PEERS / "torchrun"), *more, *gang.command]


def _honcho(folder: Path, gang: Gang) -> list[str]:
    command = shlex.join(gang.command)
    lines = [f"w{index}: RANK={index} exec {command}" for index in range(gang.tasks)]
    (folder / "Procfile").write_text("\n".join(lines) + "\n")
    return [str(PEERS / "honcho"), "start"]


def _accelerate(folder: Path, gang: Gang) -> list[str]:
    """Use `--multi_gpu`: else it starts one process only; it does not check for GPUs."""
    more = ["--multi_gpu", f"--num_processes={gang.tasks}", "--num_machines=1"]
    more += ["--mixed_precision=no", "--dynamo_backend=no", "--main_process_port=0", "--no_python"]
    return [str(PEERS / "accelerate"), "launch", *more, *gang.command]


@cache
def _version(package: str) -> str:
    """Return a package's version in the peers' environment, or "" if it is not installed."""
    show = f"import importlib.metadata as m; print(m.version({package!r}))"
    try:
        done = subprocess.run([PEERS / "python", "-c", show], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()


LAUNCHERS: Mapping[str, Launcher] = {
    "shell": Launcher(_shell, "TF_CONFIG=… COMMAND &  … N times, then `wait`"),
    "bare loop": Launcher(
        _loop, "TF_CONFIG=… COMMAND &  … N times; wait -n || kill -9 $(jobs -p); repeat"
    ),
    "tfcluster": Launcher(_tfcluster, "tfcluster up bench.json"),
    "torchrun": Launcher(
        _torchrun, "torchrun --standalone --no-python --nproc-per-node=N COMMAND", "torch"
    ),
    "honcho": Launcher(_honcho, "honcho start", "honcho"),
    "accelerate": Launcher(
        _accelerate,
        "accelerate launch --multi_gpu --num_processes=N --num_machines=1 --mixed_precision=no "
        "--dynamo_backend=no --no_python COMMAND",
        "accelerate",
    ),
}
