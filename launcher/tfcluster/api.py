"""The Python API: load, plan, start and find runs; the command line uses it too.

`import tfcluster` offers these functions. See docs/guides/python_api.md.
"""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tfcluster import kinds, run_handle
from tfcluster.coordinator.exit_delay import delaying_exit
from tfcluster.errors import SetupError, TfclusterError, UsageError
from tfcluster.run_handle import Result, Run, Runs
from tfcluster.rundir import registry
from tfcluster.spec import HostChoice, LaunchOptions, PlanOptions, run_name

if TYPE_CHECKING:
    from tfcluster import functions
    from tfcluster.coordinator.launch import End, Launch, Watcher
    from tfcluster.coordinator.resume import Resume
    from tfcluster.discovery.planning import Planned
    from tfcluster.plans.plan import Plan
    from tfcluster.spec.load import LoadedSpec

_OPEN_FILES, _OPEN_FILES_OF_A_TASK = 20, 4
"""The least that an agent needs; with less it cannot even say so."""

SpecSource = str | os.PathLike[str] | Mapping[str, Any]
"""A spec: the path of its file, or its value, whose paths are relative to the current folder."""


def load(
    source: SpecSource,
    *,
    sets: Sequence[str] = (),
    hosts: str | None = None,
    profile: str | None = None,
) -> LoadedSpec:
    """Return the checked spec in `source`, with the user's defaults.

    `sets`: overrides such as ``"supervision.max_restarts=0"``; `hosts`: the machines of the
    workers, as for ``--hosts``; `profile`: a profile of the defaults besides `default`. Raises
    UsageError, with SpecError that has every problem.
    """
    from tfcluster.discovery import planning

    options = _plan_options(sets, hosts, profile=profile)
    return planning.load(
        source if isinstance(source, Mapping) else _text("the spec", source), options
    )


def plan(
    source: SpecSource | Run | LoadedSpec,
    *,
    sets: Sequence[str] = (),
    hosts: str | None = None,
    profile: str | None = None,
    python: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
) -> Planned:
    """Return what `start` would start: `.plan` has nodes, tasks and commands.

    A run as `source` is planned again, as it was started. `python`: the Python of the tasks; else
    the spec's, else for tasks on this machine the one that calls this. `args` are appended to
    ``job.args``; `sets`, `hosts` and `profile` as for `load`. Raises UsageError, with SpecError,
    and InterpreterError.
    """
    from tfcluster.discovery import planning
    from tfcluster.spec.load import LoadedSpec

    options = _plan_options(sets, hosts, python, args, profile)
    if isinstance(source, LoadedSpec) and (sets or hosts or profile):
        raise UsageError("sets, hosts and profile belong to `load`, which made this spec")
    if isinstance(source, Run):
        source = planning.load(source.paths, options)
    elif not isinstance(source, LoadedSpec):
        source = load(source, sets=sets, hosts=hosts, profile=profile)
    return planning.plan(source, options, calling_python=sys.executable)


def _plan_options(
    sets: Sequence[str],
    hosts: str | None,
    python: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
    profile: str | None = None,
) -> PlanOptions:
    """Return the arguments as one value; raises UsageError for arguments of another type."""
    _require_lists(sets=sets, args=args)
    choice, profile = HostChoice(hosts=_text_of("hosts", hosts)), _text_of("profile", profile)
    at, words = _text_of("python", python), tuple(args)
    return PlanOptions(tuple(sets), {}, choice, at, words, profile=profile)


def _require_lists(*, of_strings: bool = True, **arguments: object) -> None:
    """Raise UsageError for a string, which would be taken for a list of its characters.

    Also for what is no list, and with `of_strings` for a list of something else.
    """
    for name, value in arguments.items():
        if isinstance(value, str | bytes):
            raise UsageError(f"{name} is a string", fix=f"write a list: {name}=[{value!r}]")
        if not isinstance(value, Sequence):
            raise UsageError(f"{name} is a {type(value).__name__}", fix=f"write a list: {name}=[…]")
        if of_strings and (wrong := [item for item in value if not isinstance(item, str)]):
            kind = type(wrong[0]).__name__
            raise UsageError(f"{name} is a list with a {kind}", fix="write strings")


def _text(name: str, value: object) -> str:
    """Return a string or a path as a string; raise UsageError for anything else."""
    path = value.__fspath__() if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise UsageError(f"{name} is a {type(value).__name__}", fix="pass a string or a path")
    return path


def _text_of(name: str, value: object) -> str | None:
    return None if value is None else _text(name, value)


