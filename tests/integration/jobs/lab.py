"""A home for the runs of one test file, and what each of them left, as its user sees it."""

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
    """A run that has ended, as the user and the run folder tell it."""

    code: int
    out: str
    err: str
    folder: Path
    events: list[dict[str, Any]]
    state: dict[str, Any]

    def of(self, kind: str, task: str | None = None) -> list[dict[str, Any]]:
        found = [event for event in self.events if event["type"] == kind]
        return [event for event in found if task is None or event["task"] == task]

    def said(self, task: str, pattern: str) -> list[str]:
        """What `pattern` finds in the lines of `task`."""
        lines = re.findall(rf"^{task} │ (.*)$", self.out, re.MULTILINE)
        return [found for line in lines for found in re.findall(pattern, line)]

    def losses(self, task: str = "worker:0") -> list[float]:
        """The loss of each epoch, as `task` told it."""
        return [float(loss) for loss in self.said(task, r"^epoch \d+ loss (\S+)")]

    def complaint(self) -> str:
        """For a failing assertion: the end of what was said."""
        return self.err[-4000:] + self.out[-4000:]


@dataclass(frozen=True, eq=False)
class Lab:
    """Starts `tfcluster` in one working folder, with data that the first job prepares for all."""

    line: CommandLine

    def train(self, *args: str, env: Mapping[str, str] | None = None) -> Trained:
        """`tfcluster ARGS`, to its end."""
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
    """A lab that leaves nothing behind. With `own_data` its data folder is not that of others."""
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
    """One for all tests of this process: drawing the digits takes longer than training on them."""
    folder = Path(tempfile.mkdtemp(prefix="tfc-data-", dir="/tmp"))
    atexit.register(shutil.rmtree, folder)
    return folder
