"""Plan a spec for this machine: check its paths, place the bundle, gather facts, make the plan."""

from __future__ import annotations

import os
import posixpath
import socket
import stat
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster import kinds
from tfcluster.agent.error_text import reason_of
from tfcluster.backends import bundle
from tfcluster.discovery import interpreters
from tfcluster.discovery.machine_facts import (
    CALLING,
    addresses_to_compare,
    gather,
    own_addresses,
    requested_python,
)
from tfcluster.errors import SetupError, SpecError, similar_file
from tfcluster.plans import checks, command, placement, secrets
from tfcluster.plans.build import make_plan
from tfcluster.plans.context import LOCAL, PlanContext
from tfcluster.plans.placement import PlacedTask, by_node, hosts_of, is_local, place_tasks
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec import NO_CHOICE, HostChoice
from tfcluster.spec.fields import Mistake

if TYPE_CHECKING:
    from tfcluster.spec.job import Job
    from tfcluster.spec.load import LoadedSpec
    from tfcluster.spec.model import ClusterSpec


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, with the spec and the facts it was made from."""

    spec: ClusterSpec
    plan: Plan
    context: PlanContext
    args: tuple[str, ...] = ()
    """Appended to ``job.args``."""
    python: str | None = None
    """The value of ``--python``."""

    def spec_to_keep(self) -> dict[str, Any]:
        """Return the spec with the command line's changes, which gives the same plan again.

        Secret values are left out; the launcher's environment gives them again.
        """
        kept = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if self.args:
            job = kept["job"]
            for step in (job, *(job["per_task"][key] for key in _keys_with_args(self.spec.job))):
                step["args"] = [*(step.get("args") or ()), *self.args]
        interpreter = self.plan.nodes[0].interpreter
        reasons = {node.interpreter and node.interpreter.why for node in self.plan.nodes}
        if interpreter is not None and (self.python is not None or reasons == {CALLING}):
            runtime = kept.setdefault("runtime", {})
            runtime["python"] = interpreter.path
            for host in (runtime.get("hosts") or {}).values():
                host.pop("python", None)
        return secrets.redact_spec(kept, shown=self.spec.job.not_secret)

    def obstacles(self) -> tuple[SetupError, ...]:
        """Return what would make this plan fail on this machine; `plan` still shows the plan."""
        return tuple(checks.find(self.spec, self.plan, self.context))

    def without_tasks(self, names: Sequence[str]) -> Planned:
        """Return the plan without the tasks `names`, which the user starts by hand.

        Raises UsageError for an unknown name.
        """
        tasks = [placement.find_task((task.id for task in self.plan.tasks), name) for name in names]
        return replace(self, plan=placement.exclude_tasks(self.plan, tasks)) if tasks else self

    def require(self) -> Plan:
        """Return the plan; raise the first obstacle (exit 3) if there is one."""
        checks.require(self.spec, self.plan, self.context)
        return self.plan


def _keys_with_args(job: Job) -> list[str]:
    """Return the keys of ``job.per_task`` whose own arguments the command line's are added to."""
    programs = {key for key, entry in job.per_task.items() if entry.has_program}
    with_args = (key for key, entry in job.per_task.items() if entry.args is not None)
    return [key for key in with_args if not programs & {key, key.partition(":")[0]}]


def plan_file(
    source: str | RunPaths | None,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    python: str | None = None,
    args: Sequence[str] = (),
    hosts: HostChoice = NO_CHOICE,
    meanwhile: Callable[[], None] = lambda: None,
) -> Planned:
    """Load a spec and plan it, as `load_spec` and `plan_spec` do."""
    loaded = load_spec(source, sets=sets, options=options, hosts=hosts)
    return plan_spec(loaded, python=python, args=args, meanwhile=meanwhile)


def load_spec(
    source: str | RunPaths | None,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    hosts: HostChoice = NO_CHOICE,
) -> LoadedSpec:
    """Load a spec; for an earlier run its spec, in the folder it was started from.

    Raises SpecError (exit 2).
    """
    from tfcluster.spec.load import load_file  # imports pydantic

    file = source.spec if isinstance(source, RunPaths) else source
    loaded = load_file(file, sets=sets, options=options, hosts=hosts)
    if isinstance(source, RunPaths):
        state = registry.load(source)
        spec_path = Path(state.spec) if state.spec else None
        folder = state.spec_folder or (spec_path and spec_path.parent) or state.workdir
        loaded = replace(loaded, path=spec_path, folder=Path(folder) if folder else Path.cwd())
    return loaded


