"""Turns the manifest of a TFJob into a spec, and lists what the spec cannot say."""

from __future__ import annotations

from typing import Any

from tfcluster.errors import UsageError
from tfcluster.spec import shorten
from tfcluster.tfjob import Note, replica_types
from tfcluster.tfjob.manifest import Fields, read
from tfcluster.tfjob.replica import Replica, map_template
from tfcluster.tfjob.run_policy import choose_gang, map_restarts, map_run

_JOBS = {"chief": "chief", "master": "chief", "worker": "worker", "ps": "ps",
         "evaluator": "evaluator"}  # fmt: skip
_BASES = ("worker", "chief", "ps", "evaluator")
"""The job whose pods are those of the spec; it has one kind of pod."""
_OF_V1BETA = ("cleanPodPolicy", "ttlSecondsAfterFinished", "ttlSecondsAfterFinishing",
              "activeDeadlineSeconds", "backoffLimit")  # fmt: skip
"""Fields that v1 moved into ``runPolicy``."""


def convert(text: str, name: str) -> tuple[dict[str, Any], list[Note]]:
    """Return the spec of the TFJob in `text`, and the notes about it.

    Raises UsageError for anything but one TFJob; `name` is the file's.
    """
    job = read(text, name)
    metadata, spec = job.below("metadata"), job.below("spec")
    run = spec.below("runPolicy")
    for key in _OF_V1BETA:
        if key in spec.values:
            run.values.setdefault(key, spec.values.pop(key))
    title, namespace = _names(metadata)
    tasks, replicas, policies, places = _map_replicas(spec)
    replica_types.check(tasks, places)
    job.values["metadata"] = metadata.values
    supervision = map_restarts(job, policies, run)
    replica_types.note_success(spec, tasks)
    supervision |= map_run(job, run, tasks=sum(tasks.values()))
    base = next(name for name in _BASES if name in replicas)
    pods = replicas[base].pods | supervision.pop("kubernetes")
    if namespace:
        pods = {"namespace": namespace, **pods}
    choose_gang(job, pods)
    if replicas[base].grace_s is not None:
        supervision["grace_s"] = replicas[base].grace_s
    _note_differences(job, base, replicas, places)
    by_types = replica_types.map_types(tasks, places, job)
    kind = {"kind": by_types.pop("kind")} if "kind" in by_types else {}
    result: dict[str, Any] = {"version": 1, "name": title, "cluster": tasks}
    result["job"] = _map_job(base, replicas) | kind
    result |= by_types
    user = replicas[base].user
    own_user = {} if user is None else {"user": user}
    result["runtime"] = {"backend": "kubernetes", **own_user, "kubernetes": pods}
    result["supervision"] = supervision
    _note_rest(job, metadata, spec, run)
    _note_images(job, base, pods, places)
    _note_user(job, f"{places[base]}.template.spec.securityContext", user)
    return result, _sort(job.notes)


def _names(metadata: Fields) -> tuple[str, str | None]:
    prefix = metadata.take("generateName", str) or ""
    name = metadata.take("name", str) or prefix.rstrip("-") or "tfjob"
    return name[:63], metadata.take("namespace", str)


Replicas = dict[str, Replica]


def _map_replicas(
    spec: Fields,
) -> tuple[dict[str, int], Replicas, dict[str, tuple[str, str]], dict[str, str]]:
    """Return numbers of tasks, pods, restart policies and paths, each by job."""
    types = spec.below("tfReplicaSpecs")
    tasks: dict[str, int] = {}
    replicas: Replicas = {}
    policies: dict[str, tuple[str, str]] = {}
    places: dict[str, str] = {}
    for key in list(types.values):
        one = types.below(key)
        if (job := _JOBS.get(key.lower())) is None:
            fix = "write Chief, Worker, PS or Evaluator"
            raise UsageError(f"{one.path}: {shorten(key)} is not a replica type", fix=fix)
        if job in places:
            raise UsageError(f"{places[job]} and {one.path} are one type", fix="keep one of them")
        places[job] = one.path
        if key.lower() == "master":
            message = 'Master: its task type in TF_CONFIG is "chief", not "master"'
            one.notes.append(Note("changed", one.path, message))
        count = one.take("replicas", int)
        policies[job] = (one.at("restartPolicy"), one.take("restartPolicy", str) or "Never")
        replica = map_template(one.below("template"))
        one.note_rest()
        if count == 0:
            one.note_changed("replicas", "0: the type is left out")
            policies.pop(job)
        else:
            tasks[job], replicas[job] = 1 if count is None else count, replica
    return tasks, replicas, policies, places


