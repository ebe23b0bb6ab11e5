"""Runs that a scheduler knows and this machine's home does not, for commands with --backend."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import click

from tfcluster.backends import job_watch, jobs
from tfcluster.backends.jobs import JobPhase, Jobs, JobState
from tfcluster.backends.past_runs import SilentError
from tfcluster.cli.completion import backend_names
from tfcluster.cli.options import bundled
from tfcluster.errors import NodeLostError, UnknownRunError, UsageError
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RUN_ID, RunPaths

if TYPE_CHECKING:
    from tfcluster.run_handle import Run

_PATIENCE_S = 10.0
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class SchedulerChoice:
    """The scheduler that the options of a command name, or none."""

    backend: str | None = None
    context: str | None = None
    namespace: str | None = None

    def scheduler(self, excludes: Mapping[str, bool] = MappingProxyType({})) -> Scheduler | None:
        """Return the scheduler, or None without one. Raises UsageError, SetupError.

        `excludes`: options that make no sense with a scheduler → whether they are given.
        """
        if self.backend is None:
            if self.context is not None or self.namespace is not None:
                raise UsageError(
                    "--context and --namespace choose a cluster of a scheduler, and none is named",
                    fix="add --backend kubernetes",
                )
            return None
        if wrong := [option for option, is_given in excludes.items() if is_given]:
            raise UsageError(f"{' and '.join(wrong)} cannot be combined with --backend")
        return Scheduler(self.backend, self.context, self.namespace)

    def find_run(self, run: str | None, *, live_only: bool = False) -> Run:
        """Return a run of this machine, or with a scheduler one of its own, as `get_run` does."""
        from tfcluster.run_handle import Run

        if (scheduler := self.scheduler()) is None:
            return Run(registry.resolve(run, live_only=live_only))
        return scheduler.copy(run)


scheduler_options = bundled(
    (
        click.option(
            "--backend",
            metavar="NAME",
            shell_complete=backend_names,
            help="Ask this scheduler, also about runs of other machines.",
        ),
        click.option("--context", help="Context of the kubeconfig, for runs at Kubernetes."),
        click.option("--namespace", help="Namespace of the runs at Kubernetes."),
    ),
    choice=SchedulerChoice,
)
"""The decorator of a command that gets the options that name a scheduler as `choice`."""


class Scheduler:
    """The scheduler of a backend, asked about all runs that it has."""

    def __init__(self, backend: str, context: str | None, namespace: str | None) -> None:
        """Reach it. Raises UsageError, SetupError."""
        from tfcluster.spec.kubernetes import Kubernetes  # imports pydantic
        from tfcluster.spec.sections import Runtime

        backend_jobs = jobs.of_backend(backend)
        if backend_jobs is None:
            raise UsageError(f"{backend} has no scheduler", fix="name slurm or kubernetes")
        self._jobs: Jobs = backend_jobs
        self._backend = backend
        settings = Kubernetes.model_construct(context=context, namespace=namespace)
        runtime = Runtime.model_construct(kubernetes=settings)
        with _needs_answer():
            self._cluster = self._jobs.cluster(runtime, patience_s=_PATIENCE_S)

    def runs(self) -> Mapping[str, JobState]:
        """Return run → the state of its job."""
        with _needs_answer():
            return self._jobs.look(self._cluster, patience_s=_PATIENCE_S)

    def stop(self, run: str | None, say: Callable[[str], None], *, now: bool) -> None:
        """Stop a run and wait until it has ended; `say` what happens. Raises UnknownRunError."""
        run_id, state = self._find(run)
        say(f"stopping {run_id}")
        with _needs_answer():
            self._jobs.stop(state.job, cluster=self._cluster, now=now)
        while (last := self.runs().get(run_id)) is not None:
            if last.phase in (JobPhase.ENDING, JobPhase.OVER):
                break
            time.sleep(_POLL_S)
        reason = f": {last.reason}" if last is not None and last.reason else ""
        say(f"{run_id} has ended{reason}")

    def copy(self, run: str | None) -> Run:
        """Return a run whose files are copied to this machine, where they are not here already.

        A copy stays, and is brought up to date the next time. Raises UnknownRunError, SetupError.
        """
        from tfcluster.coordinator.submitting import record_job  # `ps` needs none of these
        from tfcluster.run_handle import Run

        run_id, state = self._find(run)
        # Others may name objects of the namespace.
        if not RUN_ID.fullmatch(run_id) or "/" in run_id:
            raise UnknownRunError(f"{run_id!r} is not the id of a run of tfcluster")
        registry.remove_old_copies()
        if RunPaths.of(run_id).root.exists():
            return Run(RunPaths.of(run_id))
        paths = RunPaths.of_copy(run_id)
        if not paths.root.exists():
            with _needs_answer():
                record_job(paths, self._jobs.make_copy(paths, state.job, cluster=self._cluster))
        os.utime(paths.root)
        job_watch.load(paths)
        return Run(paths)

    def _find(self, run: str | None) -> tuple[str, JobState]:
        """Return the id and the state of a run by its id, its last four characters or its name."""
        fix = f"`tfcluster ps --backend {self._backend}` lists them"
        if run is None:
            raise UsageError("--backend needs RUN", fix=fix)
        known = self.runs()
        matches = [name for name in known if run in (name, name[-4:])]
        parsed = ((name, RUN_ID.fullmatch(name)) for name in known)
        matches = matches or [name for name, match in parsed if match and match["name"] == run]
        if len(matches) != 1:
            raise UnknownRunError(
                f"{self._cluster} has {len(matches) or 'no'} runs called {run}",
                fix=fix,
            )
        return matches[0], known[matches[0]]


def option_of(paths: RunPaths, backend: str) -> str:
    """Return what commands about a run need besides its name: nothing on the machine that has
    started it."""
    return f" --backend {backend}" if paths.is_copy else ""


@contextlib.contextmanager
def _needs_answer() -> Iterator[None]:
    """Raise NodeLostError where the scheduler does not answer."""
    try:
        yield
    except SilentError as error:
        raise NodeLostError(str(error), fix="try again once the scheduler answers") from error
