"""Checks the tasks of a TFJob, and notes where tfcluster treats a type of task otherwise.

TFJob accepts any set of types (``pkg/webhooks/tensorflow/tfjob_webhook.go``), also one that never
ends: the Chief's success is that of the job, or without a Chief the Worker's (`UpdateJobStatus` in
``pkg/controller.v1/tensorflow/tfjob_controller.go``). TF_CONFIG is made in ``tensorflow.go`` beside
it, and only for more than one task (`isDistributed` in ``util.go``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcluster.errors import UsageError
from tfcluster.spec import shorten
from tfcluster.tfjob import Note
from tfcluster.tfjob.manifest import Fields

_LATER = "have supervision.finish_grace_s (60 s) to end, or the run fails"


def check(cluster: Mapping[str, int], places: Mapping[str, str]) -> None:
    """Raise UsageError for a cluster that no spec can have; `places`: the path of each type."""
    for job in ("chief", "evaluator"):
        if cluster.get(job, 0) > 1:
            fix = "write 1" if job == "evaluator" else "write 1, and make the others Workers"
            message = f"{places[job]}.replicas is {cluster[job]}: a cluster has at most one {job}"
            raise UsageError(message, fix=fix)
    types = "spec.tfReplicaSpecs"
    if "worker" not in cluster and "ps" in cluster:
        if "chief" in cluster:
            fix = "call the Chief Worker: worker 0 is the chief where there is none"
            raise UsageError(f"{types}: a Chief and PS without a Worker are no cluster", fix=fix)
        raise UsageError(f"{types} has no Worker: PS alone train nothing", fix="add Worker")
    if "worker" not in cluster and "chief" not in cluster:
        what = "an Evaluator alone trains nothing" if cluster else "there are no replicas"
        fix = f"give {types}.Worker, with its template"
        raise UsageError(f"{types} has no Worker: {what}", fix=fix)


def map_types(cluster: Mapping[str, int], places: Mapping[str, str], job: Fields) -> dict[str, Any]:
    """Return `strategy`, if the types ask for one, and `job.kind` as ``kind``."""
    found: dict[str, Any] = {}
    if sum(cluster.values()) == 1:
        found["kind"] = "plain"
        message = "one task alone gets no TF_CONFIG, as in TFJob: job.kind is plain"
        place = places[next(iter(cluster))]
        fix = 'for a program that needs it: "kind": "training"'
        job.notes.append(Note("changed", place, message, fix))
    if "ps" in cluster:
        found["strategy"] = {"name": "default"}
        message = "workers are taken to train and to end, as with TensorFlow 1 and Estimators"
        fix = "for ParameterServerStrategy, whose workers only serve:"
        fix += " --set strategy.name=parameter_server"
        job.notes.append(Note("changed", places["ps"], message, fix))
    if "evaluator" in cluster:
        message = "TF_CONFIG of the other tasks does not list it, which TFJob's does"
        job.notes.append(Note("changed", places["evaluator"], message))
    return found


def note_success(spec: Fields, cluster: Mapping[str, int]) -> None:
    """Say whose success is the run's, and what becomes of the fields that TFJob has for it."""
    policy = spec.take("successPolicy", str) or ""
    if policy not in ("AllWorkers", ""):
        spec.note_missing("successPolicy", f"{shorten(policy)} is not known")
    elif "chief" in cluster and "worker" in cluster:
        message = f"TFJob succeeds with the Chief; here the workers then {_LATER}"
        spec.note_changed("successPolicy", message)
    elif cluster["worker" if "worker" in cluster else "chief"] > 1:
        who = "all workers, however late" if policy else "worker 0"
        message = f"TFJob succeeds with {who}; here, after worker 0, the others {_LATER}"
        spec.note_changed("successPolicy", message)
    if spec.take("enableDynamicWorker", bool):
        message = (
            "the workers of a run are fixed: TF_CONFIG lists all of them, where TFJob lists a"
            " worker itself and PS, and goes on when a worker fails"
        )
        fix = "supervision.min_workers goes on with fewer"
        spec.note_missing("enableDynamicWorker", message, fix)
