"""Maps restart policies and the run policy to `supervision` and the gang.

The rules are those of the operator, in ``pkg/controller.v1/common/job.go`` (`ReconcileJobs`) and
``pod.go`` (`ReconcilePods`), ``pkg/core/job.go`` (`PastBackoffLimit`, `PastActiveDeadline`) and
``pkg/util/train/train_util.go`` (`IsRetryableExitCode`). It restarts each pod for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcluster.errors import UsageError
from tfcluster.spec import shorten
from tfcluster.tfjob.manifest import Fields
from tfcluster.tfjob.replica import Replica

_POLICIES = ("Never", "OnFailure", "Always", "ExitCode")
"""The policies that TFJob knows; its default is Never (tensorflow_defaults.go)."""
_GANGS = {"volcano": "volcano", "kube-batch": "volcano",
          "scheduler-plugins-scheduler": "coscheduling"}  # fmt: skip
_KUEUE = "kueue.x-k8s.io/queue-name"


def map_restarts(replicas: Mapping[str, Replica], run: Fields) -> dict[str, Any]:
    """Return the restarts of `supervision`."""
    policies = {name: replica.restart_policy for name, replica in replicas.items()}
    for name, policy in policies.items():
        if policy not in _POLICIES:
            place, fix = replicas[name].fields.at("restartPolicy"), ", ".join(_POLICIES)
            message = f"{place} is {shorten(policy)}, which TFJob does not know"
            raise UsageError(message, fix=f"write one of {fix}")
    given = set(policies.values())
    replica = Fields("spec.tfReplicaSpecs", {}, run.notes)
    if len(replicas) == 1:
        replica = next(iter(replicas.values())).fields
    if len(given) > 1:
        names = ", ".join(f"{name} {policy}" for name, policy in policies.items())
        message = f"restart policies differ ({names}): tfcluster has one, for all tasks"
        replica.note("changed", "restartPolicy", message, "set supervision.restart_on_error")
    limit = run.take("backoffLimit", int)
    if given == {"Never"}:
        message = "no failure is restarted; a preempted or drained pod still is, at no cost"
        replica.note("changed", "restartPolicy", message)
        if limit:
            run.note("missing", "backoffLimit", f"{limit} restarts of a job that never restarts")
        return {"max_restarts": 0}
    on_error = bool(given & {"OnFailure", "Always"})
    if "Always" in given:
        message = "Always: a task that has succeeded is not started again"
        replica.note("changed", "restartPolicy", message)
    if "ExitCode" in given:
        _note_exit_codes(replica, on_error)
    elif on_error:
        message = "the gang restarts as one, from its checkpoint; the same exception twice without"
        replica.note("changed", "restartPolicy", f"{message} a newer checkpoint ends the run")
    _note_backoff_limit(run, limit, given)
    restarts = {} if limit is None else {"max_restarts": limit}
    return {**restarts, "restart_on_error": on_error}


def _note_backoff_limit(run: Fields, limit: int | None, given: set[str]) -> None:
    """Say what TFJob counts: restarts of containers in pods that run, summed over all pods.

    A pod of ExitCode is replaced by a new one, whose count is 0, so only a limit of 0 ends it.
    """
    fix = "set supervision.max_restarts"
    if limit is None:
        message = "without it TFJob restarts without end, and the spec 3 times"
        run.note("changed", "backoffLimit", message, fix)
    elif limit and "ExitCode" in given:
        message = "TFJob never reaches it by restarts of ExitCode; the spec does"
        run.note("changed", "backoffLimit", message, fix)
    elif limit:
        message = f"TFJob fails at restart {limit} of all its pods together; the spec restarts the"
        run.note("changed", "backoffLimit", f"{message} gang {limit} times", fix)


def _note_exit_codes(replica: Fields, on_error: bool) -> None:
    """Explain ExitCode: TFJob restarts after 128 and above, all others end the job."""
    if on_error:
        message = "ExitCode is lost: codes 1 to 127 are restarted, too"
    else:
        message = (
            "ExitCode: a signal is restarted, as in TFJob, also as a shell's code (129 to 142, but"
            " not 138 and 140), and so is 42; other codes only if the run saved a newer checkpoint"
        )
    fix = "end the program by a signal, or with 42 for a preemption, where it wants a restart"
    replica.note("changed", "restartPolicy", message, fix)


def map_run(job: Fields, run: Fields, *, tasks: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the limits of `supervision`, and what the scheduler of the pods is told.

    It notes what tfcluster does otherwise at the end.
    """
    limits: dict[str, Any] = {}
    if (deadline := run.take("activeDeadlineSeconds", int)) is not None:
        limits["run_deadline_s"] = deadline
        message = "the time before the coordinator's start does not count, restarts do"
        run.note("changed", "activeDeadlineSeconds", message)
    policy = run.take("cleanPodPolicy", str)
    if policy != "All":
        message = "tfcluster deletes the pods at the end; their logs are in the run folder"
        at_end = f"{policy or 'not given (None)'}: {message}"
        run.note("changed", "cleanPodPolicy", at_end, "tfcluster logs RUN")
    for key in ("ttlSecondsAfterFinished", "ttlSecondsAfterFinishing"):
        if run.take(key, int) is not None:
            message = "the coordinator's Job stays for 7 days, the run folder until it is removed"
            run.note("missing", key, message, "tfcluster rm RUN, or tfcluster prune")
    if run.take("suspend", bool):
        run.note("missing", "suspend", "a run is not suspended", "start it when it shall run")
    if run.values.pop("managedBy", None):
        run.note("missing", "managedBy", "tfcluster manages its runs itself", "leave it out")
    policy = run.below("schedulingPolicy")
    if (seconds := policy.take("scheduleTimeoutSeconds", int)) is not None:
        limits["start_deadline_s"] = seconds
    return limits, _map_scheduling(job, policy, tasks)


def _map_scheduling(job: Fields, policy: Fields, tasks: int) -> dict[str, Any]:
    """Return what the pods' section says about their scheduling."""
    pods: dict[str, Any] = {}
    if queue := policy.take("queue", str):
        pods["queue"] = queue
    if priority := policy.take("priorityClass", str):
        pods["priority_class"] = priority
        policy.note(
            "changed", "priorityClass", "the class of TFJob's PodGroup becomes the one of the pods"
        )
    least = policy.take("minAvailable", int)
    if least is not None and least != tasks:
        message = f"tfcluster starts all {tasks} tasks together, or none"
        policy.note("changed", "minAvailable", message)
    policy.note_rest("the gang scheduler counts the requests of the pods themselves")
    labels = job.values.get("metadata", {}).get("labels") or {}
    if queue := labels.pop(_KUEUE, None):
        pods |= {"gang": "kueue", "queue": queue}
    return pods


def choose_gang(job: Fields, pods: dict[str, Any]) -> None:
    """Write the gang scheduler into the section, by the name of the pods' scheduler."""
    gang = _GANGS.get(pods.get("scheduler_name", ""))
    if gang:
        pods.setdefault("gang", gang)
        pods.pop("scheduler_name")
    spec = Fields("spec.runPolicy.schedulingPolicy", {}, job.notes)
    if "queue" in pods and pods.get("gang") not in ("kueue", "volcano"):
        message = f"the manifest does not say whose queue {pods.pop('queue')} is; TFJob's own gang"
        message += " scheduler is an option of the operator, of which Volcano has queues"
        spec.note("missing", "queue", message, 'set "gang": "volcano", and the queue')
