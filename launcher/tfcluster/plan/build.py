"""The making of a plan from a spec and the facts of the machine, and the notes shown with it."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tfcluster.plan import command, preloading, remote_paths, secrets
from tfcluster.plan.checks import needs_estimator, needs_tensorflow
from tfcluster.plan.context import LOCAL, PlanContext
from tfcluster.plan.environment import UNSET, Variables
from tfcluster.plan.keras_settings import (
    SWITCH,
    as_inherited,
    fails_with_keras_3,
    has_hooks,
    has_keras_3,
    install_tf_keras,
    is_patched,
    may_patch,
    strategy_name,
    tuned_settings,
    wants_keras_2,
)
from tfcluster.plan.placement import (
    DOCKER,
    PlacedTask,
    by_machine,
    by_node,
    container,
    inside,
    own_gpus,
    seats,
    shares_this_machine,
)
from tfcluster.plan.plan import (
    CheckpointPlan,
    Command,
    Interpreter,
    NodePlan,
    Plan,
    Resources,
    Supervision,
    TaskId,
    TaskPlan,
)
from tfcluster.plan.resources import Share, shares, stand_aside

if TYPE_CHECKING:
    from tfcluster.spec.model import ClusterSpec


_KERAS_3_FAILS = (
    "Keras 3 fails under MultiWorkerMirroredStrategy with 2 or more workers (keras#20585)"
)


def find(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[str]:
    """One sentence each, in the order in which they matter."""
    packages = {name.partition(".")[0] for name in context.imports or ()}
    for node in plan.nodes:
        if node.interpreter is not None and has_keras_3(node.interpreter):
            seen = as_inherited(spec, node.name, context)
            yield from _keras(seen, node.interpreter, imports_keras="keras" in packages)
            if not plan.needs_estimator:
                yield from _estimator(node.interpreter, context)
    if spec.resources.memory is not None and not plan.images:
        yield "resources.memory holds containers only (--backend docker)"
    if plan.resources.gpus == "all" and context.gpus == () and _uses_this_machine(plan, context):
        yield 'gpus is "all", and this machine has none: its tasks train on the CPU'
    if spec.runtime.user is not None and not plan.images:
        yield "runtime.user is for containers only (--backend docker)"
    yield from preloading.why_not(spec, plan, context)
    if spec.strategy.communication == "AUTO" and any(task.gpus for task in plan.tasks):
        yield (
            "communication AUTO runs RING over gRPC even on GPUs; "
            "--set strategy.communication=NCCL is faster there"
        )


def _estimator(python: Interpreter, context: PlanContext) -> Iterator[str]:
    """One that is used under a condition may be for an older TensorFlow."""
    if context.imports is None or context.code is None or not context.code.estimator.places:
        return
    yield (
        f"{context.code.estimator.places[0]} names tf.estimator, which TensorFlow"
        f" {python.packages['tensorflow']} does not have: it fails if it runs"
    )


def _uses_this_machine(plan: Plan, context: PlanContext) -> bool:
    return context.docker_is_here or any(task.node == LOCAL for task in plan.tasks)


def _keras(spec: ClusterSpec, python: Interpreter, *, imports_keras: bool) -> Iterator[str]:
    fails = fails_with_keras_3(spec) and not is_patched(spec, python)
    if not wants_keras_2(spec, python):
        if fails and spec.keras.version == "3":
            why = _why_not_patched(spec, python)
            yield f"{_KERAS_3_FAILS}, {why}: keras.version asks for it"
        return
    if imports_keras and fails:
        # TF_USE_LEGACY_KERAS changes tf.keras only (tensorflow/python/util/lazy_loader.py).
        fix = "write `import tf_keras as keras`, or use tf.keras"
        yield f"{_KERAS_3_FAILS}, {_why_not_patched(spec, python)}: {fix}"
    elif version := python.packages.get("tf-keras"):
        yield f"{_reason(spec, python)}: tf_keras {version} is used"
    elif fails:
        fix = f"leave `hooks` on, or {install_tf_keras(python)}"
        yield f"{_KERAS_3_FAILS}, {_why_not_patched(spec, python)}: {fix}"


def _reason(spec: ClusterSpec, python: Interpreter) -> str:
    if spec.keras.version == "2":
        return "keras.version is 2"
    if fails_with_keras_3(spec):
        return f"{_KERAS_3_FAILS}, {_why_not_patched(spec, python)}"
    return "Keras 3 does not know ParameterServerStrategy"


def _why_not_patched(spec: ClusterSpec, python: Interpreter) -> str:
    if not has_hooks(spec):
        return "and without hooks it cannot be patched"
    if not may_patch(spec):
        return f"and {SWITCH} is off"
    return f"and {python.packages.get('keras', 'this release')} is not one that is patched"


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
    whose environment variables outrank all others. Raises UsageError (exit 2) for a variable
    that is to be taken from the launcher's environment and is not there. What is wrong with
    the surroundings is found by `tfcluster.plan.checks`, so that a plan can be shown anyway.
    """
    making = _Making.of(spec, context, args, set_paths)
    plan = Plan(
        name=spec.name,
        spec_path=spec_path,
        kind=spec.job.kind,
        strategy=strategy_name(spec),
        nodes=tuple(making.nodes()),
        tasks=tuple(making.tasks()),
        prepare=dict(making.prepare()),
        supervision=_supervision(spec),
        checkpoints=_checkpoints(spec, context),
        hooks=has_hooks(spec),
        workdir=making.workdir,
        needs_tensorflow=needs_tensorflow(spec, context),
        needs_estimator=needs_estimator(spec, context),
        include=tuple(spec.job.include),
        withheld=tuple(_withheld(spec, context, spec_path)),
        settings=tuned_settings(spec),
        preload=preloading.modules(spec, context.code),
        resources=making.resources(),
    )
    return replace(plan, notes=tuple(find(spec, plan, context)))


