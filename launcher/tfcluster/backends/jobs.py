"""Runs whose coordinator is itself a job of a scheduler: the seam between both.

A submitted run has a folder that the submitting machine and the job's nodes share. The submitter
makes it and its job, and then only watches. In the job the coordinator opens the folder again, on
its first start and on every later one, after the scheduler took its nodes away and put the job
back into the queue. Views ask the scheduler only about runs that have a job (`job_watch`).
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from tfcluster import kinds
from tfcluster.errors import SetupError
from tfcluster.rundir.states import Status

if TYPE_CHECKING:
    from tfcluster.plans.plan import Plan, TaskPlan
    from tfcluster.rundir.events import JobSubmitted
    from tfcluster.rundir.paths import RunPaths
    from tfcluster.rundir.snapshot import RunSnapshot
    from tfcluster.spec.sections import Runtime
    from tfcluster.wire.file_trees import FileToSend

T = TypeVar("T")
_SAYS_LATER_S = (0.0, 0.5, 1.0, 2.0)
"""Pauses before a scheduler that has just signalled a job is asked why, again and again."""


class JobPhase(StrEnum):
    """The life of a job, the same for all schedulers."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    """The state while the scheduler has stopped its processes, which it will continue."""
    ENDING = "ending"
    """The state while its processes are being ended; it may come back."""
    OVER = "over"


FAR_S = 300 * 86400.0
"""Estimates beyond are none: for Slurm, a job without a time limit takes a year."""


@dataclass(frozen=True, slots=True)
class JobEnd:
    """The end of a job whose coordinator could not record it."""

    reason: str
    fix: str = ""
    status: Status = Status.FAILED
    """The status of the run."""
    exit_code: int | None = None
    """The exit code that the coordinator has left; None if it has left none."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A scheduler's answer about one job."""

    phase: JobPhase
    reason: str = ""
    """The reason why it is queued, in the scheduler's words, with the fix if there is one."""
    starts_at: float | None = None
    """The scheduler's estimate, seconds since 1970; None without one."""
    ended_at: float | None = None
    """Seconds since 1970; None where it is not known."""
    job: str = field(default="", compare=False)
    """The scheduler's id of the job."""
    end: JobEnd | None = None
    """The end of the run of a job that can never start; the job is then removed."""


@dataclass(frozen=True, slots=True)
class Component:
    """The nodes of a job that one group of tasks shares (`kinds.BackendKind.group`)."""

    group: str
    nodes: int
    tasks_per_node: int
    """The most tasks that one of them gets."""
    without_gpu: int
    """The number of these tasks that get no GPU."""


