"""One call from a spec to its plan: look at the machine, unpack the bundle, resolve."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfcluster.backends import bundle
from tfcluster.errors import SurroundingsError
from tfcluster.plan import checks, joined, secrecy
from tfcluster.plan.make import make_plan
from tfcluster.plan.plan import Plan
from tfcluster.plan.surroundings import Surroundings
from tfcluster.run import registry
from tfcluster.run.paths import RunPaths
from tfcluster.run.surroundings import gather, nothing
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
    around: Surroundings
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
        return secrecy.covered(kept, shown=self.spec.job.not_secret)

    def obstacles(self) -> tuple[SurroundingsError, ...]:
        """What would make this plan fail on this machine; a plan can be shown in spite of it."""
        return tuple(checks.find(self.spec, self.plan, self.around))

    def apart(self, names: Sequence[str]) -> Planned:
        """The same without the tasks `names`, which the user starts by hand; raises UsageError."""
        tasks = [joined.named((task.id for task in self.plan.tasks), name) for name in names]
        return replace(self, plan=joined.apart(self.plan, tasks)) if tasks else self

    def require(self) -> Plan:
        """The plan, if nothing stands in its way; raises the first obstacle (exit 3)."""
        checks.require(self.spec, self.plan, self.around)
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
    meanwhile: Callable[[], None] = nothing,
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
    meanwhile: Callable[[], None] = nothing,
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
    meanwhile: Callable[[], None] = nothing,
) -> Planned:
    """Plan a spec for this machine, which is also called what `here` holds.

    `meanwhile` is called while the tasks' Python is asked what it is: with what takes time here.

    Raises SpecError (exit 2) for what the spec names and is not there, UsageError (exit 2) and
    InterpreterError (exit 3) as `gather` and `make_plan` do.
    """
    from tfcluster.run import named_paths  # pydantic: only where a spec is read

    named_paths.require(loaded, environ=environ, here=here, python=python)
    folder = bundle.unpack(bundle.build(), bundle.cache_dir(environ))
    around = gather(
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
        around,
        spec_path=str(loaded.path) if loaded.path else None,
        args=args,
        set_paths=loaded.set_paths,
    )
    return Planned(loaded.spec, plan, around, tuple(args), python)
