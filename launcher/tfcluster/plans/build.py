"""The making of a plan from a spec and the facts of the machine, and the notes shown with it."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, TypeVar

from tfcluster import kinds
from tfcluster.kinds import BackendKind
from tfcluster.plans import command, preloading, remote_paths, secrets, trackers
from tfcluster.plans.context import LOCAL, PlacedTask, PlanContext
from tfcluster.plans.environment import UNSET, Variables
from tfcluster.plans.job_facts import has_hooks, needed_packages, runs_python, strategy_name
from tfcluster.plans.keras_settings import (
    changed_settings,
    has_keras_3,
    keras_notes,
    with_inherited_switch,
)
from tfcluster.plans.placement import by_machine, by_node, container, find_task_gpus
from tfcluster.plans.plan import (
    CheckpointPlan,
    Command,
    NetworkMode,
    NodePlan,
    Plan,
    Resources,
    Supervision,
    TaskId,
    TaskPlan,
)
from tfcluster.plans.resources import Share, background_tasks, explain_sharing, share_machine

if TYPE_CHECKING:
    from tfcluster.plans.command import Program
    from tfcluster.spec.fields import Section
    from tfcluster.spec.model import ClusterSpec

T = TypeVar("T", CheckpointPlan, Resources, Supervision)


def make_plan(
    spec: ClusterSpec,
    context: PlanContext,
    *,
    spec_path: str | None = None,
    args: Sequence[str] = (),
    set_paths: Collection[str] = (),
) -> Plan:
    """Resolve `spec` as far as values allow.

    `args` are appended to ``job.args``; `set_paths` are the dotted paths given with ``--set``,
    whose environment variables override all others. Raises UsageError (exit 2) for a variable
    that the spec takes from the launcher's environment and that is not set there. Errors in the
    environment are found by `preflight.rules`, so that a plan can be shown despite them.
    """
    builder = _PlanBuilder.of(spec, context, args, set_paths)
    plan = Plan(
        name=spec.name,
        spec_path=spec_path,
        kind=spec.job.kind,
        strategy=strategy_name(spec),
        nodes=tuple(builder.nodes()),
        tasks=tuple(builder.tasks()),
        prepare=dict(builder.prepare()),
        supervision=_supervision(spec, context),
        checkpoints=_checkpoints(spec, context),
        hooks=has_hooks(spec),
        workdir=builder.workdir,
        needs=needed_packages(spec, context),
        include=tuple(spec.job.include),
        withheld=tuple(_withheld(spec, context, spec_path)),
        settings=changed_settings(spec),
        preload=preloading.modules(spec, context.code),
        resources=builder.resources(),
        interface=spec.runtime.interface if builder.has_other_hosts else None,
        port_range=spec.runtime.port_range,
        without_trackers=_is_without_trackers(spec),
        roles=dict(_roles(spec)),
    )
    notes = (*_find_notes(spec, plan, context), *builder.explain_sharing())
    return replace(plan, notes=tuple(dict.fromkeys(notes)))


@dataclass(frozen=True, slots=True)
class _PlanBuilder:
    """The values that the nodes, tasks and prepare steps of one plan are made from."""

    spec: ClusterSpec
    context: PlanContext
    args: tuple[str, ...]
    shares: Mapping[TaskId, Share]
    variables: Variables
    workdir: str

    @classmethod
    def of(
        cls,
        spec: ClusterSpec,
        context: PlanContext,
        args: Sequence[str],
        set_paths: Collection[str],
    ) -> _PlanBuilder:
        variables = Variables(spec, context, frozenset(set_paths))
        workdir = command.resolve_path(spec.job.workdir, context.spec_dir, context.environ)
        of_tasks = dict(_shares(spec, context))
        return cls(spec, context, tuple(args), of_tasks, variables, workdir)

    @property
    def has_other_hosts(self) -> bool:
        """True if tasks use the networks of several machines."""
        used = [task.kind.capabilities for task in self.context.tasks]
        return any(backend.uses_host_network and not backend.shares_filesystem for backend in used)

    def nodes(self) -> Iterator[NodePlan]:
        needs_python = runs_python(self.spec)
        for name, tasks in by_node(self.context.tasks).items():
            first, in_container = tasks[0], None
            if first.kind.capabilities.has_image:
                in_container = container(self.spec, self.context, first, self.shares[first.id])
            yield NodePlan(
                name=name,
                backend=first.backend,
                interpreter=self.context.interpreters.get(name) if needs_python else None,
                workdir=self._workdir(name),
                network=_network(self.spec, first.kind),
                destination=self._destination(first),
                container=in_container,
                wrap=tuple(self.spec.runtime.wrap),
                trackers=self._trackers(name),
            )

    def tasks(self) -> Iterator[TaskPlan]:
        workers_serve = strategy_name(self.spec) == "parameter_server"
        for placed in self.context.tasks:
            share, job = self.shares[placed.id], placed.id.job
            program = command.find_program(self.spec.job, placed.id)
            if placed.kind.capabilities.has_one_task and share.gpus is not None:
                share = replace(share, gpus=tuple(range(len(share.gpus))))  # counted from 0 inside
            yield TaskPlan(
                id=placed.id,
                node=placed.node,
                host=placed.host,
                port=placed.port,
                command=self._command(placed, program, share),
                cores=share.cores,
                gpus=share.gpus,
                has_own_command=has_hooks(self.spec) and not program.has_hooks,
                in_cluster=placed.id.is_in_gang,
                serves=placed.id.serves_data or job == "ps" or (job == "worker" and workers_serve),
            )

    def prepare(self) -> Iterator[tuple[str, Command]]:
        if (step := self.spec.job.prepare) is None:
            return
        program = command.program_of(step)
        for node, tasks in by_node(self.context.tasks).items():
            argv = command.build_argv(
                program,
                python=self._python(node),
                workdir=self._workdir(node),
                bundle=self.context.bundle(node),
                boot=False,
                more=command.data_args(program, (*self.spec.job.args, *self.args)),
            )
            env = self.variables.for_prepare(node, tasks[0].host)
            yield node, Command(argv, env, self._workdir(node), UNSET)

    def resources(self) -> Resources:
        """Return the spec's resources, with all GPUs if one task sees all: then none is dealt."""
        resources = _section(Resources, self.spec.resources)
        sees_all = any(placed.gpus == "all" for placed in self.context.tasks)
        return replace(resources, gpus="all") if sees_all else resources

    def explain_sharing(self) -> Iterator[str]:
        """Yield a note where tasks of this machine share GPUs although the spec names none."""
        if self.spec.resources.gpus is not None:
            return
        for tasks in by_machine(self.context.tasks):
            even = {task.id: self.shares[task.id] for task in tasks if task.gpus is None}
            if sentence := explain_sharing(even):
                yield sentence

    def _command(self, placed: PlacedTask, program: Program, share: Share) -> Command:
        argv = command.build_argv(
            program,
            python=self._python(placed.node),
            workdir=self._workdir(placed.node),
            bundle=self.context.bundle(placed.node),
            boot=has_hooks(self.spec) and program.has_hooks,
            more=() if program.is_override else self.args,
        )
        variables = self.variables.for_task(placed, share)
        return Command(argv, variables, self._workdir(placed.node), UNSET)

    def _trackers(self, node: str) -> tuple[str, ...]:
        """Return the trackers' variables of tasks here; of another node its probe knows the rest:
        what is installed, and what its own environment sets."""
        python = self.context.interpreters.get(node)
        if node != LOCAL or python is None or _is_without_trackers(self.spec):
            return ()
        if trackers.PACKAGES.isdisjoint(python.packages):
            return ()
        return trackers.find_variables(python.packages, self.context.environ)

    def _workdir(self, node: str) -> str:
        """Return the workdir on this machine, or the path of its copy on another node."""
        if node == LOCAL:
            return self.workdir
        return remote_paths.workdir(node, self.spec.runtime.of_host(node, "workdir")[0])

    def _destination(self, placed: PlacedTask) -> str | None:
        if not placed.kind.capabilities.has_addresses:
            return None
        return self.spec.runtime.of_host(placed.host, "ssh")[0]

    def _python(self, node: str) -> str:
        python = self.context.interpreters.get(node)
        return python.path if python is not None else "python3"