@dataclass(frozen=True, slots=True)
class Submission:
    """Everything that a scheduler needs for a run's job."""

    run_id: str
    folder: Path
    """The run folder."""
    argv: tuple[str, ...]
    """The command of the coordinator, for a machine that sees the folder."""
    runtime: Runtime
    nodes: int
    """Nodes that the plan's tasks need."""
    tasks_per_node: int
    """The most tasks that one of them gets."""
    without_gpu: int = 0
    """The number of these tasks that get no GPU."""
    components: tuple[Component, ...] = ()
    """The parts of a job whose groups of tasks have different nodes; empty if all are alike."""
    save_s: float = 120.0
    """Seconds before the end of the job's time in which the run should be told about it."""
    run_deadline_s: float | None = None
    """The time after which the run stops itself."""
    may_shrink: bool = False
    """True if the run can go on without a node that is lost."""
    plan: Plan | None = None
    """The plan, with the values of its secrets."""
    code: Callable[[], Sequence[FileToSend]] = tuple
    """Returns the files of the workdir that the run needs, for a cluster that does not see it."""
    left_out: Callable[[], Sequence[str]] = tuple
    """Returns sentences about files of the workdir that are not in `code`."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a job by its scheduler."""

    why: str
    """The reason, for the user: ``preempted by a job with a higher priority``."""
    comes_back: bool = False
    """True if the job can go back into the queue, or is there already."""
    loses_folder: bool = False
    """True if the run folder ends with this process: its successor needs what the nodes have."""
    limit: str = ""
    """The field of the spec whose time is over, if it ends for that: ``runtime.slurm.time``."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A reason why a job would not start, or might not start soon."""

    check: str
    """Row of doctor's table: ``scheduler``, ``partition``, ``limits``, ``nodes``, ``run folder``.
    """
    what: str
    fix: str
    is_fatal: bool = True
    """False if the job can be submitted all the same."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """The obstacles that a job would meet at its scheduler, and when it would start."""

    obstacles: tuple[Obstacle, ...]
    starts: str = ""
    """A sentence: when and where the scheduler would start it; empty if that is not known."""


class Following(Protocol):
    """A thread that keeps the run folder of this machine up to date."""

    problem: str
    """The reason why files do not arrive; empty if they do."""

    def await_news(self, patience_s: float) -> bool:
        """Wait until the folder is up to date once, and return whether it is."""


class Jobs(Protocol):
    """The module `kinds.BackendKind.jobs`.

    Its functions raise SetupError with the scheduler's message, and `past_runs.SilentError` where
    the scheduler does not answer.
    """

    def cluster(self, of: str | Runtime, *, patience_s: float) -> str:
        """Return the name of the cluster whose scheduler this machine reaches.

        `of`: the cluster of a run's job, or the settings of a new run, for a machine that reaches
        several.
        """

    def check(self, job: Submission, *, thorough: bool) -> Outlook:
        """Compare the job with what the cluster has and allows; nothing is submitted.

        `thorough`: also ask when it would start, and judge what is only suspicious.
        """

    def run_inside(
        self, job: Submission, argv: Sequence[str], folder: Path, *, tell: Callable[[str], None]
    ) -> None:
        """Run a Python with the options `argv` and `folder` where the job's coordinator would run.

        It gets an allocation like the job's, but of a few minutes, the files in `folder`, and
        leaves its own there. `tell` shows what is waited for. Raises SetupError if it fails.
        """

    def submit(self, job: Submission) -> str:
        """Submit a job that runs the coordinator; return its id."""

    def warnings(self, job: Submission) -> Sequence[str]:
        """Return what the user should know about this job before it runs, in sentences."""

    def hints(self, job: Submission) -> Sequence[str]:
        """Return where the results of this job will be, if not in the run folder, in sentences."""

    def look(self, cluster: str, *, patience_s: float) -> Mapping[str, JobState]:
        """Return run → state of its job, of this user's runs that the scheduler still knows."""

    def explain_end(self, job: str, *, cluster: str, patience_s: float) -> JobEnd:
        """Return how a job ended, which the scheduler may not know any more."""

    def restart_orphaned(self, job: str, *, cluster: str) -> None:
        """Put a job back into the queue that the scheduler keeps although the node of its
        coordinator is gone. Nothing happens to any other job."""

    def stop(self, job: str, *, cluster: str, now: bool) -> None:
        """Have the coordinator in the job stop its run; end the job at once if it is only queued,
        or `now`. Nothing happens to a job that is over."""

    def connect_coordinator(
        self, paths: RunPaths, job: str, *, cluster: str
    ) -> AbstractContextManager[socket.socket]:
        """Yield a connection to the control socket of the coordinator in the job.

        A process beside the coordinator carries it (`rundir.control_client`), which ends with the
        block. Raises SetupError, also in place of an OSError or a ValueError of the block.
        """

    def make_copy(self, paths: RunPaths, job: str, *, cluster: str) -> JobSubmitted:
        """Make the folder of a run that another machine has submitted, for `follow` to fill.

        Return the event by which that machine has recorded the job. Raises SetupError for a
        scheduler whose runs have one folder for all machines."""

    def follow(self, paths: RunPaths, job: str, *, cluster: str) -> Following | None:
        """Copy what the coordinator writes into the run folder of this machine, in a thread.

        None where both see the same folder.
        """

    def own(self, environ: Mapping[str, str]) -> tuple[str, int]:
        """Return the job that a process with `environ` runs in, and how often the scheduler has
        started it again."""

    def can_come_back(self, job: str) -> bool:
        """Return whether the job may go back into the queue."""

    def ending(self, job: str, *, restarts: int, signal: int | None) -> Ending | None:
        """Return why the scheduler ends the job; None if it does not.

        `restarts`: how often it had started the job again when this process began; `signal`: what
        it sent to the job's processes, if anything.
        """

    def requeue(self, job: str) -> None:
        """Put the job that this process runs in back into the queue, which ends this process.

        No error if it is there already."""


