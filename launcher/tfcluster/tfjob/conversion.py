"""Turns the manifest of a TFJob into a spec, and lists what the spec cannot say.

TFJob accepts any set of types (``pkg/webhooks/tensorflow/tfjob_webhook.go``), also one that never
ends: the Chief's success is that of the job, or without a Chief the Worker's (`UpdateJobStatus` in
``pkg/controller.v1/tensorflow/tfjob_controller.go``). TF_CONFIG is made in ``tensorflow.go`` beside
it, and only for more than one task (`isDistributed` in ``util.go``).
"""

from __future__ import annotations

from typing import Any

from tfcluster.errors import UsageError
from tfcluster.spec import shorten
from tfcluster.tfjob.manifest import ConversionNote, Fields, read
from tfcluster.tfjob.replica import Replica, map_replica
from tfcluster.tfjob.run_policy import choose_gang, map_restarts, map_run

_JOBS = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps",
         "evaluator": "evaluator"}  # fmt: skip
_BASES = ("worker", "chief", "ps", "evaluator")
"""The job whose pods are those of the spec; those of other roles may differ in `_OF_ROLES`."""
_OF_ROLES: dict[str, Any] = {"resources": {}, "node_selector": {}, "tolerations": []}
"""Fields of `spec.kubernetes.RolePods`, and their value for pods without them."""
_OF_V1BETA = ("cleanPodPolicy", "ttlSecondsAfterFinished", "ttlSecondsAfterFinishing",
              "activeDeadlineSeconds", "backoffLimit")  # fmt: skip
"""Fields that v1 moved into ``runPolicy``."""
_OF_THE_SERVER = ("creationTimestamp", "resourceVersion", "uid", "generation", "managedFields",
                  "selfLink")  # fmt: skip
_LATER = "have supervision.finish_grace_s (60 s) to end, or the run fails"

Replicas = dict[str, Replica]


def convert(text: str, name: str) -> tuple[dict[str, Any], list[ConversionNote]]:
    """Return the spec of the TFJob in `text`, and the notes about it.

    Raises UsageError for anything but one TFJob; `name` is the file's.
    """
    job = read(text, name)
    metadata, spec = job.below("metadata"), job.below("spec")
    run = spec.below("runPolicy")
    for key in _OF_V1BETA:
        if key in spec.values:
            run.values.setdefault(key, spec.values.pop(key))
    prefix = metadata.take("generateName", str) or ""
    title = metadata.take("name", str) or prefix.rstrip("-") or "tfjob"
    namespace = metadata.take("namespace", str)
    replicas = _map_replicas(spec)
    tasks = {name: replica.count for name, replica in replicas.items()}
    _check_types(replicas)
    job.values["metadata"] = metadata.values
    supervision = map_restarts(replicas, run)
    _note_success(spec, tasks)
    limits, scheduling = map_run(job, run, tasks=sum(tasks.values()))
    supervision |= limits
    main = next(replicas[name] for name in _BASES if name in replicas)
    pods = main.pods | scheduling
    if namespace:
        pods = {"namespace": namespace, **pods}
    choose_gang(job, pods)
    if main.grace_s is not None:
        supervision["grace_s"] = main.grace_s
    roles = _map_roles(main, replicas)
    result: dict[str, Any] = {"version": 1, "name": title[:63], "cluster": tasks}
    result["job"] = _map_job(main, replicas)
    if sum(tasks.values()) == 1:
        result["job"]["kind"] = _choose_plain(main)
    result |= _map_strategy(replicas)
    user = {} if main.user is None else {"user": main.user}
    result["runtime"] = {"backend": "kubernetes", **user, "kubernetes": pods} | roles
    result["supervision"] = supervision
    _note_rest(job, metadata, spec, run)
    _note_images(main, pods)
    _note_user(main)
    return result, _sort(job.notes)