@dataclass(frozen=True, slots=True)
class _Making:
    """What the parts of one plan have in common."""

    spec: ClusterSpec
    context: PlanContext
    args: tuple[str, ...]
    seats: tuple[PlacedTask, ...]
    variables: Variables
    workdir: str

    @classmethod
    def of(
        cls,
        spec: ClusterSpec,
        context: PlanContext,
        args: Sequence[str],
        set_paths: Collection[str],
    ) -> _Making:
        found = seats(spec, context.addresses)
        variables = Variables(spec, context, frozenset(set_paths), found)
        workdir = command.absolute(spec.job.workdir, context.spec_dir, context.environ)
        return cls(spec, context, tuple(args), found, variables, workdir)

    def nodes(self) -> Iterator[NodePlan]:
        of_tasks = dict(self._shares())
        for name, its_seats in by_node(self.seats).items():
            first = its_seats[0]
            python = self.context.interpreters.get(name)
            is_container = first.backend == DOCKER
            yield NodePlan(
                name=name,
                backend=first.backend,
                interpreter=None if self._is_command else python,
                workdir=self._workdir(name),
                network=self.spec.runtime.network,
                destination=self._destination(first),
                container=container(self.spec, self.context, first, of_tasks[first.id])
                if is_container
                else None,
            )

    def tasks(self) -> Iterator[TaskPlan]:
        of_tasks = dict(self._shares())
        serving = strategy_name(self.spec) == "parameter_server"
        for seat in self.seats:
            share = inside(of_tasks[seat.id]) if seat.backend == DOCKER else of_tasks[seat.id]
            job = seat.id.job
            yield TaskPlan(
                id=seat.id,
                node=seat.node,
                host=seat.host,
                port=seat.port,
                command=self._command(seat, share),
                cores=share.cores,
                gpus=share.gpus,
                has_own_command=self._has_own_command(seat.id),
                in_cluster=job != "evaluator",
                serves=job == "ps" or (job == "worker" and serving),
            )

    def prepare(self) -> Iterator[tuple[str, Command]]:
        if (step := self.spec.job.prepare) is None:
            return
        for node, its_seats in by_node(self.seats).items():
            argv = command.argv(
                step,
                python=self._python(node),
                workdir=self._workdir(node),
                bundle=self.context.bundle(node),
                boot=False,
                more=command.data_args(step, (*self.spec.job.args, *self.args)),
            )
            env = self.variables.of_prepare(node, its_seats[0].host)
            yield node, Command(argv, env, self._workdir(node), UNSET)

    def resources(self) -> Resources:
        """Where one task is to see all GPUs of its node, none of them is dealt out at the start."""
        wishes = _resources(self.spec)
        sees_all = any(seat.gpus == "all" for seat in self.seats)
        return replace(wishes, gpus="all") if sees_all else wishes

    def _command(self, seat: PlacedTask, share: Share) -> Command:
        program = command.of_task(self.spec.job, seat.id)
        argv = command.argv(
            program,
            python=self._python(seat.node),
            workdir=self._workdir(seat.node),
            bundle=self.context.bundle(seat.node),
            boot=has_hooks(self.spec) and program.has_hooks,
            more=() if program.is_own else self.args,
        )
        variables = self.variables.of_task(seat, share)
        return Command(argv, variables, self._workdir(seat.node), UNSET)

    def _workdir(self, node: str) -> str:
        """Here the folder itself, elsewhere a copy of it."""
        if node == LOCAL:
            return self.workdir
        settings = [self.spec.runtime.hosts.get(key) for key in (node, "*")]
        chosen = [s.workdir for s in settings if s is not None and s.workdir is not None]
        return remote_paths.workdir(node, chosen[0] if chosen else None)

    def _destination(self, seat: PlacedTask) -> str | None:
        if seat.backend != "ssh":
            return None
        settings = [self.spec.runtime.hosts.get(key) for key in (seat.host, "*")]
        return next((s.ssh for s in settings if s is not None and s.ssh is not None), None)

    def _shares(self) -> Iterator[tuple[TaskId, Share]]:
        is_search = self.spec.job.kind == "tuner"
        for its_seats in by_machine(self.seats):
            here, ids = (
                shares_this_machine(its_seats[0], self.context),
                [seat.id for seat in its_seats],
            )
            found = shares(
                ids,
                _resources(self.spec),
                cores=self.context.cores if here else None,
                gpus=self.context.gpus if here else None,
                own_gpus=own_gpus(its_seats, is_search=is_search),
                aside=stand_aside(ids, is_search=is_search),
            )
            yield from found.items()

    def _has_own_command(self, task: TaskId) -> bool:
        return has_hooks(self.spec) and not command.of_task(self.spec.job, task).has_hooks

    @property
    def _is_command(self) -> bool:
        return not any(program.has_hooks for program in command.programs(self.spec.job))

    def _python(self, node: str) -> str:
        python = self.context.interpreters.get(node)
        return python.path if isinstance(python, Interpreter) else "python3"


