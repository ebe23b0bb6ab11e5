"""Plan a spec for this machine: check its paths, place the bundle, gather facts, make the plan."""

from __future__ import annotations

import os
import posixpath
import shlex
import socket
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster import kinds
from tfcluster.agent.error_text import describe_error, reason_of
from tfcluster.backends import bundle
from tfcluster.discovery import interpreters, launchers
from tfcluster.discovery.machine_facts import (
    addresses_to_compare,
    gather,
    own_addresses,
    requested_python,
)
from tfcluster.errors import SpecError, similar_file
from tfcluster.plans import command, placement, secrets
from tfcluster.plans.build import make_plan
from tfcluster.plans.context import LOCAL, PlacedTask, PlanContext
from tfcluster.plans.job_facts import with_found_strategy
from tfcluster.plans.placement import by_node, hosts_of, is_local, place_tasks
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.plans.script_analysis import Notebook
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec import NOTEBOOK, UNCHANGED, PlanOptions
from tfcluster.spec import load as spec_load
from tfcluster.spec.allocation import Allocation
from tfcluster.spec.cluster import task_counts
from tfcluster.spec.fields import Mistake
from tfcluster.spec.job import Job
from tfcluster.spec.load import LoadedSpec
from tfcluster.spec.model import ClusterSpec

Source = str | RunPaths | Mapping[str, Any] | None
"""A file, an earlier run, a value, or None for ``./tfcluster.json`` or the like."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with the spec and the facts it was made from."""

    spec: ClusterSpec
    plan: Plan
    context: PlanContext
    options: PlanOptions = UNCHANGED
    allocation: Allocation | None = None
    """The launcher that has given the addresses of the spec's cluster."""

    def spec_to_keep(self) -> dict[str, Any]:
        """Return the spec with the command line's changes, which gives the same plan again.

        Secret values are left out; the launcher's environment gives them again. So are the nodes
        of a scheduler's job: a later run has others.
        """
        kept = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if self.allocation is not None and not self.allocation.joins:
            kept["cluster"] = {job: len(tasks) for job, tasks in kept["cluster"].items()}
        if args := self.options.args:
            job = kept["job"]
            for step in (job, *(job["per_task"][key] for key in _keys_with_args(self.spec.job))):
                step["args"] = [*(step.get("args") or ()), *args]
        for values in _narrower_env(kept):  # which would override `job.env` in the next plan
            for name in self.options.env.keys() & values.keys():
                del values[name]
        interpreter = self.plan.nodes[0].interpreter
        is_callers = all(
            node.interpreter is not None and node.interpreter.why is interpreters.Reason.CALLING
            for node in self.plan.nodes
        )
        if interpreter is not None and (self.options.python is not None or is_callers):
            runtime = kept.setdefault("runtime", {})
            runtime["python"] = interpreter.path
            for host in (runtime.get("hosts") or {}).values():
                host.pop("python", None)
        return secrets.redact_spec(
            kept, shown=self.spec.job.not_secret, named=self.spec.job.secrets
        )

    def without_tasks(self, names: Sequence[str]) -> Planned:
        """Return the plan without the tasks `names`, which the user starts by hand.

        Raises UsageError for an unknown name.
        """
        tasks = [placement.find_task((task.id for task in self.plan.tasks), name) for name in names]
        return replace(self, plan=placement.exclude_tasks(self.plan, tasks)) if tasks else self

    def only(self, tasks: Collection[TaskId]) -> Planned:
        """Return the plan of the machine that starts `tasks` itself, for `tfcluster join`.

        Raises UsageError for a port that is not fixed.
        """
        return replace(self, plan=placement.keep_tasks(self.plan, tasks))


