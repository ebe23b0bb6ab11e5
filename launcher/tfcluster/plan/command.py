"""The argv of a task and the paths in it, from what the spec says about the job."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from tfcluster.plan.plan import TaskId

if TYPE_CHECKING:
    from tfcluster.spec.job import Job, TaskStep

PREPARE_MODULE: Final = "tfcluster_workers.data.prepare"
DATA_OPTIONS: Final = ("--dataset", "--data-dir")


class Runnable(Protocol):
    """The spec's `job` and its `prepare`: exactly one of the three is set."""

    @property
    def script(self) -> str | None: ...
    @property
    def module(self) -> str | None: ...
    @property
    def command(self) -> Sequence[str] | None: ...
    @property
    def args(self) -> Sequence[str]: ...


@dataclass(frozen=True, slots=True)
class Program:
    """What one task runs: exactly one of the first three is set."""

    script: str | None = None
    module: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] = ()
    is_own: bool = False
    """It is of ``job.per_task``, not the job's: arguments of the command line are not for it."""

    @property
    def has_hooks(self) -> bool:
        """Whether it can be started through `tfcluster_workers.boot`."""
        return self.command is None


def of_task(job: Job, task: TaskId) -> Program:
    """The job's program, changed by ``job.per_task`` for ``worker`` and then ``worker:1``."""
    found = _program(job)
    for key in (task.job, str(task)):
        if (own := job.per_task.get(key)) is None:
            continue
        if own.has_program:
            found = _own_program(own)
        elif own.args is not None:
            found = replace(found, args=own.args)
    return found


def programs(job: Job) -> tuple[Program, ...]:
    """The job's program, and those of single tasks."""
    own = (step for step in job.per_task.values() if step.has_program)
    return (_program(job), *map(_own_program, own))


def _program(job: Job) -> Program:
    return Program(job.script, job.module, job.command, job.args)


def _own_program(step: TaskStep) -> Program:
    return Program(step.script, step.module, step.command, step.args or (), is_own=True)


def absolute(path: str, folder: str, environ: Mapping[str, str]) -> str:
    """`path` relative to `folder`, ``~`` read as the launcher's home."""
    if path == "~" or path.startswith("~/"):
        path = environ.get("HOME", "~") + path[1:]
    return posixpath.normpath(posixpath.join(folder, path))


def storage(path: str, folder: str, environ: Mapping[str, str]) -> str:
    """The same; a URL such as ``gs://bucket/x`` stays as it is."""
    return path if "://" in path else absolute(path, folder, environ)


def argv(
    what: Runnable, *, python: str, workdir: str, bundle: str, boot: bool, more: Sequence[str] = ()
) -> tuple[str, ...]:
    """What is executed; `boot`: through the workers' half, which reports for the script."""
    args = (*what.args, *more)
    if what.command is not None:
        return (*what.command, *args)
    start = (python, f"{bundle}/workers/tfcluster_workers/boot.py") if boot else (python,)
    if what.script is not None:
        script = posixpath.normpath(posixpath.join(workdir, what.script))
        return (*start, *(("script",) if boot else ()), script, *args)
    return (*start, "module" if boot else "-m", what.module or "", *args)


def data_args(step: Runnable, args: Sequence[str]) -> tuple[str, ...]:
    """What a ready-made job's arguments say about its data: its prepare step needs the same."""
    if step.module != PREPARE_MODULE:
        return ()
    values = dict(zip(args, (*args[1:], ""), strict=False))  # of no arguments there is no value
    alone = (part for name in DATA_OPTIONS if name in values for part in (name, values[name]))
    joined = (arg for arg in args if arg.startswith(tuple(f"{name}=" for name in DATA_OPTIONS)))
    return (*alone, *joined)


def python_path(current: str | None, bundle: str) -> str:
    """PYTHONPATH with the workers' half at its very end, so that nothing of the user's moves."""
    return ":".join(part for part in (current, f"{bundle}/workers") if part)