@delaying_exit()
def start(
    source: SpecSource | Run | LoadedSpec | Planned,
    *,
    detach: bool = False,
    resume: str | None = None,
    python: str | os.PathLike[str] | None = None,
    args: Sequence[str] = (),
    sets: Sequence[str] = (),
    hosts: str | None = None,
    profile: str | None = None,
    gather: bool = True,
    prepare: bool = True,
    preflight: bool = True,
    chaos: Sequence[str] = (),
) -> Run:
    """Start a run and return it as soon as it has a folder.

    The run ends with this process, except with `detach`, which starts a coordinator that survives
    it, like ``tfcluster up -d``, and except as a job of a scheduler. `resume` is ``RUN`` or
    ``RUN@STEP``; a run as `source` is started again. `python`, `args`, `sets`, `hosts` and
    `profile` are those of `plan`; `chaos` injects faults. Errors that only the nodes can find are
    part of the run's result.

    Raises UsageError, with SpecError, and SetupError.
    """
    from tfcluster.coordinator.resume import find
    from tfcluster.discovery.planning import Planned

    _require_lists(chaos=chaos)
    resumed = find(_text("resume", resume)) if resume is not None else None
    if not isinstance(source, Planned):
        source = plan(source, sets=sets, hosts=hosts, profile=profile, python=python, args=args)
    elif sets or hosts or profile or python or args:
        names = "sets, hosts, profile, python and args"
        raise UsageError(f"{names} belong to `plan`, which made this plan")
    options = LaunchOptions(
        detach=detach,
        gathers=gather,
        prepares=prepare,
        runs_preflight=preflight,
        chaos=tuple(chaos),
    )
    return start_launch(make_launch(source, options, resume=resumed))


def start_launch(made: Launch) -> Run:
    """Start the run in a job, another process or a thread; return it once it has a folder."""
    if made.is_submitted:
        from tfcluster.coordinator.submitting import submit

        return Run(submit(made))
    if made.options.detach:
        from tfcluster.coordinator.background import start_and_leave

        return Run(start_and_leave(made))
    from tfcluster.coordinator.foreground import start_thread

    return Run(start_thread(made, run_handle.end_with_process))


@delaying_exit()
def run(
    program: str | os.PathLike[str] | Callable[..., Any],
    *,
    workers: int = 2,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    name: str | None = None,
    sets: Sequence[str] = (),
    hosts: str | None = None,
    profile: str | None = None,
    python: str | os.PathLike[str] | None = None,
) -> Result:
    """Run a script, a notebook or a function as the workers of one cluster to its end.

    A script gets the strings `args`, as with ``tfcluster run``. A function is called on every
    worker with `args` and `kwargs`; `Result.value` is what it returned on the chief. Tasks on this
    machine run in the Python that calls this, unless `python` names another one. IPython shows a
    live view of the run.

    Ctrl-C stops the run. Raises JobFailed unless the run succeeds, FunctionError for a function or
    argument that cannot be sent, and what `start` raises.
    """
    _require_lists(of_strings=not callable(program), args=args)
    if not isinstance(kwargs or {}, Mapping):
        raise UsageError(f"kwargs is a {type(kwargs).__name__}", fix="pass a dictionary")
    if callable(program):
        from tfcluster import functions

        with functions.package(program, args, kwargs or {}, name=name) as package:
            started = start_package(
                package, workers, sets=sets, hosts=hosts, profile=profile, python=python
            )
            return _finish(started)
    if kwargs:
        raise UsageError("kwargs are for a function; a script gets args")
    spec = spec_of_program(_text("the program", program), args, workers=workers, name=name)
    return _finish(start(spec, sets=sets, hosts=hosts, profile=profile, python=python))


def _finish(started: Run) -> Result:
    """Return the result of a successful run; stop the run if anything interrupts the wait."""
    try:
        result = _watch(started)
    except BaseException:
        with contextlib.suppress(TfclusterError):
            started.stop()  # `wait` has stopped it already for Ctrl-C
        raise
    return result.check()


def _watch(started: Run) -> Result:
    """Wait for a run; a notebook, or IPython in a terminal, shows it meanwhile."""
    from tfcluster import functions

    if (shell := functions.ipython_shell()) is None:
        return started.wait()
    watched: Result = import_module("tfcluster.ipython").watch(shell, started)  # it is above
    return watched


def start_package(
    package: functions.Package,
    workers: int,
    *,
    sets: Sequence[str] = (),
    hosts: str | None = None,
    profile: str | None = None,
    python: str | os.PathLike[str] | None = None,
) -> Run:
    """Start a function or a cell, as `start` does; `package` must stay until the run has ended."""
    spec = {"cluster": {"worker": workers}, **package.spec()}
    loaded = package.added_to(load(spec, sets=sets, hosts=hosts, profile=profile))
    planned = plan(loaded, python=python)
    package.require_same_python(planned.plan)
    return start(planned)


def runs(*, live_only: bool = False) -> Runs:
    """Return the runs in tfcluster's home, oldest first."""
    found = registry.runs()
    return Runs(Run(paths) for paths, state in found if not (live_only and state.status.is_final))


def get_run(run: str | os.PathLike[str] | None = None, *, live_only: bool = False) -> Run:
    """Return the run that `run` names: an id, its last four characters, a name or a spec file.

    None means the latest run, with `live_only` the only live one. Raises UnknownRunError.
    """
    return Run(registry.resolve(_text_of("run", run), live_only=live_only))


