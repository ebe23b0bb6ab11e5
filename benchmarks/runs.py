"""One tfcluster run of N plain commands, in a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

TFCLUSTER = str(Path(sys.executable).with_name("tfcluster"))


@contextmanager
def spec(workers: int, command: Sequence[str]) -> Iterator[Path]:
    """A spec whose workers all run `command`; its folder is the run's home too."""
    with tempfile.TemporaryDirectory(prefix="tfc") as folder:
        path = Path(folder) / "bench.json"
        job = {"command": list(command), "kind": "plain"}
        cluster = {"worker": workers}
        path.write_text(json.dumps({"version": 1, "name": "b", "cluster": cluster, "job": job}))
        yield path


def environment(spec_path: Path) -> dict[str, str]:
    return os.environ | {"TFCLUSTER_HOME": str(spec_path.parent), "NO_COLOR": "1"}


def timed_up(workers: int, command: Sequence[str], *, lines: int = 0) -> float:
    """Seconds of a whole ``tfcluster up`` whose merged stream, of so many lines, goes to a file."""
    with spec(workers, command) as path, (path.parent / "merged").open("wb") as merged:
        started = time.perf_counter()
        done = subprocess.run(
            [TFCLUSTER, "up", str(path)],
            stdout=merged,
            stderr=subprocess.PIPE,
            env=environment(path),
        )
        seconds = time.perf_counter() - started
        _check_lines(path.parent / "merged", lines)
    if done.returncode:
        raise SystemExit(f"tfcluster up failed:\n{done.stderr.decode()[-3000:]}")
    return seconds


def timed_shell(script: str, *, lines: int = 0) -> float:
    """Seconds of a bash script in an empty folder, where it writes so many lines to ``merged``."""
    with tempfile.TemporaryDirectory(prefix="tfc") as folder:
        started = time.perf_counter()
        subprocess.run(["bash", "-c", script], cwd=folder, check=True)
        seconds = time.perf_counter() - started
        _check_lines(Path(folder) / "merged", lines)
        return seconds


def _check_lines(path: Path, expected: int) -> None:
    """A benchmark that lost its work would look fast."""
    if expected and (found := path.read_bytes().count(b"\n")) < expected:
        raise SystemExit(f"{path.name} has {found} lines instead of {expected}")
