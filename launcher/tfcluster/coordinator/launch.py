"""A launch: what is to be started, who watches it, and how it ends.

Every start needs this, in this process, in the background or in a job. The coordinator is not
imported here: a run that is submitted has it elsewhere.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from tfcluster.rundir import fold, registry, run_writer
from tfcluster.rundir.paths import RunPaths, home, runtime_dir
from tfcluster.rundir.registry import new_run_id, this_process
from tfcluster.spec import LaunchOptions
from tfcluster.supervision.decisions import Outcome, StopRequest
from tfcluster.typed_json import to_json

if TYPE_CHECKING:
    from tfcluster.coordinator.resume import Resume
    from tfcluster.plans.plan import Plan
    from tfcluster.rundir.chaos import Fault
    from tfcluster.rundir.snapshot import RunSnapshot
    from tfcluster.spec.sections import Runtime

SIGNALS = {
    signal.SIGINT: StopRequest("Ctrl-C", 130),
    signal.SIGTERM: StopRequest("SIGTERM", 143),
    signal.SIGHUP: StopRequest("the terminal was closed", 129),
}
END_ANNOUNCED = signal.SIGUSR1
"""The signal by which a scheduler says that the time of a job is nearly over."""
LEASE_S: Final = 3600.0
"""``supervision.lease_s`` of a background run on other machines, unless the spec sets it."""
HELD_BACK = (*SIGNALS, END_ANNOUNCED)
_REPEAT_S = 1.0
_repeated_until = 0.0


def is_repeated(number: int) -> bool:
    """Return whether a SIGTERM or SIGHUP came within a second of another one, and means the same.

    A signal to all processes of a cgroup reaches the coordinator and its starter, which passes
    it on; a shell and the kernel both send one when a terminal is closed.
    """
    global _repeated_until
    now = time.monotonic()
    if number == signal.SIGINT or now < _repeated_until:
        return number != signal.SIGINT
    _repeated_until = now + _REPEAT_S
    return False


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that a coordinator needs; it can be pickled for another process."""

    plan: Plan
    spec: Mapping[str, Any]
    """The spec to keep in the run folder."""
    spec_folder: str | None = None
    """The folder that relative paths of `spec` start from."""
    options: LaunchOptions = field(default_factory=LaunchOptions)
    faults: Sequence[Fault] = ()
    """The faults of `options`."""
    tensorboard_python: str | None = None
    """The Python that serves the run's curves; None without ``--tensorboard``."""
    resume: Resume | None = None
    """The state to start from."""
    home_dir: Path = field(default_factory=home)
    """The parent of run folders."""
    runtime: Runtime | None = None
    """That section of the spec, from which a backend makes its nodes."""
    is_submitted: bool = False
    """True for a run whose coordinator is to run in a job of a scheduler."""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a run."""

    paths: RunPaths
    state: RunSnapshot
    outcome: Outcome
    unrecorded: str = ""
    """The reason why the run folder is incomplete; empty if it is complete."""


class Watcher(Protocol):
    """The starter's view of a run."""

    def has_keys(self) -> bool:
        """Return whether the user can type keys, and so leave the run to the background."""

    def opened(self, paths: RunPaths, plan: Plan, leave: Callable[[], None] | None = None) -> None:
        """Called when the run folder exists.

        `leave` has the run go on in the background, any thread may call it; None if it cannot be
        left, or is left anyway.
        """

    def announced(self, plan: Plan) -> None:
        """Called before the first start with the plan, now with every host and port."""

    def left(self) -> None:
        """Called when the starter leaves the run, with -d once all its tasks run."""

    def ask(self, question: str) -> bool:
        """Show a question, or take it away (""); return False if nobody can answer."""

    def choice(self) -> str | None:
        """Return the answer, ``leave`` or ``cancel``; None without one so far."""

    def said(self, sentence: str) -> None:
        """Called with what the starter has to say."""


def make_folder(launch: Launch) -> tuple[RunPaths, RunSnapshot]:
    """Make the run folder; return it with the run's first state. Raises RunFolderError."""
    plan, now = launch.plan, time.time()
    run_writer.make_runtime_dir()
    paths = run_writer.make_new(partial(new_run_id, plan.name, now), launch.home_dir)
    for path, data in ((paths.spec, launch.spec), (paths.plan, to_json(plan))):
        run_writer.require_json(path, data)
    state = fold.first_state(plan, paths, this_process(), now)
    state.spec_folder, state.runtime_dir = launch.spec_folder, str(runtime_dir())
    state.background = launch.options.detach
    state.tracker_group = _tracker_group(launch, paths.run_id)
    return paths, state


def with_lease(plan: Plan, spec: Mapping[str, Any]) -> Plan:
    """Return the plan with the lease of background runs where tasks run on other machines.

    The coordinator may be a laptop that goes to sleep, which must not end training elsewhere.
    """
    capabilities = [node.capabilities for node in plan.nodes]
    sleeps_apart = any(each.has_lease and not each.on_one_machine for each in capabilities)
    if "lease_s" in (spec.get("supervision") or {}) or not sleeps_apart:
        return plan
    return replace(plan, supervision=replace(plan.supervision, lease_s=LEASE_S))


def _tracker_group(launch: Launch, run_id: str) -> str:
    """Return the group of a run: that of the run it resumes; machines that join share the name."""
    if launch.resume is not None:
        source = launch.resume.source
        return registry.load(source).tracker_group or source.run_id
    return launch.plan.name if launch.plan.joins else run_id


def open_folder(paths: RunPaths) -> RunSnapshot:
    """Return the state of a submitted run, now with this process as its coordinator."""
    run_writer.make_runtime_dir()
    with contextlib.suppress(OSError):  # the disk is full already
        run_writer.make_reserve(paths)
    state, process = registry.load_recorded(paths), this_process()
    state.host, state.boot_id = process.host, process.boot_id
    state.pid, state.pid_start = process.pid, process.start
    state.runtime_dir = str(runtime_dir())
    return state


@contextlib.contextmanager
def signals_held_back() -> Iterator[None]:
    """Block the signals of a run, except while it handles them.

    A signal between the making of the folder and the first turn of the loop would leave a run
    that never started and never ended.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD_BACK)
    handlers = {number: signal.getsignal(number) for number in HELD_BACK}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
