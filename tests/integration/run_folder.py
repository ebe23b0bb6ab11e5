"""What a run has written so far: its state, its events and the logs of its tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .commandline import read_events


class RunFolder:
    """A run's folder, read while the run may still go on."""

    @property
    def folder(self) -> Path:
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
        return state

    def events(self) -> list[dict[str, Any]]:
        return read_events(self.folder)

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.events() if event["type"] == kind]

    def log(self, task: str, attempt: int = 1) -> str:
        path = self.folder / "logs" / f"attempt-{attempt}" / f"{task.replace(':', '-')}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def has_line(self, text: str, task: str) -> bool:
        """Return whether a complete line of the task's log contains `text`.

        An unbuffered `print` writes each of its arguments separately.
        """
        return any(text in line for line in self.log(task).split("\n")[:-1])