def _is_without_trackers(spec: ClusterSpec) -> bool:
    """Return whether no task gets trackers' variables; which Python a command runs is not known."""
    return spec.job.trackers == "off" or not runs_python(spec)


def _roles(spec: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Yield the roles with settings of their own for the spec's backend, and these as text."""
    for job, role in spec.runtime.roles.items():
        values = role.model_dump(mode="json", exclude_unset=True).get(spec.runtime.backend) or {}
        texts = {
            name: value if isinstance(value, str) else json.dumps(value)
            for name, value in values.items()
            if value is not None
        }
        if texts:
            yield job, ", ".join(f"{name} {text}" for name, text in texts.items())


def _network(spec: ClusterSpec, kind: BackendKind) -> NetworkMode:
    written = spec.runtime.network
    if kind.capabilities.simulates_network or not isinstance(written, str):
        return "simulated"
    return written


def _shares(spec: ClusterSpec, context: PlanContext) -> Iterator[tuple[TaskId, Share]]:
    is_search = spec.job.kind == "tuner"
    for tasks in by_machine(context.tasks):
        is_local = context.is_here(tasks[0].backend)
        ids = [placed.id for placed in tasks]
        of_machine = share_machine(
            ids,
            _section(Resources, spec.resources),
            cores=context.cores if is_local else None,
            gpus=context.gpus if is_local else None,
            task_gpus=find_task_gpus(tasks, is_search=is_search),
            background=background_tasks(ids, is_search=is_search),
        )
        yield from of_machine.items()


def _withheld(spec: ClusterSpec, context: PlanContext, spec_path: str | None) -> Iterator[str]:
    if spec.job.env_file is not None:
        yield command.resolve_path(spec.job.env_file, context.spec_dir, context.environ)
    written = spec.model_dump(mode="json", exclude_unset=True)
    if spec_path is not None and secrets.holds_secrets(
        written, shown=spec.job.not_secret, named=spec.job.secrets
    ):
        yield posixpath.join(context.spec_dir, posixpath.basename(spec_path))


def _section(kind: type[T], section: Section) -> T:
    """Return the values of a section of the spec that its namesake in the plan has."""
    return kind(**{field.name: getattr(section, field.name) for field in fields(kind)})


def _supervision(spec: ClusterSpec, context: PlanContext) -> Supervision:
    section = _section(Supervision, spec.supervision)
    return replace(
        section, on_end=section.on_end and secrets.find_webhook(section.on_end, context.environ)
    )


def _checkpoints(spec: ClusterSpec, context: PlanContext) -> CheckpointPlan:
    written, folder, env = spec.checkpoints, context.spec_dir, context.environ
    return replace(
        _section(CheckpointPlan, written),
        dir=written.dir and command.resolve_storage(written.dir, folder, env),
        to=written.to and command.resolve_storage(written.to, folder, env),
    )


def _find_notes(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[str]:
    """Yield notes of one sentence each, the most important first."""
    imports_keras = "keras" in context.packages
    for node in plan.nodes:
        if node.interpreter is not None and has_keras_3(node.interpreter):
            inherited = with_inherited_switch(spec, node.name, context)
            yield from keras_notes(inherited, node.interpreter, imports_keras=imports_keras)
    has_orbax = context.code is not None and context.code.has_orbax and plan.strategy == "jax"
    if has_orbax and spec.trainer_count > 1 and plan.checkpoints.dir is None:
        yield (
            "with several processes Orbax waits for ever if each has a folder of its own: set"
            " checkpoints.dir to one that all tasks share"
        )
    if spec.resources.memory is not None and not plan.images:
        yield "resources.memory has no effect without containers (--backend docker)"
    is_local = any(context.is_here(node.backend) for node in plan.nodes)
    if plan.resources.gpus == "all" and context.gpus == () and is_local:
        yield 'gpus is "all", but this machine has no GPU: its tasks train on the CPU'
    if plan.interface is not None:
        yield f"TF_CONFIG gets each node's address on {plan.interface}, which its agent finds"
    elif spec.runtime.interface is not None:
        yield "runtime.interface has no effect without other hosts or nodes of Slurm"
    if isinstance(requested := plan.resources.gpus, int | tuple) and requested:
        for node in plan.nodes:
            if kinds.get(node.backend).jobs is not None and node.container is None:
                yield (
                    f"resources.gpus counts the GPUs of a node from 0, whichever {node.backend} has"
                    f" given it: leave it out, and set runtime.{node.backend}.gpus_per_task"
                )
    if spec.runtime.ports is not None and plan.images:
        yield "runtime.ports has no effect in containers, which have all ports to themselves"
    for kind in dict.fromkeys(kinds.get(node.backend) for node in plan.nodes):
        if sentence := kind.explain_unused(spec.runtime, context.environ):
            yield sentence
        if spec.supervision.on_end and kind.jobs and not kind.is_allocated(context.environ):
            yield "supervision.on_end happens where the coordinator is: in the job of the run"
    if spec.runtime.user is not None and not plan.images:
        yield "runtime.user has no effect without containers (--backend docker)"
    yield from preloading.explain_cold_starts(spec, plan, context)
    if spec.strategy.communication == "AUTO" and any(task.gpus for task in plan.tasks):
        yield (
            "communication AUTO uses RING over gRPC even on GPUs: "
            "--set strategy.communication=NCCL is faster there"
        )
