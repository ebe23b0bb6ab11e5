"""The file with a run's state as metrics, which node_exporter's textfile collector reads."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tfcluster.agent.error_text import reason_of
from tfcluster.rundir.events import Warned
from tfcluster.rundir.prometheus import format_metrics
from tfcluster.rundir.run_writer import RunWriter, replace_file

_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class MetricsFile:
    """The file of one run.

    It is replaced at once, so no reader sees half of it, and it stays when the run has ended: its
    last state says how, as the file of any other batch job does.
    """

    path: Path
    run_writer: RunWriter

    def write(self) -> None:
        """Write the run's present state. Raises OSError."""
        replace_file(self.path, format_metrics([self.run_writer.state]).encode())

    async def keep_written(self) -> None:
        """Write the file every few seconds, until cancelled; where that fails, warn once."""
        has_warned = False
        while True:
            try:
                self.write()
            except OSError as error:
                if not has_warned:
                    has_warned, why = True, reason_of(error)
                    sentence = f"{self.path} cannot be written: {why}; tfcluster keeps trying"
                    self.run_writer.record(Warned(message=sentence))
            await asyncio.sleep(_EVERY_S)
