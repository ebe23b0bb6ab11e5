"""The paths of a run folder, of tfcluster's home and of its runtime folder (sockets and locks).

Every path of a run is a property of `RunPaths`, so that no other module builds one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tfcluster.agent.net.private_folders import place_of

if TYPE_CHECKING:
    from tfcluster.plans.plan import TaskId


RUN_ID: Final = re.compile(r"(?P<name>.+)-(?P<time>\d{8}-\d{6})-\w{4}")
"""The form of the ids that `registry.new_run_id` makes."""


def home() -> Path:
    """Return ``$TFCLUSTER_HOME``, else ``${XDG_STATE_HOME:-~/.local/state}/tfcluster``."""
    if chosen := os.environ.get("TFCLUSTER_HOME"):
        return Path(chosen).expanduser().absolute()
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tfcluster"


_COPIES: Final = "elsewhere"
"""The folder in the home with copies of runs that other machines have started."""
_LONGEST_RUNTIME_DIR = 46
"""The limit in bytes: a path with the longest socket name stays within macOS's 103 bytes."""
_TEMP_VARIABLES = {"TMPDIR", "TEMP", "TMP"}
"""Variables that name the temp folder; without them it is /tmp (see tempfile.gettempdir)."""


def runtime_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder (0700) of this user's sockets and port locks.

    It is short, because a socket's path has at most 108 bytes.
    """
    name = f"tfcluster-{os.getuid()}"
    for folder in _runtime_dirs(name, environ):
        if _is_short(folder) and _is_short(place := Path(place_of(str(folder)))):
            return place
    return Path(place_of(f"/tmp/{name}"))


def _is_short(folder: Path) -> bool:
    return len(os.fsencode(folder)) <= _LONGEST_RUNTIME_DIR


def _runtime_dirs(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    base = environ.get("XDG_RUNTIME_DIR")
    if base and os.path.isdir(base) and os.access(base, os.W_OK):
        yield Path(base) / "tfcluster"
    if _TEMP_VARIABLES & environ.keys() or not os.access("/tmp", os.W_OK):
        import tempfile  # slow: the import would double the time of `ps`

        yield Path(tempfile.gettempdir()) / name


class _InRunFolder:
    """A property of `RunPaths`: the path with a fixed name in the run's folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: RunPaths, owner: type[RunPaths]) -> Path:
        return paths.root / self._name


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The paths of one run's folder, ``<home>/runs/<id>``."""

    root: Path

    spec = _InRunFolder("spec.json")
    plan = _InRunFolder("plan.json")
    state = _InRunFolder("state.json")
    events = _InRunFolder("events.jsonl")
    reserve = _InRunFolder(".reserve")
    """A file that reserves space for the last events of a run that fills its disk."""
    preflight = _InRunFolder("preflight.json")
    """The results of the checks before the start."""
    fault = _InRunFolder("fault.txt")
    """The traceback of an internal error (exit 70)."""
    heartbeat = _InRunFolder(".coordinator")
    """The file that the run's coordinator touches while it lives (`heartbeat`)."""
    coordinator_log = _InRunFolder("coordinator.log")
    """The output of a coordinator in the background; missing if it wrote nothing."""
    on_end_log = _InRunFolder("on-end.log")
    """The output of the command `supervision.on_end`; missing if it wrote nothing."""
    script_failure = _InRunFolder(".script-failure")
    """The reason why the script of the run's job ended before it started the coordinator."""
    launch = _InRunFolder("launch.json")
    """The `LaunchOptions` of a submitted run, for its coordinator."""
    waited = _InRunFolder(".waited")
    """A file that exists once `tfcluster wait` has reported how the run ended."""
    cancelled = _InRunFolder(".cancelled")
    """A file that exists once the user has ended a run in a scheduler's job: it never continues."""
    logs = _InRunFolder("logs")
    checkpoints = _InRunFolder("checkpoints")
    """The checkpoints gathered from the chief."""
    saves = _InRunFolder(".saves.jsonl")
    """The saves that the chief has reported, for a gathering after this coordinator."""
    outputs = _InRunFolder("outputs")
    curves = _InRunFolder("tensorboard")
    """The TensorBoard folders of all tasks."""
    profiles = _InRunFolder("tensorboard/plugins/profile")
    """A folder for each profile with the traces of all tasks, where TensorBoard looks for them."""
    tuner = _InRunFolder("tuner")
    """The ``TFCLUSTER_TUNER_DIR`` of a tuner job, which all its tasks share."""

    @classmethod
    def of(cls, run_id: str, home_dir: Path | None = None) -> RunPaths:
        return cls((home_dir or home()) / "runs" / run_id)

    @classmethod
    def of_copy(cls, run_id: str) -> RunPaths:
        """Return the paths of a copy of a run that another machine has started.

        Copies are apart from the runs: no command takes one for a run of this machine.
        """
        return cls.of(run_id, home() / _COPIES)

    @property
    def is_copy(self) -> bool:
        """True for the paths that `of_copy` returns: the run's files belong to another machine."""
        return self.root == RunPaths.of_copy(self.run_id).root

    @property
    def run_id(self) -> str:
        return self.root.name

    def attempt_logs(self, attempt: int) -> Path:
        return self.logs / f"attempt-{attempt}"

    def task_log(self, task: TaskId, attempt: int) -> Path:
        return self.attempt_logs(attempt) / f"{task.file_name}.log"

    def step_log(self, step: str, node: str) -> Path:
        """Return the log of a step that runs once on each node before the tasks, like `prepare`."""
        return self.logs / step / f"{node}.log"

    def task_checkpoints(self, task: TaskId) -> Path:
        """Return the ``TFCLUSTER_CHECKPOINT_DIR`` of a local task."""
        return self.root / "tasks" / task.file_name / "checkpoints"

    def tensorboard(self, task: TaskId) -> Path:
        """Return the ``TFCLUSTER_TENSORBOARD_DIR`` of a local task."""
        return self.curves / task.file_name

    def profile(self, profile: str) -> Path:
        """Return the folder of one profile."""
        return self.profiles / profile

    def trace(self, profile: str, task: TaskId) -> Path:
        """Return the trace of a task; the profile plugin takes the file's name for a host's."""
        return self.profile(profile) / f"{task.file_name}.xplane.pb"

    def has_curves(self) -> bool:
        """Return whether a task has written TensorBoard files."""
        return next(self.curves.rglob("*tfevents*"), None) is not None

    @property
    def control_socket(self) -> Path:
        return runtime_dir() / f"{self.run_id[-40:]}.ctl"
