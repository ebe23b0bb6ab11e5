"""One tfcluster run of N plain commands, in a home of its own; and the same from a shell."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TFCLUSTER = str(Path(sys.executable).with_name("tfcluster"))


@dataclass(frozen=True, slots=True)
class Timed:
    """A command from its start to its end, by the clock on the wall."""

    began: float
    ended: float
    folder: Path
    """Where it ran; what its workers wrote is there until the block ends."""

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@contextmanager
def spec(workers: int, command: Sequence[str]) -> Iterator[Path]:
    """A spec whose workers all run `command`; its folder is the run's home too."""
    with tempfile.TemporaryDirectory(prefix="tfc") as folder:
        path = Path(folder) / "bench.json"
        job = {"command": list(command), "kind": "plain"}
        cluster = {"worker": workers}
        path.write_text(json.dumps({"version": 1, "name": "b", "cluster": cluster, "job": job}))
        yield path


def environment(home: Path) -> dict[str, str]:
    """The tasks run this Python, found without asking it; nothing is coloured."""
    return os.environ | {
        "TFCLUSTER_HOME": str(home),
        "VIRTUAL_ENV": sys.prefix,
        "NO_COLOR": "1",
    }


@contextmanager
def timed_run(workers: int, script: Path, *args: str) -> Iterator[Timed]:
    """``tfcluster run -n WORKERS SCRIPT ARGS``; its merged stream goes to the file ``merged``."""
    with tempfile.TemporaryDirectory(prefix="tfc") as name:
        folder = Path(name)
        shutil.copy(script, folder)
        command = [TFCLUSTER, "run", "-n", str(workers), script.name, *args]
        env = environment(folder / ".home")
        with (folder / "merged").open("wb") as merged:
            began = time.time()
            done = subprocess.run(
                command, cwd=folder, env=env, stdout=merged, stderr=subprocess.PIPE
            )
            ended = time.time()
        if done.returncode:
            raise SystemExit(f"tfcluster run failed:\n{done.stderr.decode()[-3000:]}")
        yield Timed(began, ended, folder)


@contextmanager
def timed_shell(workers: int, command: str) -> Iterator[Timed]:
    """A bash that starts `command` so many times side by side, in an empty folder, and waits."""
    with tempfile.TemporaryDirectory(prefix="tfc") as name:
        began = time.time()
        subprocess.run(["bash", "-c", f"{command} &\n" * workers + "wait"], cwd=name, check=True)
        yield Timed(began, time.time(), Path(name))


def check_lines(timed: Timed, expected: int) -> None:
    """A benchmark that lost its work would look fast."""
    if (found := (timed.folder / "merged").read_bytes().count(b"\n")) != expected:
        raise SystemExit(f"the merged stream has {found} lines instead of {expected}")