def _withheld(spec: ClusterSpec, context: PlanContext, spec_path: str | None) -> Iterator[str]:
    if spec.job.env_file is not None:
        yield command.absolute(spec.job.env_file, context.spec_dir, context.environ)
    written = spec.model_dump(mode="json", exclude_unset=True)
    if spec_path is not None and secrets.holds_secrets(written, shown=spec.job.not_secret):
        yield posixpath.join(context.spec_dir, posixpath.basename(spec_path))


def _resources(spec: ClusterSpec) -> Resources:
    r = spec.resources
    return Resources(gpus=r.gpus, cpus=r.cpus, threads=r.threads, pin=r.pin)


def _supervision(spec: ClusterSpec) -> Supervision:
    s = spec.supervision
    return Supervision(
        max_restarts=s.max_restarts,
        restart_on_error=s.restart_on_error,
        backoff_s=s.backoff_s,
        start_deadline_s=s.start_deadline_s,
        stall_deadline_s=s.stall_deadline_s,
        run_deadline_s=s.run_deadline_s,
        grace_s=s.grace_s,
        finish_grace_s=s.finish_grace_s,
        lease_s=s.lease_s,
        min_workers=s.min_workers,
    )


def _checkpoints(spec: ClusterSpec, context: PlanContext) -> CheckpointPlan:
    c = spec.checkpoints
    return CheckpointPlan(
        gather=c.gather,
        keep=c.keep,
        dir=c.dir and command.storage(c.dir, context.spec_dir, context.environ),
        outputs=tuple(c.outputs),
        to=c.to and command.storage(c.to, context.spec_dir, context.environ),
    )