def _map_replicas(spec: Fields) -> Replicas:
    """Return the tasks of each job that has some."""
    types, replicas, paths = spec.below("tfReplicaSpecs"), Replicas(), dict[str, str]()
    for key in list(types.values):
        fields = types.below(key)
        if (job := _JOBS.get(key.lower())) is None:
            fix = "write Chief, Worker, PS or Evaluator"
            raise UsageError(f"{fields.path}: {shorten(key)} is not a replica type", fix=fix)
        if job in paths:
            message = f"{paths[job]} and {fields.path} are one type"
            raise UsageError(message, fix="keep one of them")
        paths[job] = fields.path
        if key.lower() == "master":
            message = 'Master: its task type in TF_CONFIG is "chief", not "master"'
            fields.note("changed", "", message)
        replica = map_replica(fields)
        if replica.count == 0:
            fields.note("changed", "replicas", "0: the type is left out")
        else:
            replicas[job] = replica
    return replicas


def _check_types(replicas: Replicas) -> None:
    """Raise UsageError for a cluster that no spec can have."""
    for job in ("chief", "evaluator"):
        if job in replicas and (count := replicas[job].count) > 1:
            fix = "write 1" if job == "evaluator" else "write 1, and make the others Workers"
            place = replicas[job].fields.at("replicas")
            raise UsageError(f"{place} is {count}: a cluster has at most one {job}", fix=fix)
    types = "spec.tfReplicaSpecs"
    if "worker" not in replicas and "ps" in replicas:
        if "chief" in replicas:
            fix = "call the Chief Worker: worker 0 is the chief where there is none"
            raise UsageError(f"{types}: a Chief and PS without a Worker are no cluster", fix=fix)
        raise UsageError(f"{types} has no Worker: PS alone train nothing", fix="add Worker")
    if "worker" not in replicas and "chief" not in replicas:
        reason = "an Evaluator alone trains nothing" if replicas else "there are no replicas"
        fix = f"give {types}.Worker, with its template"
        raise UsageError(f"{types} has no Worker: {reason}", fix=fix)


def _choose_plain(only: Replica) -> str:
    """Return the kind of a job with one task."""
    message = "one task alone gets no TF_CONFIG, as in TFJob: job.kind is plain"
    only.fields.note("changed", "", message, 'for a program that needs it: "kind": "training"')
    return "plain"


def _map_strategy(replicas: Replicas) -> dict[str, Any]:
    """Return `strategy`, if the types ask for one."""
    if "evaluator" in replicas:
        message = "TF_CONFIG of the other tasks does not list it, which TFJob's does"
        replicas["evaluator"].fields.note("changed", "", message)
    if "ps" not in replicas:
        return {}
    message = "workers are taken to train and to end, as with TensorFlow 1 and Estimators"
    fix = "for ParameterServerStrategy, whose workers only serve:"
    fix += " --set strategy.name=parameter_server"
    replicas["ps"].fields.note("changed", "", message, fix)
    return {"strategy": {"name": "default"}}


def _note_success(spec: Fields, cluster: dict[str, int]) -> None:
    """Say whose success is the run's, and what becomes of the fields that TFJob has for it."""
    policy = spec.take("successPolicy", str) or ""
    if policy not in ("AllWorkers", ""):
        spec.note("missing", "successPolicy", f"{shorten(policy)} is not known")
    elif "chief" in cluster and "worker" in cluster:
        message = f"TFJob succeeds with the Chief; here the workers then {_LATER}"
        spec.note("changed", "successPolicy", message)
    elif cluster["worker" if "worker" in cluster else "chief"] > 1:
        who = "all workers, however late" if policy else "worker 0"
        message = f"TFJob succeeds with {who}; here, after worker 0, the others {_LATER}"
        spec.note("changed", "successPolicy", message)
    if spec.take("enableDynamicWorker", bool):
        message = (
            "the workers of a run are fixed: TF_CONFIG lists all of them, where TFJob lists a"
            " worker itself and PS, and goes on when a worker fails"
        )
        fix = "supervision.min_workers goes on with fewer"
        spec.note("missing", "enableDynamicWorker", message, fix)


