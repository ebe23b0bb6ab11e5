"""Rules that find what would make a run fail: in its plan, and in its nodes' probe answers (pure).

TensorFlow reports the same problems after an hour, or without naming the host. Sources of the
rules: unequal versions tensorflow#34156, unequal GPUs #47203 and #60847, unreachable peers #46931.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from tfcluster.agent.containers.container_wait import OLDEST_PYTHON
from tfcluster.errors import InterpreterError, SetupError, count_names, join_first
from tfcluster.nodes.probe_answers import ProbeAnswer
from tfcluster.plans.context import LOCAL, PlanContext
from tfcluster.plans.job_facts import has_hooks
from tfcluster.plans.keras_settings import (
    TESTED,
    cannot_be_patched,
    has_keras_3,
    install_tf_keras,
    uses_legacy_keras,
    with_inherited_switch,
)
from tfcluster.plans.placement import by_machine, find_task_gpus
from tfcluster.plans.plan import LABELS, Gpu, NodePlan, Plan, TaskId, name_packages
from tfcluster.plans.resources import GIVEN_GPUS, requested_gpus, shared_gpus
from tfcluster.preflight.preflight_report import Finding, PreflightReport
from tfcluster.spec import TUNER_VARIABLES
from tfcluster.spec.cluster import is_loopback
from tfcluster.spec.job import UNKNOWN_PROGRAM
from tfcluster.supervision.known_errors import fix_of_no_gpu

if TYPE_CHECKING:
    from tfcluster.discovery.planning import Planned
    from tfcluster.spec.model import ClusterSpec


_MIN_FREE_BYTES = 1_000_000_000
_MIN_SHM_BYTES = 64_000_000
_MAX_SKEW_S = 5.0

VERSIONS = {
    **{label: package for package, label in LABELS.items()},
    "NumPy": "numpy",
    "protobuf": "protobuf",
}
"""Row of the table → package."""
_MAY_DIFFER = ("NumPy", "protobuf")
"""Rows whose versions may differ between nodes: a difference is a warning."""


@dataclass(frozen=True, slots=True)
class Needs:
    """The requirements of a job on the nodes it runs on."""

    packages: tuple[str, ...] = ("tensorflow",)
    """The libraries that it imports for certain."""
    gang: bool = True
    """The nodes train as one gang, so they must be alike. False for parameter servers, tuners and
    commands whose Python is not known."""
    nccl: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Node → its tasks that use NCCL."""
    with_gpus: Collection[str] = ()
    """Nodes that have tasks to which the plan gives GPUs: these fail if TensorFlow has none."""
    gpu_indexes: Mapping[str, int] = field(default_factory=dict)
    """Node → the highest GPU index that the spec assigns to its tasks."""
    without_training: Collection[str] = ()
    """Nodes without a task that trains: those of an evaluator or the tf.data service, which may
    have other images and GPUs than the gang."""
    serves_data: Collection[str] = ()
    """Nodes with tasks of the tf.data service only, which is a part of TensorFlow."""
    script_sha256: str | None = None
    """SHA-256 of the job's script on this machine."""
    writes: str | None = None
    """The folder that every node must be able to write to."""


def needs_of(plan: Plan, script_sha256: str | None = None) -> Needs:
    """Return what the job of `plan` requires; `script_sha256` is that of the local script.

    The GPUs of this machine are known to the plan: `find_obstacles` has the rules about them.
    """
    known = all(node.interpreter is not None for node in plan.nodes)
    nccl: dict[str, list[str]] = {}
    highest: dict[str, int] = {}
    for task in (task for task in plan.tasks if not plan.node(task.node).is_here):
        if plan.settings.get("communication") == "NCCL" and task.id.trains:
            nccl.setdefault(task.node, []).append(str(task.id))
        for index in task.gpus or ():
            if isinstance(index, int):
                highest[task.node] = max(highest.get(task.node, 0), index)
    return Needs(
        packages=plan.needs,
        gang=known and plan.is_synchronous,
        nccl=nccl,
        without_training={task.node for task in plan.tasks}
        - {task.node for task in plan.tasks if task.id.trains},
        serves_data={task.node for task in plan.tasks}
        - {task.node for task in plan.tasks if not task.id.serves_data},
        with_gpus={
            task.node
            for task in plan.tasks
            if any(variable.name == GIVEN_GPUS for variable in task.command.env)
        },
        gpu_indexes=highest,
        script_sha256=script_sha256,
        writes=plan.checkpoints.dir,
    )


