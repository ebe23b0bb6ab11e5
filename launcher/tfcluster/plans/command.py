"""The program and argv of a task, and the paths in them, from the spec's `job`."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tfcluster.plans.plan import Plan, TaskId

if TYPE_CHECKING:
    from tfcluster.spec.job import Job, Step, TaskStep

DATA_SERVER_MODULE: Final = "tfcluster_workers.data_service"
"""The program of the tasks of the tf.data service."""
PREPARE_MODULE: Final = "tfcluster_workers.data.prepare"
FUNCTION_MODULE: Final = "tfcluster_workers.function"
"""The program of a function or a notebook cell; see `tfcluster.functions`."""
FUNCTION_FOLDER: Final = ".tfcluster/function-"
"""The beginning of the folder that is the program's argument, relative to the workdir."""
FUNCTION_CODE: Final = "code.py"
"""The file, in that folder, with the source of that function."""
DATA_OPTIONS: Final = ("--dataset", "--data-dir")


def function_folders(plan: Plan) -> tuple[str, ...]:
    """Return the folder of the function or cell that the tasks run, relative to the workdir."""
    return tuple(name for name in plan.include if name.startswith(FUNCTION_FOLDER))


@dataclass(frozen=True, slots=True)
class Program:
    """A program to run; exactly one of script, module and command is set."""

    script: str | None = None
    module: str | None = None
    command: Sequence[str] | None = None
    args: Sequence[str] = ()
    is_override: bool = False
    """True if it comes from ``job.per_task``: then it gets no arguments of the command line."""

    @property
    def has_hooks(self) -> bool:
        """True if it can be started through `tfcluster_workers.boot`."""
        return self.command is None


def find_program(job: Job, task: TaskId) -> Program:
    """Return the job's program, changed by ``job.per_task`` for ``worker``, then ``worker:1``.

    A task of the tf.data service has a program of its own.
    """
    if task.serves_data:
        return Program(module=DATA_SERVER_MODULE, is_override=True)
    program = program_of(job)
    for key in (task.job, str(task)):
        if (step := job.per_task.get(key)) is None:
            continue
        if step.has_program:
            program = _task_program(step)
        elif step.args is not None:
            program = replace(program, args=step.args)
    return program


def programs(job: Job) -> tuple[Program, ...]:
    """Return the job's program, and those of single tasks."""
    steps = (step for step in job.per_task.values() if step.has_program)
    return (program_of(job), *map(_task_program, steps))


def program_of(step: Step) -> Program:
    """Return the program of a job or of its prepare step."""
    return Program(step.script, step.module, step.command, step.args)


def _task_program(step: TaskStep) -> Program:
    return Program(step.script, step.module, step.command, step.args or (), is_override=True)


def resolve_path(path: str, folder: str, environ: Mapping[str, str]) -> str:
    """Return `path`, relative to `folder`, as an absolute path; ``~`` is the launcher's home."""
    if path == "~" or path.startswith("~/"):
        path = environ.get("HOME", "~") + path[1:]
    return posixpath.normpath(posixpath.join(folder, path))


def resolve_storage(path: str, folder: str, environ: Mapping[str, str]) -> str:
    """Return `resolve_path(…)`, but a URL such as ``gs://bucket/x`` unchanged."""
    return path if "://" in path else resolve_path(path, folder, environ)


def build_argv(
    program: Program,
    *,
    python: str,
    workdir: str,
    bundle: str,
    boot: bool,
    more: Sequence[str],
) -> tuple[str, ...]:
    """Return the argv of `program`; `boot`: start it through `tfcluster_workers.boot`."""
    args = (*program.args, *more)
    if program.command is not None:
        return (*program.command, *args)
    start = (python, f"{bundle}/workers/tfcluster_workers/boot.py") if boot else (python,)
    if program.script is not None:
        script = posixpath.normpath(posixpath.join(workdir, program.script))
        return (*start, *(("script",) if boot else ()), script, *args)
    return (*start, "module" if boot else "-m", program.module or "", *args)


def data_args(program: Program, args: Sequence[str]) -> tuple[str, ...]:
    """Return the data options in `args`, for the prepare step of an example job."""
    if program.module != PREPARE_MODULE:
        return ()
    values = dict(zip(args, (*args[1:], ""), strict=False))  # `args` may be empty
    apart = (part for name in DATA_OPTIONS if name in values for part in (name, values[name]))
    joined = (arg for arg in args if arg.startswith(tuple(f"{name}=" for name in DATA_OPTIONS)))
    return (*apart, *joined)


def python_path(current: str | None, bundle: str) -> str:
    """Return PYTHONPATH with `tfcluster_workers` last, so that user modules keep precedence."""
    return ":".join(part for part in (current, f"{bundle}/workers") if part)
