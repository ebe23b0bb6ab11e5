"""A temporary state folder for the runs of one test file, and the results of each run."""

from __future__ import annotations

import atexit
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.integration.commandline import CommandLine

ROOT = Path(__file__).parents[3]
SPECS = ROOT / "cluster_specs"
PYTHONS = {"newest": ROOT / ".venv/bin/python", "tf215": ROOT / ".venv-tf215/bin/python"}


@dataclass(frozen=True, slots=True)
class Trained:
    """The output and the run folder of a run that has ended."""

    code: int
    out: str
    err: str
    folder: Path
    events: list[dict[str, Any]]
    state: dict[str, Any]

    def of(self, kind: str, task: str | None = None) -> list[dict[str, Any]]:
        found = [event for event in self.events if event["type"] == kind]
        return [event for event in found if task is None or event["task"] == task]

    def reports(self, task: str) -> list[dict[str, Any]]:
        """Return the progress that `task` reported: where a step takes long, its agent adds one."""
        return [event for event in self.of("progress", task) if event.get("metrics")]

    def said(self, task: str, pattern: str) -> list[str]:
        """Return all matches of `pattern` in the output lines of `task`."""
        lines = re.findall(rf"^{task} │ (.*)$", self.out, re.MULTILINE)
        return [found for line in lines for found in re.findall(pattern, line)]

    def losses(self, task: str = "worker:0") -> list[float]:
        """Return the loss of each epoch that `task` printed."""
        return [float(loss) for loss in self.said(task, r"^epoch \d+ loss (\S+)")]

    def complaint(self) -> str:
        """Return the end of the output, as the message of a failing assertion."""
        return self.err[-4000:] + self.out[-4000:]


@dataclass(frozen=True, eq=False)
class Lab:
    """Runs `tfcluster` in one working folder, with data that the first job prepares for all."""

    line: CommandLine

    def train(self, *args: str, env: Mapping[str, str] | None = None) -> Trained:
        """Run `tfcluster ARGS` to its end and return the result."""
        done = self.line.run(*args, timeout=380, env=self.line.env | dict(env or {}))
        return Trained(
            done.code,
            done.out.decode(),
            done.err,
            self.line.last_run(),
            self.line.events(),
            self.line.state(),
        )


@contextmanager
def a_lab(*, own_data: bool = False) -> Iterator[Lab]:
    """Yield a lab and remove its files; with `own_data` it has its own data folder."""
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    data = root / "data" if own_data else data_folder()
    line.env |= {"TFDS_DATA_DIR": str(data), "CUDA_VISIBLE_DEVICES": "-1"}
    try:
        yield Lab(line)
    finally:
        try:
            line.clean_up()
        finally:
            shutil.rmtree(root)


@cache
def data_folder() -> Path:
    """Return the data folder of all tests in this process.

    Making the synthetic digits takes longer than training on them.
    """
    folder = Path(tempfile.mkdtemp(prefix="tfc-data-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder)
    return folder