def _narrower_env(spec: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the variables of single hosts and tasks in the JSON of a spec."""
    hosts = (spec.get("runtime") or {}).get("hosts") or {}
    lists = (tasks for tasks in spec["cluster"].values() if isinstance(tasks, list))
    entries = (task for tasks in lists for task in tasks if isinstance(task, dict))
    yield from (each["env"] for each in (*hosts.values(), *entries) if each.get("env"))


def _keys_with_args(job: Job) -> list[str]:
    """Return the keys of ``job.per_task`` whose own arguments the command line's are added to."""
    programs = {key for key, entry in job.per_task.items() if entry.has_program}
    with_args = (key for key, entry in job.per_task.items() if entry.args is not None)
    return [key for key in with_args if not programs & {key, key.partition(":")[0]}]


def load(
    source: Source,
    options: PlanOptions = UNCHANGED,
    *,
    where: str = "spec",
    find_allocation: Callable[[Mapping[str, str]], Allocation | None] = launchers.find_nodes,
    environ: Mapping[str, str] = os.environ,
) -> LoadedSpec:
    """Load a spec; for an earlier run its spec, in the folder it was started from.

    `find_allocation` gives numbers of tasks their addresses, if `environ` is a launcher's. Raises
    SpecError (exit 2), and SetupError (exit 3) for variables that cannot be used.
    """
    allocate = partial(find_allocation, environ)
    if not isinstance(source, RunPaths):
        return spec_load.load(source, options, where=where, find_allocation=allocate)
    loaded = spec_load.load(source.spec, options, is_complete=True, find_allocation=allocate)
    state = registry.load(source)
    path = Path(state.spec) if state.spec else None
    return replace(loaded, path=path, folder=Path(state.spec_folder or Path.cwd()))


def plan(
    source: Source | LoadedSpec,
    options: PlanOptions = UNCHANGED,
    *,
    calling_python: str | None = None,
    environ: Mapping[str, str] = os.environ,
    own_names: Collection[str] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> Planned:
    """Plan a spec for this machine.

    `calling_python`: that of local tasks if neither `options` nor the spec name one; `own_names`:
    more names of this machine; `meanwhile`: other slow work of a start on this machine, called
    while the tasks' Python reports its version.

    Raises SpecError (exit 2), also for paths of the spec that do not exist, UsageError (exit 2)
    and InterpreterError (exit 3) as `gather` and `make_plan` do.
    """
    loaded = source if isinstance(source, LoadedSpec) else load(source, options, environ=environ)
    loaded = _in_allocation(loaded, environ)
    spec, own = loaded.spec, addresses_to_compare(loaded.spec)
    if loaded.allocation is not None and not loaded.allocation.joins:
        own |= _local_names(spec.hosts, own)
    tasks = place_tasks(spec, own.union(own_names))
    require_paths(loaded, tasks, environ=environ, python=options.python)
    context = gather(
        spec,
        tasks,
        spec_dir=loaded.folder,
        bundle=str(_place_bundle(tasks, environ)),
        python=options.python,
        calling_python=calling_python,
        environ=environ,
        meanwhile=meanwhile,
    )
    spec = with_found_strategy(spec, context)
    made = make_plan(
        spec,
        context,
        spec_path=str(loaded.path) if loaded.path else None,
        args=options.args,
        set_paths=loaded.set_paths,
    )
    if loaded.allocation is not None:
        made = replace(made, notes=(loaded.allocation.note, *made.notes))
    made = replace(made, defaults=loaded.defaults)
    return Planned(spec, made, context, options, loaded.allocation)


def _place_bundle(tasks: Sequence[PlacedTask], environ: Mapping[str, str]) -> Path:
    """Return the folder of the bundle on this machine, unpacked unless all tasks are in containers.

    Hosts may share this machine's home, and then find the bundle there.
    """
    built, cache = bundle.build(), bundle.cache_dir(environ)
    if all(task.kind.capabilities.has_image for task in tasks):
        return cache / built.digest
    return bundle.unpack(built, cache)


def _in_allocation(loaded: LoadedSpec, environ: Mapping[str, str]) -> LoadedSpec:
    """Return the spec for the allocation of a scheduler that this process runs in, if in any.

    A spec with addresses says itself where its tasks run.
    """
    spec = loaded.spec
    if spec.hosts:
        return loaded
    runtime = kinds.adopt(spec.runtime, task_counts(spec.cluster), environ)
    if runtime is spec.runtime:
        return loaded
    return replace(loaded, spec=spec.model_copy(update={"runtime": runtime}))


def plan_own_part(
    source: str | None,
    names: Sequence[str] = (),
    options: PlanOptions = UNCHANGED,
    *,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Planned, tuple[TaskId, ...]]:
    """Plan a cluster of which this machine starts the tasks `names`; return these tasks, too.

    Without `names` they are those that the launcher of `environ` has started this process for, or
    the tasks at this machine's addresses. Raises UsageError (exit 2) for an unknown task,
    SetupError (exit 3) if no task belongs to this machine, and what `plan` raises.
    """
    # The spec's backend is for `up`: here each machine starts its own tasks.
    options = replace(options, fields={"join": ("runtime.backend", "auto"), **options.fields})
    loaded = load(source, options, find_allocation=launchers.find_allocation, environ=environ)
    given, own = loaded.allocation, own_addresses()
    if given is not None and given.task is not None and not names:
        names = [given.task]
    placed = place_tasks(loaded.spec, own)
    ids = [task.id for task in placed]
    tasks = tuple(dict.fromkeys(placement.find_task(ids, name) for name in names))
    if not tasks:
        hosts = hosts_of(placed)
        known = own | _local_names(hosts, own)
        if given is not None and given.host is not None:
            known = frozenset([given.host])
        rank = launchers.find_rank(environ)
        tasks = launchers.tasks_of_process(
            placement.local_tasks(placed, known), task_count=len(ids), hosts=hosts, rank=rank
        )
    names_here = frozenset(task.host.strip("[]") for task in placed if task.id in tasks)
    return plan(loaded, options, own_names=names_here), tasks


def _local_names(hosts: Sequence[str], own: Collection[str]) -> frozenset[str]:
    """Return the `hosts` whose name resolves to one of the `own` addresses."""
    with ThreadPoolExecutor(min(32, len(hosts) or 1)) as lookups:
        addresses_of = lookups.map(_addresses, hosts)
        return frozenset(
            host
            for host, addresses in zip(hosts, addresses_of, strict=True)
            if any(is_local(address, own) for address in addresses)
        )


def _addresses(host: str) -> list[str]:
    try:
        return [str(info[4][0]) for info in socket.getaddrinfo(host.strip("[]"), None)]
    except OSError:
        return []


def require_paths(
    loaded: LoadedSpec,
    tasks: Collection[PlacedTask],
    *,
    environ: Mapping[str, str] = os.environ,
    python: str | None = None,
) -> None:
    """Raise SpecError (exit 2) for all paths of the spec that do not exist on this machine.

    Each problem has its place in the spec. `python`: the value of ``--python``, which replaces the
    spec's. Paths of other machines are not checked.
    """
    mistakes = _missing(loaded.spec, str(loaded.folder.absolute()), environ, tasks, python)
    if problems := [loaded.problem(finding) for finding in mistakes]:
        raise SpecError(problems)


def _missing(
    spec: ClusterSpec,
    folder: str,
    environ: Mapping[str, str],
    tasks: Collection[PlacedTask],
    python: str | None,
) -> Iterator[Mistake]:
    workdir = command.resolve_path(spec.job.workdir, folder, environ)
    if problem := _path_problem(workdir, "folder"):
        yield Mistake(("job", "workdir"), problem, f"it is relative to the spec's folder, {folder}")
    else:
        is_copied = any(task.node != LOCAL for task in tasks)
        yield from _missing_below(spec, workdir, is_copied=is_copied)
    if spec.job.env_file is not None:
        path = command.resolve_path(spec.job.env_file, folder, environ)
        if problem := _path_problem(path, "file"):
            fix = f"it is relative to the spec's folder, {folder}"
            if os.path.isabs(spec.job.env_file):
                fix = "check the path"
            yield Mistake(("job", "env_file"), problem, fix)
    if python is None:
        yield from _missing_python(spec, folder, environ, tasks)


def _missing_below(spec: ClusterSpec, workdir: str, *, is_copied: bool) -> Iterator[Mistake]:
    """Yield what is missing in the workdir; `is_copied`: other machines get a copy of it."""
    scripts: list[tuple[tuple[str, ...], str | None]] = [(("job", "script"), spec.job.script)]
    if spec.job.prepare is not None:
        scripts.append((("job", "prepare", "script"), spec.job.prepare.script))
    for key, entry in spec.job.per_task.items():
        scripts.append((("job", "per_task", key, "script"), entry.script))
    for field, script in scripts:
        if script is not None:
            path = posixpath.normpath(posixpath.join(workdir, script))
            if problem := _path_problem(path, "script"):
                fix = f"{_similar(path)}it is relative to the workdir, {workdir}"
                yield Mistake(field, problem, fix)
            elif path.endswith(NOTEBOOK) and (problem := _notebook_problem(path, spec, field)):
                fix = f"convert it: jupyter nbconvert --to script {shlex.quote(path)}"
                yield Mistake(field, problem, fix)
    for index, pattern in enumerate(spec.job.include if is_copied else ()):
        from tfcluster.nodes.code_sync import include_problem

        if (explained := include_problem(Path(workdir), pattern)) is not None:
            yield Mistake(("job", "include", index), *explained)


def _notebook_problem(path: str, spec: ClusterSpec, field: Sequence[str]) -> str:
    """Return why a notebook cannot run as the script in `field`; empty if it can."""
    if "prepare" in field:
        return "the prepare step is a plain script, not a notebook"
    if spec.job.hooks == "off":
        return 'a notebook needs the hooks, and job.hooks is "off"'
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return f"{path} cannot be read: {describe_error(error)}"
    problem = Notebook.read(text).problem
    return f"{path} {problem}" if problem else ""


def _missing_python(
    spec: ClusterSpec, folder: str, environ: Mapping[str, str], tasks: Collection[PlacedTask]
) -> Iterator[Mistake]:
    local_tasks = by_node(tasks).get(LOCAL)
    path, field = requested_python(spec, local_tasks[0].host) if local_tasks else (None, ())
    if path is not None and interpreters.find(path, Path(folder), environ) is None:
        message = interpreters.missing_message(path, Path(folder))
        yield Mistake(field, message, interpreters.NAME_ONE)


def _similar(path: str) -> str:
    """Return a question that names the file beside `path` with a similar name; else ""."""
    folder, name = os.path.split(path)
    try:
        near = similar_file(name, [entry.name for entry in os.scandir(folder) if entry.is_file()])
    except OSError:
        return ""
    return f"did you mean {near}? " if near else ""


def _path_problem(path: str, kind: str) -> str:
    """Return what is wrong with a local path; empty if it can be used."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {kind} at {path}"
    except OSError as error:
        return f"{path} cannot be read: {reason_of(error)}"
    is_folder = stat.S_ISDIR(mode)
    return f"{path} is not a folder" if kind == "folder" and not is_folder else ""