def _map_job(main: Replica, replicas: Replicas) -> dict[str, Any]:
    """Return `job`: the program of most tasks, and others for single jobs.

    Variables that not all tasks have are set by the command ``env``, as a spec has one `job.env`.
    """
    shared = {
        name: value
        for name, value in main.env.items()
        if all(replica.env.get(name) == value for replica in replicas.values())
    }

    def program_of(replica: Replica) -> dict[str, Any]:
        own = [f"{key}={value}" for key, value in replica.env.items() if key not in shared]
        command = ["env", *own, *replica.command] if own else list(replica.command)
        return {"command": command, "args": list(replica.args)}

    program = program_of(main)
    programs = {name: program_of(replica) for name, replica in replicas.items()}
    others = {name: other for name, other in programs.items() if other != program}
    return program | ({"env": shared} if shared else {}) | ({"per_task": others} if others else {})


def _map_roles(main: Replica, replicas: Replicas) -> dict[str, Any]:
    """Return `roles`, the fields in which pods differ from those of `main`, and list the others."""
    roles: dict[str, dict[str, Any]] = {}
    of_main = f"of its pods is that of {main.fields.path.rpartition('.')[2]}"
    for job, replica in replicas.items():
        for key in sorted({*main.pods, *replica.pods}):
            if (own := replica.pods.get(key, _OF_ROLES.get(key))) == main.pods.get(key):
                continue
            if key in _OF_ROLES or (key == "image" and own):
                roles.setdefault(job, {"kubernetes": {}})["kubernetes"][key] = own
            else:
                fix = f"make runtime.kubernetes.{key} fit all tasks"
                replica.fields.note("missing", "template", f"{key} {of_main}", fix)
        if replica.user != main.user:
            fix = "make runtime.user fit all tasks"
            replica.fields.note("missing", "template", f"the user {of_main}", fix)
        if replica.grace_s is not None and replica.grace_s != main.grace_s:
            message = "terminationGracePeriodSeconds differs: one grace_s serves all tasks"
            replica.fields.note("missing", "template.spec", message)
    return {"roles": roles} if roles else {}


def _note_rest(job: Fields, metadata: Fields, spec: Fields, run: Fields) -> None:
    for key in ("apiVersion", "kind", "metadata", "status"):
        job.values.pop(key, None)
    for key in _OF_THE_SERVER:
        metadata.values.pop(key, None)
    metadata.note_rest("runtime.kubernetes.labels and annotations reach all objects of the run")
    for fields in (run, spec, job):
        fields.note_rest()


def _note_images(main: Replica, pods: dict[str, Any]) -> None:
    """Say what the image needs, and that the code beside the spec reaches the pods, too."""
    place = "template.spec.containers"
    if "image" not in pods:
        main.fields.note("needed", place, "no image is given", "set runtime.kubernetes.image")
    message = "the coordinator runs in this image, too, and needs tfcluster[kubernetes] in it"
    fix = "install it there, or set runtime.kubernetes.coordinator.image"
    main.fields.note("needed", place, message, fix)
    message = "tfcluster sends the folder of the spec to all pods, as the program's code"
    fix = "keep the spec in a folder of its own, or set job.workdir"
    main.fields.note("changed", place, message, fix)


def _note_user(main: Replica) -> None:
    """Say where the user or the group is not that of the image, as it is in a TFJob."""
    place = "template.spec.securityContext"
    if main.user is None:
        message = "no runAsUser: the pods run as 1000:1000, not as the image's user (often root)"
        main.fields.note("changed", place, message, 'set runtime.user: "0" for root, or "UID:GID"')
    elif ":" not in main.user and main.user != "0":
        message = f"no runAsGroup: the group is {main.user}, too, not that of the image's user"
        main.fields.note("changed", place, message, f'set runtime.user: "{main.user}:GID"')


def _sort(notes: list[ConversionNote]) -> list[ConversionNote]:
    """Return each note once, those first that need an answer, and of them the program's."""
    order = ("needed", "missing", "changed")

    def key(note: ConversionNote) -> tuple[int, bool]:
        return order.index(note.kind), not note.place.endswith(".command")

    return sorted(dict.fromkeys(notes), key=key)
