"""One call from a spec to its plan: look at the machine, unpack the bundle, resolve."""

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

from tfcluster.agent.error_text import reason_of
from tfcluster.backends import bundle
from tfcluster.discovery import interpreters
from tfcluster.discovery.machine_facts import (
    addresses_to_compare,
    empty_context,
    gather,
    own_addresses,
    python_wish,
)
from tfcluster.errors import SpecError, SurroundingsError
from tfcluster.plan import checks, command, placement, secrets
from tfcluster.plan.build import make_plan
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.placement import PlacedTask, by_node, hosts_of, is_local, place_tasks
from tfcluster.plan.plan import Plan, TaskId
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths
from tfcluster.spec.fields import Mistake
from tfcluster.spec.host_choice import NO_CHOICE, HostChoice

if TYPE_CHECKING:
    from tfcluster.spec.job import Job
    from tfcluster.spec.load import LoadedSpec
    from tfcluster.spec.model import ClusterSpec


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with the facts it was made from."""

    spec: ClusterSpec
    plan: Plan
    context: PlanContext
    args: tuple[str, ...] = ()
    """Appended to ``job.args``."""
    python: str | None = None
    """``--python``."""

    def spec_to_keep(self) -> dict[str, Any]:
        """The spec with all that the command line said: planned again it gives the same.

        Secret values are left out; planned again they come from the launcher's environment.
        """
        kept = self.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
        if self.args:
            job = kept["job"]
            for step in (job, *(job["per_task"][key] for key in _taking_args(self.spec.job))):
                step["args"] = [*(step.get("args") or ()), *self.args]
        interpreter = self.plan.nodes[0].interpreter
        if self.python is not None and interpreter is not None:
            runtime = kept.setdefault("runtime", {})
            runtime["python"] = interpreter.path
            for host in (runtime.get("hosts") or {}).values():
                host.pop("python", None)
        return secrets.redact_spec(kept, shown=self.spec.job.not_secret)

    def obstacles(self) -> tuple[SurroundingsError, ...]:
        """What would make this plan fail on this machine; a plan can be shown in spite of it."""
        return tuple(checks.find(self.spec, self.plan, self.context))

    def apart(self, names: Sequence[str]) -> Planned:
        """The same without the tasks `names`, which the user starts by hand; raises UsageError."""
        tasks = [placement.find_task((task.id for task in self.plan.tasks), name) for name in names]
        return replace(self, plan=placement.exclude_tasks(self.plan, tasks)) if tasks else self

    def require(self) -> Plan:
        """The plan, if nothing stands in its way; raises the first obstacle (exit 3)."""
        checks.require(self.spec, self.plan, self.context)
        return self.plan


def _taking_args(job: Job) -> list[str]:
    """Entries of ``job.per_task`` that have arguments of their own for the job's program: those
    of the command line come behind them."""
    programs = {key for key, own in job.per_task.items() if own.has_program}
    with_args = (key for key, own in job.per_task.items() if own.args is not None)
    return [key for key in with_args if not programs & {key, key.partition(":")[0]}]


def plan_file(
    source: str | None,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    python: str | None = None,
    args: Sequence[str] = (),
    hosts: HostChoice = NO_CHOICE,
    meanwhile: Callable[[], None] = empty_context,
) -> Planned:
    """Load a spec as the command line names it, and plan it; SpecError (exit 2) for a bad one."""
    from tfcluster.spec.load import load_file  # pydantic: only where a spec is read

    loaded = load_file(source, sets=sets, options=options, hosts=hosts)
    return plan_spec(loaded, python=python, args=args, meanwhile=meanwhile)


def plan_again(
    run: RunPaths,
    *,
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    python: str | None = None,
    args: Sequence[str] = (),
    hosts: HostChoice = NO_CHOICE,
    meanwhile: Callable[[], None] = empty_context,
) -> Planned:
    """Plan what an earlier run was, as it was started; see `plan_file`."""
    from tfcluster.spec.load import load_file

    loaded = load_file(run.spec, sets=sets, options=options, hosts=hosts)
    state = registry.load(run)
    spec_path = Path(state.spec) if state.spec else None
    folder = state.spec_folder or (spec_path and spec_path.parent) or state.workdir
    loaded = replace(loaded, path=spec_path, folder=Path(folder) if folder else Path.cwd())
    return plan_spec(loaded, python=python, args=args, meanwhile=meanwhile)


def plan_spec(
    loaded: LoadedSpec,
    *,
    python: str | None = None,
    args: Sequence[str] = (),
    environ: Mapping[str, str] = os.environ,
    here: Collection[str] = (),
    meanwhile: Callable[[], None] = empty_context,
) -> Planned:
    """Plan a spec for this machine, which is also called what `here` holds.

    `meanwhile` is called while the tasks' Python is asked what it is: with what takes time here.

    Raises SpecError (exit 2) for what the spec names and is not there, UsageError (exit 2) and
    InterpreterError (exit 3) as `gather` and `make_plan` do.
    """

    require(loaded, environ=environ, here=here, python=python)
    folder = bundle.unpack(bundle.build(), bundle.cache_dir(environ))
    context = gather(
        loaded.spec,
        spec_dir=loaded.folder,
        bundle=str(folder),
        python=python,
        environ=environ,
        here=here,
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


_BACKEND: Mapping[str, tuple[str, Any]] = {"join": ("runtime.backend", "auto")}
"""Whatever reaches the other machines for `up`: here each starts its own."""


def plan_join(
    source: str | None,
    *,
    names: Sequence[str] = (),
    sets: Sequence[str] = (),
    options: Mapping[str, tuple[str, Any]] | None = None,
    python: str | None = None,
    args: Sequence[str] = (),
) -> Planned:
    """The plan of this machine's tasks, or of those called `names` (``worker:1``).

    Raises UsageError (exit 2) for an unknown task and a port that is not fixed, SpecError,
    SurroundingsError (exit 3) where no task is this machine's.
    """
    loaded, tasks = _load(source, names, sets, {**_BACKEND, **(options or {})})
    planned = _plan(loaded, tasks, python, args)
    return replace(planned, plan=placement.keep_tasks(planned.plan, tasks))


def plan_by_hand(
    source: str, name: str, *, sets: Sequence[str] = (), python: str | None = None
) -> tuple[Planned, TaskId]:
    """The plan of the whole cluster as the machine sees it that starts the task `name` itself."""
    loaded, tasks = _load(source, [name], sets, _BACKEND)
    return _plan(loaded, tasks, python, ()), tasks[0]


def _load(
    source: str | None,
    names: Sequence[str],
    sets: Sequence[str],
    options: Mapping[str, tuple[str, Any]],
) -> tuple[LoadedSpec, tuple[TaskId, ...]]:
    from tfcluster.spec.load import load_file  # pydantic: only where a spec is read

    loaded = load_file(source, sets=sets, options=options)
    own = own_addresses()
    listed = place_tasks(loaded.spec, own)
    ids = [placed.id for placed in listed]
    tasks = tuple(dict.fromkeys(placement.find_task(ids, name) for name in names))
    return loaded, tasks or placement.local_tasks(listed, own | _own_names(hosts_of(listed), own))


def _own_names(hosts: Sequence[str], own: Collection[str]) -> frozenset[str]:
    """Those of `hosts` that a look-up leads from to one of the `own` addresses."""
    with ThreadPoolExecutor(min(32, len(hosts) or 1)) as looks:
        found = looks.map(_addresses, hosts)
        return frozenset(
            host
            for host, there in zip(hosts, found, strict=True)
            if any(is_local(address, own) for address in there)
        )


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)]
    except OSError:
        return []


def _plan(
    loaded: LoadedSpec, tasks: Sequence[TaskId], python: str | None, args: Sequence[str]
) -> Planned:
    """With the hosts of `tasks` taken for names of this machine."""
    listed = place_tasks(loaded.spec, ())
    return plan_spec(
        loaded,
        python=python,
        args=args,
        here=frozenset(placed.host.strip("[]") for placed in listed if placed.id in tasks),
    )


def require(
    loaded: LoadedSpec,
    *,
    environ: Mapping[str, str] = os.environ,
    here: Collection[str] = (),
    python: str | None = None,
) -> None:
    """Raise SpecError (exit 2) for what is not there, each thing with the place that names it.

    `here`: more names of this machine; `python`: the value of ``--python``, which replaces the
    spec's. What only another machine can have is not checked.
    """
    own = addresses_to_compare(loaded.spec).union(here)
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
    listed = place_tasks(spec, own)
    workdir = command.resolve_path(spec.job.workdir, folder, environ)
    if fault := _fault(workdir, "folder"):
        yield Mistake(("job", "workdir"), fault, f"it is relative to the spec's folder, {folder}")
    else:
        yield from _below(spec, workdir, has_copies=any(placed.node != LOCAL for placed in listed))
    if spec.job.env_file is not None:
        path = command.resolve_path(spec.job.env_file, folder, environ)
        if fault := _fault(path, "file"):
            fix = f"it is relative to the spec's folder, {folder}"
            yield Mistake(("job", "env_file"), fault, fix)
    if python is None:
        yield from _python(spec, folder, environ, listed)


def _below(spec: ClusterSpec, workdir: str, *, has_copies: bool) -> Iterator[Mistake]:
    """What the workdir must hold; `has_copies`: other machines get a copy of it."""
    scripts: list[tuple[tuple[str, ...], str | None]] = [(("job", "script"), spec.job.script)]
    if spec.job.prepare is not None:
        scripts.append((("job", "prepare", "script"), spec.job.prepare.script))
    for key, own in spec.job.per_task.items():
        scripts.append((("job", "per_task", key, "script"), own.script))
    for field, script in scripts:
        if script is not None:
            path = posixpath.normpath(posixpath.join(workdir, script))
            if fault := _fault(path, "script"):
                yield Mistake(field, fault, f"it is relative to the workdir, {workdir}")
    for index, pattern in enumerate(spec.job.include if has_copies else ()):
        from tfcluster.nodes.code_sync import include_fault  # and asyncio with it

        if (wrong := include_fault(Path(workdir), pattern)) is not None:
            yield Mistake(("job", "include", index), *wrong)


def _python(
    spec: ClusterSpec, folder: str, environ: Mapping[str, str], listed: Collection[PlacedTask]
) -> Iterator[Mistake]:
    mine = by_node(listed).get(LOCAL)
    wish = python_wish(spec, mine[0].host) if mine else None
    if wish is not None and interpreters.find(wish[0], Path(folder), environ) is None:
        message = interpreters.not_there(wish[0], Path(folder))
        yield Mistake(wish[1], message, interpreters.NAME_ONE)


def _fault(path: str, what: str) -> str:
    """What is wrong with a local path; empty where it can be used."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return f"there is no {what} at {path}"
    except OSError as error:
        return f"{path} cannot be read: {reason_of(error)}"
    is_folder = stat.S_ISDIR(mode)
    return f"{path} is not a folder" if what == "folder" and not is_folder else ""