def judge(
    answers: Sequence[ProbeAnswer], needs: Needs, *, silent: Collection[str] = ()
) -> tuple[Finding, ...]:
    """Return all findings, the fatal ones first.

    `silent`: nodes that did not answer; that others cannot reach them is not reported again.
    """
    findings: list[Finding] = []
    for answer in answers:
        findings += [
            *_check_python(answer, needs),
            *_check_network(answer, silent),
            *_check_storage(answer, needs),
            *_check_gpus(answer, needs),
            *_check_registered_gpus(answer, needs),
            *_check_clock(answer),
        ]
    if needs.gang:
        gang = [answer for answer in answers if answer.node not in needs.without_training]
        findings += _compare_nodes(gang, needs)
    return tuple(sorted(findings, key=lambda finding: not finding.is_fatal))


def report_of(answers: Sequence[ProbeAnswer], needs: Needs) -> PreflightReport:
    """Return the report of nodes that all gave an answer."""
    nodes = tuple(answer.node for answer in answers)
    return PreflightReport(nodes, tuple(answers), judge(answers, needs))


def _find_missing(node: str, packages: Collection[str], needs: Needs) -> list[str]:
    """Return the libraries that tasks of `node` import for certain, and `packages` lacks."""
    wanted = {"tensorflow"} if node in needs.serves_data else {*needs.packages}
    return [each for each in needs.packages if each in wanted and each not in packages]