@dataclass(frozen=True, slots=True)
class OwnJob:
    """The scheduler's job that this process runs in."""

    backend: str
    id: str
    restarts: int
    """The number of times that the scheduler has started it again."""

    @property
    def scheduler(self) -> Jobs:
        scheduler = of_backend(self.backend)
        assert scheduler is not None
        return scheduler

    async def can_come_back(self) -> bool:
        """Return whether the job may go back into the queue, as far as the scheduler says."""
        try:
            return await _soon(self.scheduler.can_come_back, self.id)
        except SetupError:
            return False

    async def ending(self, *, signal: int | None = None) -> Ending | None:
        """Return why the scheduler ends the job; None also if it does not say so.

        After a `signal` the scheduler's own records may be a moment late.
        """
        ending = partial(self.scheduler.ending, restarts=self.restarts, signal=signal)
        for wait_s in _SAYS_LATER_S if signal is not None else (0.0,):
            with contextlib.suppress(SetupError):
                if (reason := await _soon(ending, self.id, after_s=wait_s)) is not None:
                    return reason
        return None


async def _soon(ask: Callable[[str], T], job: str, *, after_s: float = 0.0) -> T:
    import asyncio  # slow to import, and views do not need it

    await asyncio.sleep(after_s)
    return await asyncio.to_thread(ask, job)


def own(backend: str, environ: Mapping[str, str] = os.environ) -> OwnJob | None:
    """Return the job that this process runs in, if it is one of `backend`."""
    scheduler = of_backend(backend) if kinds.get(backend).is_allocated(environ) else None
    return None if scheduler is None else OwnJob(backend, *scheduler.own(environ))


def submission_of(plan: Plan, runtime: Runtime, folder: Path) -> Submission:
    """Return the submission of a run of `plan`, whose folder is `folder`."""
    all_tasks = _component("", plan.tasks)
    return Submission(
        run_id=folder.name,
        folder=folder,
        # -P: no module is imported from the current folder.
        argv=(sys.executable, "-P", "-m", "tfcluster.in_job", str(folder)),
        runtime=runtime,
        nodes=all_tasks.nodes,
        tasks_per_node=all_tasks.tasks_per_node,
        without_gpu=all_tasks.without_gpu,
        components=_components(plan, runtime),
        save_s=max(120.0, 60.0 + plan.supervision.grace_s),
        run_deadline_s=plan.supervision.run_deadline_s,
        may_shrink=plan.supervision.min_workers is not None,
        plan=plan,
    )


def _components(plan: Plan, runtime: Runtime) -> tuple[Component, ...]:
    """Return the groups of tasks that have nodes of their own, in the order of their nodes."""
    groups: dict[str, list[TaskPlan]] = {}
    kind = kinds.get(plan.nodes[0].backend)
    for task in plan.tasks:
        groups.setdefault(kind.group(task.id.job, runtime), []).append(task)
    return tuple(map(_component, groups, groups.values())) if any(groups) else ()


def _component(group: str, tasks: Sequence[TaskPlan]) -> Component:
    """Return the nodes of `tasks`, which share them; tasks of the tf.data service get no GPU."""
    on_node = Counter(task.node for task in tasks)
    with_gpu = Counter(task.node for task in tasks if task.gpus != ())
    most = max(on_node.values())
    return Component(group, len(on_node), most, most - max(with_gpu.values(), default=0))


def of_backend(backend: str) -> Jobs | None:
    """Return the jobs of a backend; None for one without a scheduler."""
    module = kinds.get(backend).jobs
    return cast("Jobs", import_module(module)) if module is not None else None


@dataclass(frozen=True, slots=True)
class RunJob:
    """The job of a run, and who can be asked about it."""

    scheduler: Jobs
    id: str
    cluster: str


def of_run(state: RunSnapshot) -> RunJob | None:
    """Return the run's job; None for a run without one, or of an unknown scheduler."""
    job = state.job or {}
    scheduler = of_backend(job["backend"]) if job else None
    return None if scheduler is None else RunJob(scheduler, job["id"], job.get("cluster", ""))