def _map_job(base: str, replicas: Replicas) -> dict[str, Any]:
    """Return `job`: the program of most tasks, and others for single jobs.

    Variables that not all tasks have are set by the command ``env``, as a spec has one `job.env`.
    """
    shared = {
        name: value
        for name, value in replicas[base].env.items()
        if all(one.env.get(name) == value for one in replicas.values())
    }
    steps = {}
    for name, one in replicas.items():
        own = [f"{key}={value}" for key, value in one.env.items() if key not in shared]
        command = ["env", *own, *one.command] if own else list(one.command)
        steps[name] = {"command": command, "args": list(one.args)}
    job: dict[str, Any] = dict(steps[base])
    if shared:
        job["env"] = shared
    if others := {name: step for name, step in steps.items() if step != steps[base]}:
        job["per_task"] = others
    return job


def _note_differences(job: Fields, base: str, replicas: Replicas, places: dict[str, str]) -> None:
    """List the pods' fields that differ from the base's: a spec has one kind of pod."""
    main = replicas[base]
    for name, one in replicas.items():
        for key in sorted({*main.pods, *one.pods}):
            if one.pods.get(key) != main.pods.get(key):
                message = f"{key} of its pods is that of {places[base].rpartition('.')[2]}"
                fix = f"make runtime.kubernetes.{key} fit all tasks"
                job.notes.append(Note("missing", f"{places[name]}.template", message, fix))
        if one.user != main.user:
            message = f"the user of its pods is that of {places[base].rpartition('.')[2]}"
            fix = "make runtime.user fit all tasks"
            job.notes.append(Note("missing", f"{places[name]}.template", message, fix))
        if one.grace_s is not None and one.grace_s != main.grace_s:
            message = "terminationGracePeriodSeconds differs: one grace_s serves all tasks"
            job.notes.append(Note("missing", f"{places[name]}.template.spec", message))


def _note_rest(job: Fields, metadata: Fields, spec: Fields, run: Fields) -> None:
    for key in ("apiVersion", "kind", "metadata", "status"):
        job.values.pop(key, None)
    for key in ("creationTimestamp", "resourceVersion", "uid", "generation", "managedFields",
                "selfLink"):  # fmt: skip
        metadata.values.pop(key, None)
    metadata.note_rest("runtime.kubernetes.labels and annotations reach all objects of the run")
    run.note_rest()
    spec.note_rest()
    job.note_rest()


def _note_images(job: Fields, base: str, pods: dict[str, Any], places: dict[str, str]) -> None:
    """Say what the image needs, and that the code beside the spec reaches the pods, too."""
    container = f"{places[base]}.template.spec.containers"
    if "image" not in pods:
        fix = "set runtime.kubernetes.image"
        job.notes.append(Note("needed", container, "no image is given", fix))
    message = "the coordinator runs in this image, too, and needs tfcluster[kubernetes] in it"
    fix = "install it there, or set runtime.kubernetes.coordinator.image"
    job.notes.append(Note("needed", container, message, fix))
    message = "tfcluster sends the folder of the spec to all pods, as the program's code"
    fix = "keep the spec in a folder of its own, or set job.workdir"
    job.notes.append(Note("changed", container, message, fix))


def _note_user(job: Fields, place: str, user: str | None) -> None:
    """Say where the user or the group is not that of the image, as it is in a TFJob."""
    if user is None:
        message = "no runAsUser: the pods run as 1000:1000, not as the image's user (often root)"
        fix = 'set runtime.user: "0" for root, or "UID:GID"'
        job.notes.append(Note("changed", place, message, fix))
    elif ":" not in user and user != "0":
        message = f"no runAsGroup: the group is {user}, too, not that of the image's user"
        fix = f'set runtime.user: "{user}:GID"'
        job.notes.append(Note("changed", place, message, fix))


def _sort(notes: list[Note]) -> list[Note]:
    """Return each note once, those first that need an answer, and of them the program's."""
    order = ("needed", "missing", "changed")

    def key(note: Note) -> tuple[int, bool]:
        return order.index(note.kind), not note.place.endswith(".command")

    return sorted(dict.fromkeys(notes), key=key)