def _check_python(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if missing := _find_missing(answer.node, answer.packages, needs):
        field = "--python PATH" if answer.node == LOCAL else f"runtime.hosts.{answer.node}.python"
        fix = f"name a Python that has {'it' if len(missing) == 1 else 'them'}: {field}"
        problem = f"its Python has no {name_packages(missing)}"
        yield Finding(answer.node, LABELS[missing[0]], problem, fix)
    imported = answer.imported or {}
    if "error" in imported and "tensorflow" in answer.packages:
        problem = f"import tensorflow fails: {imported['error']}"
        fix = f"run on that node: {answer.executable} -c 'import tensorflow'"
        yield Finding(answer.node, "import", problem, fix)


def _check_network(answer: ProbeAnswer, silent: Collection[str]) -> Iterator[Finding]:
    for host in answer.strange_names:
        fix = "correct the name there (DNS, /etc/hosts), or write the IP address in the spec"
        yield Finding(answer.node, "names", f"{host} is not an address of this node", fix)
    for port, reason in answer.not_listening:
        problem = f"cannot listen on port {port}: {reason}"
        yield Finding(
            answer.node, "ports", problem, "write another port in the spec (0 = choose one)"
        )
    for node, task, host, port, reason in answer.unreachable:
        if node in silent:
            continue
        problem = f"cannot connect to {task} ({host}:{port}): {reason}"
        fix = (
            "open that port between the two (firewall, security group), or write one that is open"
            " (runtime.ports: a range)"
        )
        if host in answer.wrong_names:
            fix = "correct the name there (/etc/hosts, DNS); an IP address in the spec needs none"
        yield Finding(answer.node, "peers", problem, fix)


def _check_storage(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if answer.free_bytes is not None and answer.free_bytes < _MIN_FREE_BYTES:
        problem = f"only {answer.free_bytes / 1e6:.0f} MB of disk are free"
        yield Finding(answer.node, "disk", problem, "free some disk space", False)
    if answer.shm_bytes is not None and answer.shm_bytes < _MIN_SHM_BYTES and answer.gpus:
        problem = f"only {answer.shm_bytes / 1e6:.0f} MB of /dev/shm are free"
        fix = "NCCL needs shared memory: mount a larger /dev/shm (docker: --shm-size=1g)"
        yield Finding(answer.node, "/dev/shm", problem, fix, False)
    for folder, reason in answer.unwritable:
        is_fatal = folder == needs.writes  # a data set may be on a read-only mount
        fix = "make it writable for the user who runs the tasks, or name another folder"
        yield Finding(
            answer.node, "folders", f"{folder} cannot be written: {reason}", fix, is_fatal
        )
    local, remote = needs.script_sha256, answer.script_sha256
    if local is not None and remote is not None and local != remote:
        fix = "check that both machines mount the same working directory"
        yield Finding(answer.node, "script", "its script differs from the one on this machine", fix)


def _check_gpus(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    if answer.gpu_trouble:
        fix = "check the driver: nvidia-smi, dmesg | grep -i nvrm"
        yield Finding(answer.node, "GPUs", answer.gpu_trouble, fix, False)
        return
    if (tasks := needs.nccl.get(answer.node)) and not answer.gpus:
        problem = f"strategy.communication is NCCL, but there is no GPU for {', '.join(tasks)}"
        yield Finding(answer.node, "GPUs", problem, "--set strategy.communication=RING, or AUTO")
    elif (highest := needs.gpu_indexes.get(answer.node, -1)) >= len(answer.gpus):
        problem = (
            f"GPU index {highest} is requested, but the node's GPU count is {len(answer.gpus)}"
        )
        yield Finding(
            answer.node, "GPUs", problem, "correct resources.gpus, or the gpus of its tasks"
        )


def _check_registered_gpus(answer: ProbeAnswer, needs: Needs) -> Iterator[Finding]:
    """Compare the GPUs that TensorFlow registers with those of nvidia-smi that it may see."""
    imported = answer.imported or {}
    expected = len(answer.gpus)
    if "CUDA_VISIBLE_DEVICES" in answer.named:  # of several parts of GPUs, CUDA shows the first one
        expected = sum(not str(gpu).startswith("MIG-") for gpu in answer.visible_gpus)
    registered = list(imported.get("devices", ())).count("GPU")
    if "devices" not in imported or not answer.gpus or registered >= expected:
        return
    listed = f"nvidia-smi lists {format_gpus(answer.gpus)}"
    if registered:
        problem = f"TensorFlow registers {registered} of {expected} GPUs ({listed})"
        yield Finding(answer.node, "GPUs", problem, "compare nvidia-smi with its log", False)
        return
    reason = imported.get("no_gpu") or "TensorFlow does not say why"
    problem = f"TensorFlow registers no GPU ({listed}): {reason}"
    fix = fix_of_no_gpu(imported.get("no_gpu_cause", ""))
    yield Finding(answer.node, "GPUs", problem, fix, answer.node in needs.with_gpus)


def _check_clock(answer: ProbeAnswer) -> Iterator[Finding]:
    if abs(answer.clock_ahead_s) > _MAX_SKEW_S:
        problem = f"its clock differs from this machine's by {answer.clock_ahead_s:+.0f} s"
        fix = "synchronize it by NTP: the times in logs are misleading"
        yield Finding(answer.node, "clock", problem, fix, False)


def _compare_nodes(answers: Sequence[ProbeAnswer], needs: Needs) -> Iterator[Finding]:
    """Yield a finding for each node whose versions or GPUs differ from those of most nodes."""
    equipped = [a for a in answers if a.packages.keys() >= set(needs.packages)]
    others = {"jax", "torch"} - set(needs.packages)
    if len(others) < 2 and "tensorflow" not in needs.packages:
        others |= {"tensorflow", "tf-keras"}
    for row, package in VERSIONS.items():
        if package in others:
            continue
        versions = {a.node: a.packages.get(package, "none") for a in equipped}
        yield from _find_outliers(row, versions, is_fatal=row not in _MAY_DIFFER)
    yield from _find_outliers("Python", {a.node: a.python.rpartition(".")[0] for a in answers})
    gpus = {a.node: format_gpus(a.gpus) for a in answers if not a.gpu_trouble}
    yield from _find_outliers("GPUs", gpus)


def _find_outliers(
    check: str, values: Mapping[str, str], *, is_fatal: bool = True
) -> Iterator[Finding]:
    counted = Counter(values.values()).most_common()
    if len(counted) < 2:
        return
    majority = counted[0][0]
    for node, value in values.items():
        if value != majority:
            problem = f"{check}: {value} on this node, {majority} on the others"
            yield Finding(node, check, problem, "all nodes must have the same", is_fatal)


def format_gpus(gpus: Sequence[str]) -> str:
    """Return the GPUs by model, such as ``2 × NVIDIA H200``."""
    return count_names(gpus) or "none"


_LONGEST_VARIABLE: Final = 32 * 4096
"""Bytes of one variable with its name (MAX_ARG_STRLEN, execve(2))."""
_AROUND_HOST: Final = len('":12345", "')


def require_plan(planned: Planned) -> Plan:
    """Return the plan; raise the first obstacle (exit 3). `tfcluster plan` only reports them."""
    for obstacle in find_obstacles(planned):
        raise obstacle
    return planned.plan


def find_obstacles(planned: Planned) -> Iterator[SetupError]:
    """Yield every obstacle, the most basic first."""
    spec, plan, context = planned.spec, planned.plan, planned.context
    needs = needs_of(plan)
    yield from _check_placeholders(spec)
    yield from _check_size(plan)
    yield from _check_variables(plan)
    for node in plan.nodes:
        yield from _check_packages(node, needs)
        yield from _check_python_version(spec, node)
        yield from _check_keras_2(spec, node)
        yield from _check_keras_3(with_inherited_switch(spec, node.name, context), node, context)
    yield from _check_searches(spec, plan, context)
    if context.gpus is not None:
        yield from _check_planned_gpus(spec, context.gpus, context)
        yield from _check_nccl(spec, plan)
    yield from _check_shared_storage(plan)
    yield from _check_private_network(plan)
    yield from _check_mounts(plan)
    yield from _check_wrap(plan)


def _check_placeholders(spec: ClusterSpec) -> Iterator[SetupError]:
    """Check that programs which `tfcluster import` could not know have been written."""
    commands = {"job.command": spec.job.command} | {
        f"job.per_task.{key}.command": step.command for key, step in spec.job.per_task.items()
    }
    if fields := [key for key, words in commands.items() if UNKNOWN_PROGRAM in (words or ())]:
        message = f"{' and '.join(fields)} still holds {UNKNOWN_PROGRAM} of `tfcluster import`"
        fix = "write the program there; `docker image inspect IMAGE` shows the image's Entrypoint"
        yield SetupError(message, fix=f"{fix} and Cmd")


def _check_size(plan: Plan) -> Iterator[SetupError]:
    """Check that the kernel passes a TF_CONFIG with all addresses to a task."""
    listed = [task for task in (*plan.tasks, *plan.elsewhere) if task.in_cluster]
    size = sum(len(task.host) + _AROUND_HOST for task in listed)
    if plan.kind == "training" and size > _LONGEST_VARIABLE:
        message = f"the TF_CONFIG of {len(listed)} tasks is too long: about {size} bytes"
        fix = "use fewer tasks, each with more GPUs: Linux passes at most"
        yield SetupError(message, fix=f"{fix} {_LONGEST_VARIABLE} bytes in a variable (execve(2))")


def _check_variables(plan: Plan) -> Iterator[SetupError]:
    """Check that the kernel passes each variable of the tasks and of `prepare` to a process."""
    commands = [*(task.command for task in plan.tasks), *plan.prepare.values()]
    sizes = {
        (var.name, var.source): len(f"{var.name}={var.value}\0".encode(errors="surrogateescape"))
        for command in commands
        for var in command.env
        if len(var.value) > _LONGEST_VARIABLE // 4
    }
    for (name, source), size in sizes.items():
        if size > _LONGEST_VARIABLE:
            yield SetupError(
                f"the variable {name} ({source}) is too long: {size} bytes; Linux passes at most"
                f" {_LONGEST_VARIABLE} (execve(2))",
                fix="write the value to a file of the workdir, and pass the path of that",
            )


def _check_packages(node: NodePlan, needs: Needs) -> Iterator[SetupError]:
    python = node.interpreter
    if python is None or python.version is None:
        return
    if missing := _find_missing(node.name, python.packages, needs):
        names, them = name_packages(missing), "it" if len(missing) == 1 else "them"
        message = f"the job needs {names}, but {python.path} ({python.why}) does not have {them}"
        install = f"{python.path} -m pip install {' '.join(missing)}"
        yield InterpreterError(message, fix=f"{install}, or choose another with --python PATH")


def _check_python_version(spec: ClusterSpec, node: NodePlan) -> Iterator[SetupError]:
    """Check for Python 3.9, which `tfcluster_workers` needs; a command does not import it."""
    python = node.interpreter
    if python is None or python.version is None or not has_hooks(spec):
        return
    if tuple(map(int, re.findall(r"\d+", python.version)[:2])) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        yield InterpreterError(
            f"Python {oldest} or newer is needed, but {python.path} ({python.why}) is"
            f" {python.version}",
            fix="choose another with --python PATH, or switch the hooks off: --set job.hooks=off",
        )


def _check_keras_2(spec: ClusterSpec, node: NodePlan) -> Iterator[SetupError]:
    python = node.interpreter
    if spec.keras.version != "2" or python is None or not has_keras_3(python):
        return
    if "tf-keras" not in python.packages:
        message = f"keras.version is 2, but {python.path} has no tf-keras"
        yield InterpreterError(message, fix=install_tf_keras(python))


def _check_keras_3(spec: ClusterSpec, node: NodePlan, context: PlanContext) -> Iterator[SetupError]:
    """Refuse a Keras 3 whose `fit` fails on several workers, if it cannot be patched or replaced.

    It needs certainty: for a job that only uses `tf.keras`, `fit` itself raises the error.
    """
    python = node.interpreter
    if python is None or not has_keras_3(python) or not cannot_be_patched(spec, python):
        return
    imports_keras = "keras" in context.packages
    if uses_legacy_keras(spec, python) and not imports_keras:
        return
    is_example = (spec.job.module or "").startswith("tfcluster_workers.jobs.")
    if imports_keras or is_example or "tensorflow.keras" in (context.imports or ()):
        message = (
            f"the `fit` of Keras {python.packages['keras']} ({python.path}) cannot be patched for"
            f" several workers: only {TESTED[0]} and newer can"
        )
        other = "write `import tf_keras as keras`" if imports_keras else install_tf_keras(python)
        pin = f"{python.path} -m pip install 'keras=={TESTED[1]}'"
        yield InterpreterError(message, fix=f"{pin}, or {other}")


def _check_searches(spec: ClusterSpec, plan: Plan, context: PlanContext) -> Iterator[SetupError]:
    """Refuse several tasks that would each run a whole KerasTuner search.

    They share one search only through variables that a job of kind `tuner` gets.
    """
    if "kind" in spec.job.model_fields_set or context.code is None or not context.code.searches:
        return
    trains = [t for t in (*plan.tasks, *plan.elsewhere) if t.id.trains]
    variables = {var.name for task in plan.tasks for var in task.command.env} | context.code.sets
    if len(trains) < 2 or not variables.isdisjoint(TUNER_VARIABLES):
        return
    message = (
        f"the job calls KerasTuner's search: {len(trains)} tasks would each run the whole search"
    )
    chief = "" if "chief" in spec.cluster else " --set cluster.chief=1"
    fix = (
        f"run one search with the workers as tuners: --set job.kind=tuner{chief};"
        " to run it as it is: --set job.kind=training"
    )
    yield SetupError(f"{message}, in one folder", fix=fix)


def _check_planned_gpus(
    spec: ClusterSpec, present: Sequence[Gpu], context: PlanContext
) -> Iterator[SetupError]:
    """Check that requested GPUs are present: TensorFlow would silently train on the CPU.

    A missing index in CUDA_VISIBLE_DEVICES hides all GPUs.
    """
    for placed_tasks in by_machine(context.tasks):
        if not context.is_here(placed_tasks[0].backend):
            continue
        task_gpus = find_task_gpus(placed_tasks, is_search=spec.job.kind == "tuner")
        requests = requested_gpus(
            [placed.id for placed in placed_tasks], spec.resources.gpus, task_gpus
        )
        lists = {task: gpus for task, gpus in requests.items() if isinstance(gpus, list | tuple)}
        by_field = {_gpu_field(task, task_gpus): gpus for task, gpus in lists.items()}
        for path, indexes in by_field.items():
            if absent := [index for index in indexes if index not in present]:
                yield _gpus_missing({path: f"GPU {_numbers(absent)}"}, present, context)
        free = [gpu for gpu in present if not any(gpu in gpus for gpus in lists.values())]
        numbers = {task: gpus for task, gpus in requests.items() if isinstance(gpus, int) and gpus}
        if sum(numbers.values()) > len(free):
            yield _gpus_missing(_describe_requests(numbers, task_gpus), free, context)


def _gpu_field(task: TaskId, task_gpus: Collection[TaskId]) -> str:
    return f"cluster.{task.job}.{task.index}.gpus" if task in task_gpus else "resources.gpus"


def _describe_requests(
    numbers: Mapping[TaskId, int], task_gpus: Collection[TaskId]
) -> dict[str, str]:
    """Return path of the field → ``1 GPU for each of worker:0, worker:1``."""
    by_field: dict[str, list[TaskId]] = {}
    for task in numbers:
        by_field.setdefault(_gpu_field(task, task_gpus), []).append(task)
    requests = {}
    for path, tasks in by_field.items():
        number = numbers[tasks[0]]
        each = "each of " if len(tasks) > 1 else ""
        requests[path] = f"{number} GPU{'s' * (number > 1)} for {each}{join_first(tasks)}"
    return requests


def _gpus_missing(
    requests: Mapping[str, str], free: Sequence[Gpu], context: PlanContext
) -> SetupError:
    """Return the error for `requests` (field → GPUs that it requests); `free`: the GPUs left."""
    requested = "; ".join(f"{field} requests {gpus}" for field, gpus in requests.items())
    left = " left" if len(free) < len(context.gpus or ()) else ""
    has = f"{len(free)}{left} (GPU {_numbers(free)})" if free else f"no GPU{left}"
    visible = context.environ.get("CUDA_VISIBLE_DEVICES")
    in_shell = "" if visible is None else f"; CUDA_VISIBLE_DEVICES is {visible!r} in this shell"
    on_cpu = " ".join(f"--set {field}=0" for field in requests)
    fix = f"request fewer, or none: {on_cpu}; `nvidia-smi` lists the GPUs that the driver finds"
    return SetupError(f"{requested}, but this machine has {has}{in_shell}", fix=fix)


def _numbers(indexes: Sequence[Gpu]) -> str:
    return ", ".join(map(str, indexes))


def _check_nccl(spec: ClusterSpec, plan: Plan) -> Iterator[SetupError]:
    """Check that NCCL has a GPU for each task.

    TensorFlow itself only warns and runs RING (collective_all_reduce_strategy.py).
    """
    if spec.strategy.communication != "NCCL":
        return
    fix = "--set strategy.communication=RING, or AUTO"
    trains = [t for t in plan.tasks if t.node == LOCAL and t.id.trains]
    if without := [str(t.id) for t in trains if not t.gpus]:
        names = ", ".join(without)
        yield SetupError(
            f"strategy.communication is NCCL, but there is no GPU for {names}", fix=fix
        )
    elif shared := shared_gpus([t.gpus for t in trains]):
        names = ", ".join(sorted(map(str, shared)))
        yield SetupError(f"NCCL cannot run two tasks on one GPU ({names})", fix=fix)


def _check_shared_storage(plan: Plan) -> Iterator[SetupError]:
    """Require shared storage for jobs whose state is spread over the folders of several tasks."""
    nodes = {task.node for task in (*plan.tasks, *plan.elsewhere)}
    is_spread = len(nodes) > 1 or bool(plan.joins and plan.elsewhere)
    places = "containers" if any(n.capabilities.has_image for n in plan.nodes) else "hosts"
    if plan.kind == "tuner":
        job = f"a tuner job on several {places}"
    elif plan.strategy == "parameter_server":
        job = f"a parameter-server job on several {places}"
    elif not _has_evaluator_without_chief(plan):
        return
    elif plan.joins:
        job = f"an evaluator on several {places}"
    else:
        job, is_spread = "an evaluator whose chief is started by hand", True
    if is_spread and plan.checkpoints.dir is None:
        fix = "--set checkpoints.dir=/shared/folder (or gs://…)"
        yield SetupError(f"{job} needs storage that all its tasks share", fix=fix)


def _has_evaluator_without_chief(plan: Plan) -> bool:
    """Return whether the plan has an evaluator that cannot get the chief's checkpoints.

    Checkpoints are copied to it only in the run that starts the chief; it would wait for ever.
    """
    jobs = {task.id.job for task in plan.tasks}
    has_chief = any(task.id == plan.chief for task in plan.tasks)
    return "evaluator" in jobs and not has_chief and bool(plan.elsewhere)


def _check_private_network(plan: Plan) -> Iterator[SetupError]:
    """Check that a private network has all it needs: it has loopback only (user_namespaces(7))."""
    private = {n.name for n in plan.nodes if n.has_private_network}
    inside = [t for t in plan.tasks if t.node in private]
    outside = [t for t in inside if not is_loopback(t.host)] or (inside and [*plan.elsewhere])
    if outside:
        message = f"a private network cannot reach {outside[0].host} ({outside[0].id})"
        fix = "give numbers instead of addresses (--set cluster.worker=2), or localhost:0"
        yield SetupError(message, fix=f"{fix}; or --set runtime.network=host")
    storage = plan.checkpoints.dir or ""
    private |= {n.name for n in plan.nodes if n.network == "simulated"}
    if private and "://" in storage and not storage.startswith("file://"):
        message = f"a private network cannot reach checkpoints.dir {storage}"
        fix = "gather checkpoints instead (leave checkpoints.dir out)"
        yield SetupError(message, fix=f"{fix}, or --set runtime.network=host")


def _check_wrap(plan: Plan) -> Iterator[SetupError]:
    for node in plan.nodes:
        if node.wrap and (node.is_here or node.capabilities.has_image):
            where = "containers" if node.capabilities.has_image else "tasks on this machine"
            fix = "--set 'runtime.wrap=[]'"
            if node.is_here:
                fix += f", or start tfcluster in it: {shlex.join(node.wrap)} tfcluster …"
            yield SetupError(f"runtime.wrap has no effect on {where}", fix=fix)
            return


def _check_mounts(plan: Plan) -> Iterator[SetupError]:
    """Refuse mounts that would hide the container's own files."""
    containers = [node.container for node in plan.nodes if node.container is not None]
    folders = {
        path for container in containers for path in (container.data_dir, container.shared_dir)
    }
    for path in [name for name in ("/", "/tmp") if name in folders]:
        fix = "use a folder below it in data_dir and checkpoints.dir"
        yield SetupError(f"{path} cannot be mounted: a container needs its own", fix=fix)