def plan_spec(
    loaded: LoadedSpec,
    *,
    python: str | None = None,
    calling_python: str | None = None,
    args: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    local_names: Collection[str] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> Planned:
    """Plan a loaded spec for this machine.

    `calling_python`: that of local tasks if neither `python` nor the spec names one;
    `local_names`: more names of this machine; `meanwhile`: other slow work of a start on this
    machine, called while the tasks' Python reports its version.

    Raises SpecError (exit 2) for paths of the spec that do not exist, UsageError (exit 2) and
    InterpreterError (exit 3) as `gather` and `make_plan` do.
    """
    loaded = _in_allocation(loaded, environ)
    require_paths(loaded, environ=environ, local_names=local_names, python=python)
    context = gather(
        loaded.spec,
        spec_dir=loaded.folder,
        bundle=str(_place_bundle(loaded.spec, environ)),
        python=python,
        calling_python=calling_python,
        environ=environ,
        local_names=local_names,
        meanwhile=meanwhile,
    )
    plan = make_plan(
        loaded.spec,
        context,
        spec_path=str(loaded.path) if loaded.path else None,
        args=args,
        set_paths=loaded.set_paths,
    )
    return Planned(loaded.spec, plan, context, tuple(args), python)


def _place_bundle(spec: ClusterSpec, environ: Mapping[str, str]) -> Path:
    """Return the folder of the bundle on this machine, unpacked unless all tasks are in containers.

    Hosts may share this machine's home, and then find the bundle there.
    """
    built, cache = bundle.build(), bundle.cache_dir(environ)
    if all(task.kind.capabilities.has_image for task in place_tasks(spec, ())):
        return cache / built.digest
    return bundle.unpack(built, cache)


def _in_allocation(loaded: LoadedSpec, environ: Mapping[str, str]) -> LoadedSpec:
    """Return the spec for the allocation of a scheduler that this process runs in, if in any.

    A spec with addresses says itself where its tasks run.
    """
    from tfcluster.spec.cluster import count

    spec = loaded.spec
    if spec.hosts:
        return loaded
    sharing = spec.task_count - count(spec.cluster, "evaluator")
    runtime = kinds.adopt(spec.runtime, sharing, environ)
    if runtime is spec.runtime:
        return loaded
    return replace(loaded, spec=spec.model_copy(update={"runtime": runtime}))


_AUTO_BACKEND: Mapping[str, tuple[str, Any]] = {"join": ("runtime.backend", "auto")}
"""Override of the spec's backend, which only `up` needs: with `join` each machine starts its own
tasks."""


def plan_join(
    source: str | None,
    *,
    names: Sequence[str] = (),
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    python: str | None = None,
    args: Sequence[str] = (),
) -> Planned:
    """Plan this machine's tasks of a cluster, or the tasks `names` (``worker:1``).

    Raises UsageError (exit 2) for an unknown task and a port that is not fixed, SpecError,
    SetupError (exit 3) if no task belongs to this machine.
    """
    loaded, tasks = _load(source, names, sets, {**_AUTO_BACKEND, **(options or {})})
    planned = _plan(loaded, tasks, python, args)
    return replace(planned, plan=placement.keep_tasks(planned.plan, tasks))


def plan_manual_start(
    source: str, name: str, *, sets: Sequence[str] = (), python: str | None = None
) -> tuple[Planned, TaskId]:
    """Plan the whole cluster on the machine where the user starts the task `name` by hand."""
    loaded, tasks = _load(source, [name], sets, _AUTO_BACKEND)
    return _plan(loaded, tasks, python, ()), tasks[0]


def _load(
    source: str | None,
    names: Sequence[str],
    sets: Sequence[str],
    options: Mapping[str, tuple[str, Any]],
) -> tuple[LoadedSpec, tuple[TaskId, ...]]:
    from tfcluster.spec.load import load_file  # imports pydantic

    loaded = load_file(source, sets=sets, options=options)
    own = own_addresses()
    placed = place_tasks(loaded.spec, own)
    ids = [task.id for task in placed]
    tasks = tuple(dict.fromkeys(placement.find_task(ids, name) for name in names))
    return loaded, tasks or placement.local_tasks(placed, own | _local_names(hosts_of(placed), own))


def _local_names(hosts: Sequence[str], own: Collection[str]) -> frozenset[str]:
    """Return the `hosts` whose name resolves to one of the `own` addresses."""
    with ThreadPoolExecutor(min(32, len(hosts) or 1)) as lookups:
        found = lookups.map(_addresses, hosts)
        return frozenset(
            host
            for host, addresses in zip(hosts, found, strict=True)
            if any(is_local(address, own) for address in addresses)
        )


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)]
    except OSError:
        return []


def _plan(
    loaded: LoadedSpec, tasks: Sequence[TaskId], python: str | None, args: Sequence[str]
) -> Planned:
    """Plan with the hosts of `tasks` as names of this machine."""
    return plan_spec(
        loaded,
        python=python,
        args=args,
        local_names=frozenset(
            task.host.strip("[]") for task in place_tasks(loaded.spec, ()) if task.id in tasks
        ),
    )


def require_paths(
    loaded: LoadedSpec,
    *,
    environ: Mapping[str, str] = os.environ,
    local_names: Collection[str] = (),
    python: str | None = None,
) -> None:
    """Raise SpecError (exit 2) for all paths of the spec that do not exist on this machine.

    Each problem has its place in the spec. `local_names`: more names of this machine; `python`:
    the value of ``--python``, which replaces the spec's. Paths of other machines are not checked.
    """
    own = addresses_to_compare(loaded.spec).union(local_names)
    found = _missing(loaded.spec, str(loaded.folder.absolute()), environ, own, python)
    if problems := [loaded.problem(finding) for finding in found]:
        raise SpecError(problems)


def _missing(
    spec: ClusterSpec,
    folder: str,
    environ: Mapping[str, str],
    own: Collection[str],
    python: str | None,
) -> Iterator[Mistake]:
    tasks = place_tasks(spec, own)
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
    for index, pattern in enumerate(spec.job.include if is_copied else ()):
        from tfcluster.nodes.code_sync import include_problem

        if (found := include_problem(Path(workdir), pattern)) is not None:
            yield Mistake(("job", "include", index), *found)


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
        near = similar_file(name, os.listdir(folder))
    except OSError:
        return ""
    return f"did you mean {near}? " if near else ""


def _path_problem(path: str, what: str) -> str:
    """Return what is wrong with a local path; empty if it can be used."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {what} at {path}"
    except OSError as error:
        return f"{path} cannot be read: {reason_of(error)}"
    is_folder = stat.S_ISDIR(mode)
    return f"{path} is not a folder" if what == "folder" and not is_folder else ""
