"""How soon a crash ends a gang of four, and how soon its workers run again, beside others.

The others: a loop of twenty lines that knows nothing but its four children, and torchrun where
the variable TORCHRUN names one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import Metric, Ratio
from benchmarks.runs import TFCLUSTER, environment

CRASHER = Path(__file__).with_name("crasher.py")
WORKERS = 4
TORCHRUN = os.environ.get("TORCHRUN")
Start = Callable[[Path, str], None]
"""Runs the gang in a folder, its survivors obeying or swallowing SIGTERM, until it has ended."""


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tfc") as name:
        shutil.copy(CRASHER, name)
        yield Path(name)


def _tfcluster(folder: Path, survivors: str) -> None:
    spec = {
        "name": "b",
        "cluster": {"worker": WORKERS},
        "job": {"script": CRASHER.name, "args": [survivors]},
        "supervision": {"backoff_s": 0},
    }
    (folder / "bench.json").write_text(json.dumps(spec))
    env = environment(folder / ".home")
    command = [TFCLUSTER, "up", "bench.json"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"tfcluster up failed:\n{done.stderr[-3000:]}")


def _bare_loop(folder: Path, survivors: str) -> None:
    for attempt in range(2):
        env = os.environ | {"TORCHELASTIC_RESTART_COUNT": str(attempt)}
        gang = [
            subprocess.Popen(
                [sys.executable, CRASHER.name, survivors],
                cwd=folder,
                env=env | {"RANK": str(rank)},
            )
            for rank in range(WORKERS)
        ]
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        for worker in gang if attempt == 0 else ():
            worker.terminate()
        for worker in gang:
            worker.wait()


def _torchrun(folder: Path, survivors: str) -> None:
    command = [str(TORCHRUN), "--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=1"]
    done = subprocess.run(
        [*command, CRASHER.name, survivors], cwd=folder, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"torchrun failed:\n{done.stderr[-3000:]}")


def _read(folder: Path, pattern: str) -> list[float]:
    found = [float(path.read_text()) for path in folder.glob(pattern)]
    if not found:
        raise SystemExit(f"no worker wrote {pattern}")
    return found


def _until_stopped(survivors: str) -> float:
    """From the crash to the last exit of the first attempt, as tfcluster's events tell it."""
    with _folder() as folder:
        _tfcluster(folder, survivors)
        (path,) = folder.glob(".home/runs/b-*/events.jsonl")
        events = [json.loads(line) for line in path.read_text().splitlines()]
        ended = [e for e in events if e["type"] == "task_exited" and e["attempt"] == 1]
        exits = [float(event["time"]) for event in ended]
        if len(exits) != WORKERS:
            raise SystemExit(f"{len(exits)} of {WORKERS} workers were seen to end")
        return max(exits) - _read(folder, "crashed")[0]


def _until_again(start: Start, *, last: bool = True) -> float:
    """From the crash to the first line of the restarted gang's last worker."""
    with _folder() as folder:
        start(folder, "obey")
        again = _read(folder, "again-?")
        if len(again) != WORKERS:
            raise SystemExit(f"{len(again)} of {WORKERS} workers were started again")
        return (max(again) if last else min(again)) - _read(folder, "crashed")[0]


_PEERS: dict[str, Start] = {"a bare loop": _bare_loop}
if TORCHRUN:
    _PEERS["torchrun"] = _torchrun

STOP = Metric(
    title="From the first exit to the end of the whole gang, 4 workers",
    unit="s",
    variants={
        "survivors obey SIGTERM": partial(_until_stopped, "obey"),
        "survivors swallow SIGTERM": partial(_until_stopped, "swallow"),
    },
)
RESTART = Metric(
    title="From a crash to the restarted gang's first line, 4 workers, backoff 0",
    unit="s",
    variants={
        "tfcluster, first worker": partial(_until_again, _tfcluster, last=False),
        "tfcluster, all workers": partial(_until_again, _tfcluster),
        **{name: partial(_until_again, start) for name, start in _PEERS.items()},
    },
    ratios=[Ratio(f"tfcluster : {name}", "tfcluster, all workers", name) for name in _PEERS],
)
