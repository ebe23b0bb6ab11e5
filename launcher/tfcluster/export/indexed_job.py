"""The format `indexed-job`: an Indexed Job of Kubernetes for each job of the cluster.

The pods start TensorFlow as the containers of the format `compose` do, without a coordinator.
kubernetes.io/docs/concepts/workloads/controllers/job has Indexed Jobs, stable since 1.24.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from tfcluster.agent import foreign_json
from tfcluster.backends.kubernetes import run_objects, run_pods
from tfcluster.backends.kubernetes.run_objects import GENERATION, TASK, PodRun
from tfcluster.errors import SetupError
from tfcluster.export.compose import (
    PORT,
    STATE,
    WORKDIR,
    entrypoint,
    imports_package,
    require_storage,
)
from tfcluster.export.kube_pods import (
    BACKEND as BACKEND,
)
from tfcluster.export.kube_pods import (
    image_needs,
    quoted_file,
    run_of,
    written_by,
    yaml_text,
)
from tfcluster.export.request import Exported, Request, Subject, bullets, secret_names
from tfcluster.plans.plan import Command, Plan, TaskPlan
from tfcluster.plans.remote_paths import NodePaths
from tfcluster.plans.resources import GIVEN_GPUS
from tfcluster.plans.tf_config import Attempt, environment, fixed
from tfcluster.spec import JOBS

Object = dict[str, Any]
_KUEUE: Final = "kueue.x-k8s.io/"
_INDEX: Final = "TASK_INDEX"
_COMPLETION: Final = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
DISRUPTED: Final = [{"type": "DisruptionTarget", "status": "True"}]
"""The condition of a pod that was preempted, drained or evicted; up to 1.31 its status is required.
"""


def render(subject: Subject, request: Request) -> Exported:
    """Return an Indexed Job for each job of the cluster.

    Raises SetupError for tasks that need more than their index to differ.
    """
    run, needs = run_of(subject), tuple(task_needs(subject))
    plan = addressed(run, lambda job, index: f"{run.name}-{job}-{index}.{run.name}")
    jobs = [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": job_metadata(run, f"{run.name}-{job}"),
            "spec": {
                **job_spec(subject, run, plan, job),
                "backoffLimit": plan.supervision.max_restarts * len(tasks),
                "podFailurePolicy": {"rules": [{"action": "Ignore", "onPodConditions": DISRUPTED}]},
            },
        }
        for job, tasks in by_job(plan).items()
    ]
    comment = [
        *comment_lines(run, request, "indexed-job", needs),
        *bullets(
            [
                "After a failure it starts all tasks again together. Here each pod is started again"
                " by itself, once the loss of another task has ended it.",
            ]
        ),
    ]
    network = [run_objects.service(run), run_objects.network_policy(run)]
    objects = [*network, *gang_objects(run), *jobs]
    return Exported(yaml_text(comment, objects), needs)


def by_job(plan: Plan) -> dict[str, list[TaskPlan]]:
    """Return the tasks of each job of the cluster, in the order of `JOBS`."""
    found = {job: [task for task in plan.tasks if task.id.job == job] for job in JOBS}
    return {job: tasks for job, tasks in found.items() if tasks}


def addressed(run: PodRun, host: Any) -> Plan:
    """Return the plan with fixed ports, and with the host names of `host(job, index)`."""
    require_storage(run.plan)
    hosts = {task.node: host(task.id.job, task.id.index) for task in run.plan.tasks}
    return run.plan.at(hosts, {task.id: task.port or PORT for task in run.plan.tasks})


def job_spec(subject: Subject, run: PodRun, plan: Plan, job: str) -> Object:
    """Return the spec of the Indexed Job with all tasks of `job`."""
    tasks = by_job(plan)[job]
    starts = [_start(subject, plan, task) for task in tasks]
    for task, (argv, env) in zip(tasks, starts, strict=True):
        if argv != starts[0][0] or env != starts[0][1]:
            message = f"the pods of an Indexed Job are alike, but {task.id} has settings of its own"
            raise SetupError(message, fix="write one pod for each task: --format kubernetes")
    return {
        "completionMode": "Indexed",
        "completions": len(tasks),
        "parallelism": len(tasks),
        "template": _template(run, tasks[0], *starts[0]),
    }


def _start(subject: Subject, plan: Plan, task: TaskPlan) -> tuple[list[str], dict[str, str]]:
    """Return the argv and the variables of a task; its index is the variable `_INDEX`."""
    paths = NodePaths(STATE, plan.name, shared=(plan.node(task.node).workdir, WORKDIR))
    command = paths.command(task.command)
    env = _environment(fixed(plan), task, command, has_package=imports_package(subject))
    prepare = plan.prepare.get(task.node)
    return entrypoint(command, prepare and paths.command(prepare), env), env


def _environment(
    attempt: Attempt, task: TaskPlan, command: Command, *, has_package: bool
) -> dict[str, str]:
    of_attempt = environment(
        attempt,
        task.id,
        run_id=attempt.plan.name,
        checkpoint_dir=f"{STATE}/checkpoints",
        tensorboard_dir=f"{STATE}/tensorboard",
        tuner_dir=f"{STATE}/tuner",
        holds_ports=False,
    )
    known = {var.name: var.value for var in (*command.env, *of_attempt) if not var.secret}
    found = {name: value.replace("$(", "$$(") for name, value in known.items()}
    if "TF_CONFIG" in found:
        config = foreign_json.parse_json_object(found["TF_CONFIG"])
        config["task"]["index"] = 0
        head, tail = json.dumps(config).rsplit('"index": 0', 1)
        found["TF_CONFIG"] = f'{head}"index": $({_INDEX}){tail}'
    if "TFCLUSTER_TASK" in found:
        found["TFCLUSTER_TASK"] = f"{task.id.job}:$({_INDEX})"
    if not has_package:
        for name in ("TFCLUSTER_SETTINGS", GIVEN_GPUS):
            found.pop(name, None)
    return dict(sorted(found.items()))


def _template(run: PodRun, task: TaskPlan, argv: Sequence[str], env: Mapping[str, str]) -> Object:
    """Return the pod of `up` with TensorFlow's command instead of the seat's."""
    pod = run_pods.task_pod(run, task.node, 1)
    spec, metadata = pod["spec"], pod["metadata"]
    (container,) = (one for one in spec["containers"] if one["name"] == run_pods.TASK_CONTAINER)
    index = {"name": _INDEX, "valueFrom": {"fieldRef": {"fieldPath": _COMPLETION}}}
    secrets = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": run.name, "key": name}}}
        for name in secret_names(run.plan)
    ]
    own = [variable for variable in container["env"] if variable["name"] not in env]
    values = [{"name": name, "value": value} for name, value in env.items()]
    container |= {
        "command": [*argv],
        "workingDir": WORKDIR,
        "env": [*own, index, *secrets, *values],
        "ports": [{"name": "tensorflow", "containerPort": task.port, "protocol": "TCP"}],
        "volumeMounts": [m for m in container["volumeMounts"] if m["name"] != "tfcluster-run"],
    }
    spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] != "tfcluster-run"]
    del spec["hostname"]
    return {
        "metadata": {
            "labels": _without_kueue(metadata["labels"], TASK, GENERATION),
            "annotations": _without_kueue(metadata["annotations"]),
        },
        "spec": spec,
    }


def _without_kueue(keys: Mapping[str, str], *others: str) -> dict[str, str]:
    """Return labels or annotations without those for single pods in Kueue, which sees the Job."""
    return {
        key: value
        for key, value in keys.items()
        if key not in others and not key.startswith(_KUEUE)
    }


def gang_objects(run: PodRun) -> list[Object]:
    """Return the object that the gang scheduler needs, if it needs one."""
    group = run_objects.pod_group(run)
    return [group] if group else []


def job_metadata(run: PodRun, name: str) -> Object:
    """Return the metadata of a Job or JobSet, which Kueue knows by a label of its own."""
    queue = run.settings.queue if run.settings.gang == "kueue" else None
    return run.metadata(name, **({f"{_KUEUE}queue-name": queue} if queue else {}))


def task_needs(subject: Subject) -> Iterator[str]:
    """Yield what the file's user must provide."""
    name = run_of(subject).name
    yield f"the code at {WORKDIR}, in the image or on a volume of runtime.kubernetes.volumes"
    if imports_package(subject):
        yield "tfcluster_workers in the image, as images based on tfcluster-join have it"
    for secret in secret_names(subject.plan):
        yield f"the key {secret} in the Secret {name}"
    yield from image_needs(subject.plan.images)


def comment_lines(run: PodRun, request: Request, name: str, needs: Sequence[str]) -> Iterator[str]:
    """Yield the comment at the top of the file."""
    yield f"# {run.run_id}: the tasks of `tfcluster up --backend kubernetes`, without tfcluster."
    yield from ("#", f"#   kubectl apply -f {quoted_file(request, f'{name}.yaml')}", "#")
    yield from written_by(name, needs)
    yield "# It was checked against the schemas of Kubernetes 1.25 and newer, and never run."
    yield from ("#", "# What `tfcluster up` does, and this file does not:")
    if run.plan.checkpoints.dir is None:
        yield from bullets(
            [
                "It gathers checkpoints and resumes from them. Here they end with their pod, unless"
                " checkpoints.dir is on a volume."
            ]
        )
