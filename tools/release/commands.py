"""The programs of the release check: their output when they fail, their time while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
TICK_S = 20.0
TOOLS = Path(sys.executable).parent
"""The folder of twine, uv and the other programs: `make` starts the check in `.venv-release`."""
_FOREIGN = ("PYTHONPATH", "VIRTUAL_ENV", "CONDA_PREFIX")


class Failed(Exception):
    """A check that failed: the release is not good."""


class NotRun(Exception):
    """A check for which this machine lacks a part: nothing is known about the release."""


def run(
    *argv: str | Path,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    codes: Sequence[int] = (0,),
) -> str:
    """Run a program to its end and return its stdout. Raises Failed for any other exit code."""
    words = [str(word) for word in argv]
    variables = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    with ticking(" ".join([Path(words[0]).name, *words[1:]])):
        done = subprocess.run(
            words, cwd=cwd, env={**variables, **(env or {})}, capture_output=True, text=True
        )
    if done.returncode not in codes:
        output = "\n".join([*done.stdout.splitlines()[-15:], *done.stderr.splitlines()[-25:]])
        raise Failed(f"{' '.join(words)}: exit code {done.returncode}\n{output}")
    return done.stdout


def install(folder: Path, python: str, *packages: str) -> Path:
    """Make an environment with packages and what they need; return its folder of programs."""
    run(TOOLS / "uv", "venv", "--quiet", "--clear", "--python", python, folder)
    run(TOOLS / "uv", "pip", "install", "--quiet", "--python", folder / "bin" / "python", *packages)
    return folder / "bin"


@contextmanager
def ticking(what: str) -> Iterator[None]:
    """Say every 20 s what is still running."""
    done = threading.Event()
    started = time.monotonic()

    def tick() -> None:
        while not done.wait(TICK_S):
            say(f"    {time.monotonic() - started:.0f} s: {what[:100]}")

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
