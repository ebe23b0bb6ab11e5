"""The environment of a task that its user starts by hand, outside of any run or as part of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from tfcluster.discovery.planning import plan_own_part
from tfcluster.errors import UnknownRunError, UsageError
from tfcluster.plans import placement, trackers
from tfcluster.plans.command import python_path
from tfcluster.plans.plan import EnvVar, Plan, TaskId
from tfcluster.plans.tf_config import SOURCE, Attempt, environment, fixed
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths, home
from tfcluster.spec import UNCHANGED, PlanOptions


@dataclass(frozen=True, slots=True)
class ManualStart:
    """One task and all its environment variables, sorted by name."""

    plan: Plan
    task: TaskId
    env: tuple[EnvVar, ...]


def build(spec_or_run: str, name: str, options: PlanOptions = UNCHANGED) -> ManualStart:
    """Build the start of task `name` of a spec file, or of a run started with `--except`.

    Raises UsageError for a task that cannot be started by hand, and for a port that the spec does
    not fix: without a run nothing chooses it.
    """
    if (paths := _run(spec_or_run)) is None:
        return _build_from_spec(spec_or_run, name, options)
    if options.sets or options.python or options.profile:
        raise UsageError(f"{paths.run_id} is a run; --set, --profile and --python need a spec")
    return _build_from_run(paths, name)


def _run(spec_or_run: str) -> RunPaths | None:
    """Return the run; None for a spec file, even a missing one, which the spec loader reports."""
    if spec_or_run == "-" or os.path.lexists(os.path.expanduser(spec_or_run)):
        return None
    try:
        return registry.resolve(spec_or_run)
    except UnknownRunError:
        return None


def _build_from_spec(spec: str, name: str, options: PlanOptions) -> ManualStart:
    planned, (task,) = plan_own_part(spec, [name], options)
    try:
        attempt = fixed(planned.plan)
    except ValueError as error:
        fix = 'write every address with its port, for example "127.0.0.1:2222"'
        message = f"env needs fixed ports in the spec: {error}"
        raise UsageError(message, fix=fix) from None
    folder = home() / "by-hand" / planned.plan.name / task.file_name
    attempt_env = environment(
        attempt,
        task,
        run_id="by-hand",
        checkpoint_dir=str(folder / "checkpoints"),
        tensorboard_dir=str(folder / "tensorboard"),
        tuner_dir=str(folder.parent / "tuner"),
        holds_ports=False,
    )
    bundle = planned.context.bundle(planned.plan.task(task).node)
    return _merge(planned.plan, task, attempt_env, bundle)


def _build_from_run(paths: RunPaths, name: str) -> ManualStart:
    plan = registry.load_plan(paths)
    if not plan.by_hand:
        fix = "`tfcluster up --except TASK` starts a run without TASK"
        raise UsageError(f"{paths.run_id} starts all of its tasks itself", fix=fix)
    task = placement.find_task((other.id for other in plan.by_hand), name)
    state = registry.load(paths)
    whole = replace(plan, tasks=(*plan.tasks, *plan.elsewhere), elsewhere=())
    addresses = {other.task: other.address for other in state.tasks} | state.by_hand
    ports = {TaskId.parse(n): int(at.rpartition(":")[2]) for n, at in addresses.items()}
    if any(ports[other.id] == 0 for other in whole.listening):
        message = f"{paths.run_id} has not chosen its ports yet"
        raise UsageError(message, fix="try again when its tasks have started")
    resumed = state.resumed_from or {}
    attempt_env = environment(
        Attempt(whole, 1, tuple(ports), ports),
        task,
        run_id=paths.run_id,
        checkpoint_dir=str(paths.task_checkpoints(task)),
        tensorboard_dir=str(paths.tensorboard(task)),
        tuner_dir=str(paths.tuner),
        restored_step=resumed.get("step"),
    )
    group = state.tracker_group or paths.run_id
    attempt_env += trackers.environment(whole, task, run_id=paths.run_id, group=group)
    return _merge(_with_own_secrets(whole, task), task, attempt_env, _bundle(whole, task))


def _with_own_secrets(plan: Plan, task: TaskId) -> Plan:
    """Fill in the secrets from this shell: a plan on disk holds none."""
    planned = plan.task(task)
    env = tuple(
        replace(var, value=os.environ.get(var.name, "")) if var.secret else var
        for var in planned.command.env
    )
    filled = replace(planned, command=replace(planned.command, env=env))
    return replace(plan, tasks=tuple(filled if t.id == task else t for t in plan.tasks))


def _bundle(plan: Plan, task: TaskId) -> str:
    """Return the folder of the bundle, from the path of boot in it; empty for a task without."""
    planned = plan.task(task)
    return str(Path(planned.command.argv[1]).parents[2]) if plan.is_hooked(planned) else ""


def _merge(plan: Plan, task: TaskId, attempt_env: Iterable[EnvVar], bundle: str) -> ManualStart:
    planned = plan.task(task)
    variables = {var.name: var for var in (*planned.command.env, *attempt_env)}
    if plan.is_hooked(planned):
        from_spec = variables.get("PYTHONPATH")
        base = from_spec.value if from_spec else os.environ.get("PYTHONPATH")
        path = python_path(base, bundle)
        variables["PYTHONPATH"] = EnvVar("PYTHONPATH", path, SOURCE, origin="tfcluster")
    return ManualStart(plan, task, tuple(variables[name] for name in sorted(variables)))
