"""Runs that a scheduler knows and this machine's home does not: `ps` and `down` with --backend."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import click

from tfcluster.backends import jobs
from tfcluster.backends.jobs import Jobs, JobState, Phase
from tfcluster.backends.past_runs import SilentError
from tfcluster.cli.completion import backend_names
from tfcluster.errors import NodeLostError, UnknownRunError, UsageError

_PATIENCE_S = 10.0
_POLL_S = 0.5


def scheduler_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that name a scheduler to `command`."""
    for option in (
        click.option("--namespace", help="Namespace of the runs at Kubernetes."),
        click.option("--context", help="Context of the kubeconfig, for runs at Kubernetes."),
        click.option(
            "--backend",
            metavar="NAME",
            shell_complete=backend_names,
            help="Ask this scheduler, also about runs of other machines.",
        ),
    ):
        command = option(command)
    return command


def scheduler_of(
    backend: str | None, context: str | None, namespace: str | None, **others: bool
) -> Scheduler | None:
    """Return the scheduler that the options of a command name, or None.

    `others`: options of the command → whether they are given, which make no sense with one.
    Raises UsageError, SetupError.
    """
    if backend is None:
        if context is not None or namespace is not None:
            raise UsageError(
                "--context and --namespace choose a cluster of a scheduler, and none is named",
                fix="add --backend kubernetes",
            )
        return None
    if wrong := [f"--{name}" for name, is_given in others.items() if is_given]:
        raise UsageError(f"{' and '.join(wrong)} cannot be combined with --backend")
    return Scheduler(backend, context, namespace)


class Scheduler:
    """The scheduler of a backend, asked about all runs that it has."""

    def __init__(self, backend: str, context: str | None, namespace: str | None) -> None:
        """Reach it. Raises UsageError, SetupError."""
        from tfcluster.spec.kubernetes import Kubernetes  # imports pydantic
        from tfcluster.spec.sections import Runtime

        found = jobs.of_backend(backend)
        if found is None:
            raise UsageError(f"{backend} has no scheduler", fix="name slurm or kubernetes")
        self._its: Jobs = found
        settings = Kubernetes.model_construct(context=context, namespace=namespace)
        runtime = Runtime.model_construct(kubernetes=settings)
        try:
            self._cluster = found.cluster(runtime, patience_s=_PATIENCE_S)
        except SilentError as error:
            raise _silent(error) from error

    def runs(self) -> Mapping[str, JobState]:
        """Return run → the state of its job."""
        try:
            return self._its.look(self._cluster, patience_s=_PATIENCE_S)
        except SilentError as error:
            raise _silent(error) from error

    def stop(self, run: str, say: Callable[[str], None], *, now: bool) -> None:
        """Stop a run and wait until it has ended; `say` what happens. Raises UnknownRunError."""
        known = self.runs()
        matches = [name for name in known if run in (name, name[-4:])]
        matches = matches or [name for name in known if name.startswith(f"{run}-")]
        if len(matches) != 1:
            raise UnknownRunError(
                f"{self._cluster} has {len(matches) or 'no'} runs called {run}",
                fix="`tfcluster ps --backend NAME` lists them",
            )
        say(f"stopping {matches[0]}")
        try:
            self._its.stop(known[matches[0]].job, cluster=self._cluster, now=now)
        except SilentError as error:
            raise _silent(error) from error
        while (state := self.runs().get(matches[0])) is not None:
            if state.phase in (Phase.ENDING, Phase.OVER):
                break
            time.sleep(_POLL_S)
        reason = f": {state.reason}" if state is not None and state.reason else ""
        say(f"{matches[0]} has ended{reason}")


def _silent(error: SilentError) -> NodeLostError:
    return NodeLostError(str(error), fix="try again once the scheduler answers")
