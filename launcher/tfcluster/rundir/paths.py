"""Every path of a run is a property here, so that no other module spells one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster.agent.net.private_folders import place_of

if TYPE_CHECKING:
    from tfcluster.plan.plan import TaskId


def home(environ: Mapping[str, str] = os.environ) -> Path:
    """``$TFCLUSTER_HOME``, else ``${XDG_STATE_HOME:-~/.local/state}/tfcluster``."""
    if chosen := environ.get("TFCLUSTER_HOME"):
        return Path(chosen).expanduser().absolute()
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tfcluster"


_LONGEST_RUNTIME_DIR = 46
"""Bytes; with the longest socket name below it a path stays within macOS's 103."""


_TEMP_VARIABLES = {"TMPDIR", "TEMP", "TMP"}
"""Without them the temp folder is /tmp (docs.python.org, tempfile.gettempdir)."""


def runtime_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Folder (0700) of this user's sockets and port locks; short, for the 108-byte limit."""
    own = f"tfcluster-{os.getuid()}"
    for found in _runtime_dirs(own, environ):
        if _is_short(found) and _is_short(place := Path(place_of(str(found)))):
            return place
    return Path(place_of(f"/tmp/{own}"))


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) <= _LONGEST_RUNTIME_DIR


def _runtime_dirs(own: str, environ: Mapping[str, str]) -> Iterator[Path]:
    base = environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        yield Path(base) / "tfcluster"
    if _TEMP_VARIABLES & environ.keys() or not os.access("/tmp", os.W_OK):
        import tempfile  # only here: it takes as long as all else that `ps` does

        yield Path(tempfile.gettempdir()) / own


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The folder of one run, ``<home>/runs/<id>``."""

    root: Path

    @classmethod
    def of(cls, run_id: str, home_dir: Path | None = None) -> RunPaths:
        return cls((home_dir or home()) / "runs" / run_id)

    @property
    def run_id(self) -> str:
        return self.root.name

    @property
    def spec(self) -> Path:
        return self.root / "spec.json"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def state(self) -> Path:
        return self.root / "state.json"

    @property
    def events(self) -> Path:
        return self.root / "events.jsonl"

    @property
    def reserve(self) -> Path:
        """Space kept for the last words of a run that fills its disk; gone when it is over."""
        return self.root / ".reserve"

    @property
    def preflight(self) -> Path:
        """What was seen of the nodes before the start."""
        return self.root / "preflight.json"

    @property
    def fault(self) -> Path:
        """Traceback of a fault in tfcluster itself (exit 70)."""
        return self.root / "fault.txt"

    @property
    def coordinator_log(self) -> Path:
        """What a coordinator in the background had to say; there only if it had."""
        return self.root / "coordinator.log"

    @property
    def waited(self) -> Path:
        """There once `tfcluster wait` has reported how the run ended."""
        return self.root / ".waited"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def attempt_logs(self, attempt: int) -> Path:
        return self.logs / f"attempt-{attempt}"

    def task_log(self, task: TaskId, attempt: int) -> Path:
        return self.attempt_logs(attempt) / f"{task.file_name}.log"

    def prepare_log(self, node: str) -> Path:
        return self.step_log("prepare", node)

    def step_log(self, step: str, node: str) -> Path:
        """`step`: what is done once on each node before the tasks are started."""
        return self.logs / step / f"{node}.log"

    @property
    def checkpoints(self) -> Path:
        """What was gathered from the chief."""
        return self.root / "checkpoints"

    def task_checkpoints(self, task: TaskId) -> Path:
        """A local task's own ``TFCLUSTER_CHECKPOINT_DIR``."""
        return self.root / "tasks" / task.file_name / "checkpoints"

    @property
    def outputs(self) -> Path:
        return self.root / "outputs"

    @property
    def curves(self) -> Path:
        """The folders for TensorBoard of all tasks."""
        return self.root / "tensorboard"

    def tensorboard(self, task: TaskId) -> Path:
        """A local task's own ``TFCLUSTER_TENSORBOARD_DIR``."""
        return self.curves / task.file_name

    @property
    def tuner(self) -> Path:
        """The search of a tuner job, which all its tasks share: ``TFCLUSTER_TUNER_DIR``."""
        return self.root / "tuner"

    @property
    def control_socket(self) -> Path:
        return runtime_dir() / f"{self.run_id[-40:]}.ctl"
