"""`python -m tests.parity`: measure everything and write the page to stdout."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.integration.commandline import CommandLine

from . import measure, table


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    line = CommandLine(root)
    line.env["CUDA_VISIBLE_DEVICES"] = "-1"
    trainings = []
    try:
        for keras in measure.KERAS:
            for workers in measure.WORKERS:
                sys.stderr.write(f"{keras}, {workers} workers\n")
                trainings += measure.measure(line, keras, workers)
    finally:
        line.clean_up()
        shutil.rmtree(root)
    sys.stdout.write(table.page(trainings))


main()