def launch(made: Launch, watcher: Watcher) -> End | None:
    """Run a launch as `tfcluster up` does, in the main thread, and tell `watcher`.

    Signals stop the run. A launch in the background returns None once all tasks run, and one whose
    user leaves it returns None then. Raises a TfclusterError for whatever prevents the start.
    """
    if made.is_submitted:
        from tfcluster.coordinator.submitting import submit_and_watch

        return submit_and_watch(made, watcher)
    if made.options.detach or watcher.has_keys():
        from tfcluster.coordinator.background import start_and_watch

        return start_and_watch(made, watcher)
    from tfcluster.coordinator.foreground import run_to_end

    return run_to_end(made, watcher)


def spec_of_program(
    program: str,
    args: Sequence[str],
    *,
    workers: int,
    kind: Literal["script", "module", "command"] = "script",
    name: str | None = None,
) -> dict[str, Any]:
    """Return the spec of a program that runs as `workers` workers, without restarts."""
    stem = program if kind == "module" else Path(program).stem
    return {
        "name": name or run_name(stem, "run"),
        "cluster": {"worker": workers},
        "job": {kind: [program] if kind == "command" else program, "args": [*args], "workdir": "."},
        "supervision": {"max_restarts": 0},
    }


def _require_open_files(tasks: int) -> None:
    """Raise SetupError if the hard limit on open files cannot be enough for so many tasks here."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = _OPEN_FILES + _OPEN_FILES_OF_A_TASK * tasks
    if limit != resource.RLIM_INFINITY and limit < least:
        raise SetupError(
            f"this shell allows {limit} open files, and this run needs at least {least}",
            fix="raise the hard limit: `ulimit -n`, or /etc/security/limits.conf",
        )


def make_launch(
    planned: Planned, options: LaunchOptions, *, resume: Resume | None = None
) -> Launch:
    """Return everything that a coordinator needs; `resume` is the state to start from.

    Raises UsageError for an invalid fault and for options that such a run cannot have,
    SetupError for a limit on open files that is too low, InterpreterError without a TensorBoard,
    and the first obstacle of the plan.
    """
    from tfcluster.coordinator.launch import Launch, with_lease
    from tfcluster.plans.context import LOCAL
    from tfcluster.preflight import rules
    from tfcluster.rundir.chaos import parse

    plan, spec = rules.require_plan(planned), planned.spec_to_keep()
    _require_open_files(sum(task.node == LOCAL for task in plan.tasks))
    is_submitted = _is_submitted(plan.nodes[0].backend, options)
    faults = parse(options.chaos, plan) if options.chaos else ()
    if options.warm:
        from tfcluster.backends.local.warm_start import keep_warm

        plan = keep_warm(plan, planned.spec.runtime.warm_s)
    if options.detach and not is_submitted:
        plan = with_lease(plan, spec)
    if options.metrics_file is not None:
        _require_folder(options.metrics_file)
    tensorboard_python = None
    if options.tensorboard:
        from tfcluster.coordinator.curves.tensorboard_server import choose_python

        tensorboard_python = choose_python([plan])
    return Launch(
        plan,
        spec,
        spec_folder=planned.context.spec_dir,
        options=options,
        faults=faults,
        tensorboard_python=tensorboard_python,
        resume=resume,
        runtime=planned.spec.runtime,
        is_submitted=is_submitted,
    )


def _require_folder(metrics_file: str) -> None:
    """Raise UsageError if the folder of `metrics_file` takes no files."""
    folder = os.path.dirname(metrics_file)
    if os.path.isdir(metrics_file) or not os.access(folder, os.W_OK | os.X_OK):
        message = f"--metrics-file: {metrics_file} cannot be written"
        raise UsageError(message, fix=f"name a file in a folder that you may write: {folder}")


def _is_submitted(backend: str, options: LaunchOptions) -> bool:
    """Return whether the coordinator runs in a job of a scheduler.

    Raises UsageError for options that a run of this backend cannot have.
    """
    kind = kinds.get(backend)
    is_submitted = kind.jobs is not None and not kind.is_allocated(os.environ)
    if is_submitted and options.metrics_file:
        raise UsageError(
            "--metrics-file: the coordinator of this run, which would write it, runs in a job",
            fix="leave it out: /metrics of `tfcluster ui` has the run",
        )
    if is_submitted and options.tensorboard:
        raise UsageError(
            "--tensorboard: the coordinator of this run runs in a job, and its page could only be"
            " opened there",
            fix="leave it out, and serve the curves here: tfcluster tensorboard RUN",
        )
    return is_submitted


def require_scheduler(plan: Plan) -> None:
    """Raise UsageError unless the nodes of `plan` are those of a scheduler (``--submit``)."""
    backend = plan.nodes[0].backend
    if kinds.get(backend).jobs is None:
        raise UsageError(
            f"--submit: {backend} has no jobs", fix="name a scheduler: --backend slurm"
        )
