"""Maps restart policies, the run policy and the success policy to `supervision` and the gang."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tfcluster.errors import UsageError
from tfcluster.spec import shorten
from tfcluster.tfjob.manifest import Fields

_POLICIES = ("Never", "OnFailure", "Always", "ExitCode")
"""The policies, from the one that restarts least. The default of TFJob v1 is Never."""
_GANGS = {"volcano": "volcano", "kube-batch": "volcano",
          "scheduler-plugins-scheduler": "coscheduling"}  # fmt: skip
_KUEUE = "kueue.x-k8s.io/queue-name"


def map_restarts(
    job: Fields, policies: Mapping[str, tuple[str, str]], run: Fields
) -> dict[str, Any]:
    """Return the restarts of `supervision`; `policies`: path and policy of each job's tasks."""
    for place, policy in policies.values():
        if policy not in _POLICIES:
            fix = f"write one of {', '.join(_POLICIES)}"
            raise UsageError(f"{place} is {shorten(policy)}, which TFJob does not know", fix=fix)
    given = {policy for _, policy in policies.values()}
    place = next(iter(policies.values()))[0] if len(policies) == 1 else "spec.tfReplicaSpecs"
    replica = Fields(place.removesuffix(".restartPolicy"), {}, job.notes)
    if len(given) > 1:
        names = ", ".join(f"{name} {policy}" for name, (_, policy) in policies.items())
        message = f"restart policies differ ({names}): tfcluster has one, for all tasks"
        replica.note_changed("restartPolicy", message, "set supervision.restart_on_error")
    limit = run.take("backoffLimit", int)
    if given == {"Never"}:
        message = "no failure is restarted; a preempted or drained pod still is, at no cost"
        replica.note_changed("restartPolicy", message, "")
        if limit:
            run.note_missing("backoffLimit", f"{limit} restarts of a job that never restarts")
        return {"max_restarts": 0}
    on_error = bool(given & {"OnFailure", "Always"})
    if "Always" in given:
        message = "Always: a task that has succeeded is not started again"
        replica.note_changed("restartPolicy", message)
    if "ExitCode" in given:
        _note_exit_codes(replica, on_error)
    elif on_error:
        replica.note_changed("restartPolicy", "the gang restarts as one, from its checkpoint")
    if limit is None:
        message = "without it TFJob restarts without end, and the spec 3 times"
        run.note_changed("backoffLimit", message, "set supervision.max_restarts")
        return {"restart_on_error": on_error}
    return {"max_restarts": limit, "restart_on_error": on_error}


def _note_exit_codes(replica: Fields, on_error: bool) -> None:
    """Explain ExitCode: 1 to 127 are permanent, 128 and above are restarted."""
    if on_error:
        message = "ExitCode is lost: codes 1 to 127 are restarted, too"
    else:
        message = (
            "ExitCode: signals (codes above 128 by the kernel) are restarted, as in TFJob; a code"
            " that the program itself exits with is permanent, unless it saved a newer checkpoint"
        )
    fix = "end the program by a signal, or with 42 for a preemption, where it wants a restart"
    replica.note_changed("restartPolicy", message, fix)


def map_run(
    job: Fields, spec: Fields, run: Fields, *, tasks: int, has_chief: bool
) -> dict[str, Any]:
    """Return the limits of `supervision`; notes what tfcluster does otherwise at the end."""
    found: dict[str, Any] = {}
    if (deadline := run.take("activeDeadlineSeconds", int)) is not None:
        found["run_deadline_s"] = deadline
    policy = run.take("cleanPodPolicy", str)
    if policy != "All":
        at_end = policy or "not given"
        message = (
            f"{at_end}: tfcluster deletes the pods at the end; their logs are in the run folder"
        )
        run.note_changed("cleanPodPolicy", message, "tfcluster logs RUN")
    for key in ("ttlSecondsAfterFinished", "ttlSecondsAfterFinishing"):
        if run.take(key, int) is not None:
            message = "the coordinator's Job stays for 7 days, the run folder until it is removed"
            run.note_missing(key, message, "tfcluster rm RUN, or tfcluster prune")
    if run.take("suspend", bool):
        run.note_missing("suspend", "a run is not suspended", "start it when it shall run")
    if run.values.pop("managedBy", None):
        run.note_missing("managedBy", "tfcluster manages its runs itself", "leave it out")
    success = spec.take("successPolicy", str)
    if success not in ("AllWorkers", None, ""):
        spec.note_missing("successPolicy", f"{shorten(success)} is not known")
    elif not success and not has_chief:
        message = "TFJob succeeds with worker 0; tfcluster waits for all workers"
        spec.note_changed("successPolicy", message, "set supervision.finish_grace_s")
    if spec.take("enableDynamicWorker", bool):
        message = "the workers of a run are fixed, and TF_CONFIG is the whole cluster's"
        spec.note_missing(
            "enableDynamicWorker", message, "supervision.min_workers goes on with fewer"
        )
    return found | map_scheduling(job, run, tasks)


def map_scheduling(job: Fields, run: Fields, tasks: int) -> dict[str, Any]:
    """Return `start_deadline_s`, if one is given, and the section's fields as ``kubernetes``."""
    policy = run.below("schedulingPolicy")
    pods: dict[str, Any] = {}
    if queue := policy.take("queue", str):
        pods["queue"] = queue
    if priority := policy.take("priorityClass", str):
        pods["priority_class"] = priority
    least = policy.take("minAvailable", int)
    if least is not None and least != tasks:
        message = f"tfcluster starts all {tasks} tasks together, or none"
        policy.note_changed("minAvailable", message)
    found: dict[str, Any] = {"kubernetes": pods}
    if (seconds := policy.take("scheduleTimeoutSeconds", int)) is not None:
        found["start_deadline_s"] = seconds
    policy.note_rest("the gang scheduler counts the requests of the pods themselves")
    labels = job.values.get("metadata", {}).get("labels") or {}
    if queue := labels.pop(_KUEUE, None):
        pods |= {"gang": "kueue", "queue": queue}
    return found


def choose_gang(job: Fields, pods: dict[str, Any]) -> None:
    """Write the gang scheduler into the section, by the name of the pods' scheduler."""
    gang = _GANGS.get(pods.get("scheduler_name", ""))
    if gang:
        pods.setdefault("gang", gang)
        pods.pop("scheduler_name")
    spec = Fields("spec.runPolicy.schedulingPolicy", {}, job.notes)
    if "queue" in pods and pods.get("gang") not in ("kueue", "volcano"):
        message = f"the manifest does not say whose queue {pods.pop('queue')} is"
        spec.note_missing("queue", message, 'set "gang": "volcano" or "kueue", and the queue')
