"""Pods as servers from 1.20 to the newest report them, and what tfcluster makes of each."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.backends.kubernetes import reasons
from tfcluster.backends.kubernetes.reasons import Reason
from tfcluster.node_loss import LossNature
from tfcluster.supervision.failure import Kind, kind_of_leaving, kind_of_loss

Object = dict[str, Any]


def pod(
    phase: str = "Pending", *, node: str = "n1", deleted: bool = False, **status: Any
) -> Object:
    metadata: Object = {"name": "r-worker-0-g1"}
    if deleted:
        metadata["deletionTimestamp"] = "2026-11-23T10:00:00Z"
    spec: Object = {"containers": [{"name": "task", "image": "tf:1"}]}
    if node:
        spec["nodeName"] = node
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}}


def waiting(reason: str, message: str = "") -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(containerStatuses=[{"name": "task", "state": state}])


def ended(reason: str, code: int, message: str = "", **more: Any) -> Object:
    state = {"terminated": {"reason": reason, "exitCode": code, "message": message}}
    return pod("Failed", containerStatuses=[{"name": "task", "state": state}], **more)


def running(*, ready: str = "True", **more: Any) -> Object:
    status = [{"name": "task", "ready": True, "state": {"running": {"startedAt": "…"}}}]
    return pod("Running", conditions=[condition("Ready", status=ready)],
               containerStatuses=status, **more)  # fmt: skip


def test_a_pod_that_waits_has_nothing_alive_unless_an_init_container_runs() -> None:
    assert reasons.runs_nothing(waiting("ErrImageNeverPull"))
    assert not reasons.runs_nothing(running())
    prepares = waiting("PodInitializing")
    prepares["status"]["initContainerStatuses"] = [{"name": "fetch", "state": {"running": {}}}]
    assert not reasons.runs_nothing(prepares)


def condition(kind: str, reason: str = "", message: str = "", *, status: str = "True") -> Object:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def event(reason: str, message: str, *, at: int = 0, count: int = 1) -> Object:
    time = f"2026-11-23T10:00:{at:02d}Z"
    return {"reason": reason, "message": message, "lastTimestamp": time, "count": count}


def disrupted(why: str, text: str = "", **more: Any) -> Object:
    return pod("Running", conditions=[condition("DisruptionTarget", why, text)],
               deleted=True, **more)  # fmt: skip


def unscheduled(text: str) -> Object:
    missed = condition("PodScheduled", "Unschedulable", text, status="False")
    return pod(node="", conditions=[missed])


PULL = 'Failed to pull image "tf:1": rpc error: code = Unknown desc = '
EVICTED: Object = {"reason": "Evicted"}

CASES: dict[str, tuple[Object | None, list[Object], str, LossNature | None, str]] = {
    "no room": (
        unscheduled("0/2 nodes are available: 2 Insufficient nvidia.com/gpu."),
        [event("FailedScheduling", "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.")],
        "no node has a place",
        None,
        "resources",
    ),
    "taint, 1.20": (
        unscheduled(
            "0/1 nodes are available: 1 node(s) had taint {a: b}, that the pod didn't tolerate."
        ),
        [],
        "no node has a place",
        None,
        "tolerations",
    ),
    "claim missing": (
        unscheduled('0/1 nodes: persistentvolumeclaim "data" not found.'),
        [],
        "FailedScheduling",
        None,
        "pvc",
    ),
    "gated by Kueue": (
        pod(node="", conditions=[condition("PodScheduled", "SchedulingGated", status="False")]),
        [],
        "waits for its queue",
        None,
        "queue",
    ),
    "no scheduler": (pod(node=""), [], "no scheduler has looked", None, "scheduler_name"),
    "no such image": (
        waiting("ImagePullBackOff", 'Back-off pulling image "tf:1"'),
        [event("Failed", PULL + '"docker.io/library/tf:1": not found')],
        "the image tf:1 cannot be pulled",
        None,
        "image",
    ),
    "private image": (
        waiting("ErrImagePull", PULL + "pull access denied, authorization failed"),
        [],
        "the image tf:1 cannot be pulled",
        None,
        "image_pull_secrets",
    ),
    "registry away": (
        waiting("ErrImagePull", PULL + "dial tcp: lookup registry on 10.0.0.10:53: no such host"),
        [],
        "cannot get the image tf:1 from its registry",
        None,
        "registry up",
    ),
    "invalid name": (
        waiting("InvalidImageName", 'couldn\'t parse image reference "Tf"'),
        [],
        "InvalidImageName",
        LossNature.PERMANENT,
        "runtime.kubernetes.image",
    ),
    "never pulled": (
        waiting("ErrImageNeverPull", "Container image is not present with pull policy of Never"),
        [],
        "ErrImageNeverPull",
        LossNature.PERMANENT,
        "load the image",
    ),
    "no such secret": (
        waiting("CreateContainerConfigError", 'secret "keys" not found'),
        [],
        "CreateContainerConfigError",
        None,
        "env_from",
    ),
    "image of root": (
        waiting(
            "CreateContainerConfigError", "container has runAsNonRoot and image will run as root"
        ),
        [],
        "CreateContainerConfigError",
        None,
        "the message names",
    ),
    "user 0 beside runAsNonRoot": (
        waiting(
            "CreateContainerConfigError",
            'container\'s runAsUser breaks non-root policy (pod: "p_n(1)", container: task)',
        ),
        [],
        "CreateContainerConfigError",
        None,
        "the message names",
    ),
    "volume not mounted": (
        waiting("ContainerCreating"),
        [event("FailedMount", 'MountVolume.SetUp failed for volume "c": configmap "c" not found')],
        "FailedMount",
        None,
        "volumes",
    ),
    "volume elsewhere": (
        waiting("ContainerCreating"),
        [event("FailedAttachVolume", "Multi-Attach error for volume v: already used by pod(s) x")],
        "FailedAttachVolume",
        None,
        "ReadWriteMany",
    ),
    "out of memory": (
        *(ended("OOMKilled", 137), [], "more memory", LossNature.OUT_OF_MEMORY),
        "runtime.kubernetes.resources.limits",
    ),
    "own exit": (ended("Error", 3, "no disk"), [], "exit code 3", LossNature.OWN_FAILURE, ""),
    "no python": (
        ended("StartError", 128, 'exec: "python": executable file not found in $PATH'),
        [],
        "StartError",
        LossNature.PERMANENT,
        "Python 3.9",
    ),
    "lost by the runtime": (
        ended("ContainerStatusUnknown", 137),
        [],
        "ContainerStatusUnknown",
        LossNature.INFRASTRUCTURE,
        "",
    ),
    "evicted for memory": (
        pod("Failed", **EVICTED, message="The node was low on resource: memory. "),
        [],
        "it was evicted",
        LossNature.INFRASTRUCTURE,
        "memory request",
    ),
    "evicted for its disk": (
        pod("Failed", **EVICTED, message='Usage of EmptyDir volume "shm" exceeds the limit "1Gi".'),
        [],
        "wrote more to local disk",
        LossNature.OWN_FAILURE,
        "ephemeral-storage",
    ),
    "rejected": (
        pod("Failed", reason="OutOfcpu", message="Pod Node didn't have enough resource: cpu"),
        [],
        "OutOfcpu",
        LossNature.INFRASTRUCTURE,
        "",
    ),
    "deadline": (
        pod("Failed", reason="DeadlineExceeded", message="Pod was active on the node longer"),
        [],
        "DeadlineExceeded",
        LossNature.PERMANENT,
        "the message names",
    ),
    "node shut down": (
        pod("Failed", reason="Terminated", message="Pod was terminated in response to imminent"),
        [],
        "Terminated",
        LossNature.PREEMPTED,
        "",
    ),
    "preempted, 1.20": (
        pod("Running", deleted=True),
        [event("Preempted", "Preempted by default/big on node n1")],
        "Preempted",
        LossNature.PREEMPTED,
        "priority_class",
    ),
    "preempted": (
        disrupted("PreemptionByScheduler", "default-scheduler: preempting"),
        [],
        "PreemptionByScheduler",
        LossNature.PREEMPTED,
        "priority_class",
    ),
    "evicted by the API": (
        disrupted("EvictionByEvictionAPI", "Eviction API: evicting"),
        [],
        "EvictionByEvictionAPI",
        LossNature.PREEMPTED,
        "",
    ),
    "deleted by its node": (
        disrupted("TerminationByKubelet", **EVICTED, message="The node was low on resource: pids"),
        [],
        "it was evicted",
        LossNature.INFRASTRUCTURE,
        "",
    ),
    "deleted": (pod("Running", deleted=True), [], "was deleted", LossNature.PREEMPTED, ""),
    "node silent": (
        running(ready="False"),
        [event("NodeNotReady", "Node is not ready")],
        "its node n1 does not answer",
        LossNature.SILENT,
        "",
    ),
    "node lost": (
        pod("Running", deleted=True, reason="NodeLost", message="Node n1 which was running pod …"),
        [],
        "its node n1 does not answer",
        LossNature.SILENT,
        "",
    ),
    "object gone": (
        None,
        [event("TaintManagerEviction", "Marking for deletion Pod a/b")],
        "does not answer",
        LossNature.SILENT,
        "",
    ),
    "object gone in silence": (None, [], "was deleted", LossNature.PREEMPTED, ""),
    "unknown": (
        pod("Failed", reason="Aliens", message="they came"),
        [],
        "the pod ended (Aliens)",
        LossNature.INFRASTRUCTURE,
        "",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_each_fate_of_a_pod_has_its_words_class_and_fix(case: str) -> None:
    found_pod, events, what, nature, fix = CASES[case]
    reason = reasons.explain(found_pod, events)
    assert reason is not None
    assert what in reason.what
    assert reason.nature is nature
    assert fix in reason.fix


@pytest.mark.parametrize(
    "fine", [running(), waiting("ContainerCreating"), waiting("PodInitializing")]
)
def test_a_pod_that_starts_or_runs_needs_no_explanation(fine: Object) -> None:
    assert reasons.explain(fine) is None


def test_the_servers_text_is_beneath_our_words() -> None:
    text = "0/2 nodes are available: 2 Insufficient cpu."
    reason = reasons.explain(unscheduled(text))
    assert str(reason) == f"no node has a place for the pod now: {text}"


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("out of memory", Kind.OUT_OF_MEMORY),
        ("preempted", Kind.PREEMPTED),
        ("no python", Kind.PERMANENT),
        ("node silent", Kind.NODE_LOST),
    ],
)
def test_supervision_reads_the_class_of_a_lost_pod(case: str, kind: Kind) -> None:
    reason = reasons.explain(CASES[case][0], CASES[case][1])
    assert reason is not None
    assert kind_of_loss(reason.loss_of("r-worker-0-g1").nature) is kind


@pytest.mark.parametrize(
    ("case", "kind"),
    [
        ("deleted", Kind.PREEMPTED),
        ("evicted by the API", Kind.PREEMPTED),
        ("evicted for its disk", Kind.NODE_LOST),
        ("evicted for memory", Kind.NODE_LOST),
        ("node silent", Kind.PREEMPTED),
        ("object gone", Kind.PREEMPTED),
    ],
)
def test_supervision_reads_why_a_pod_that_still_answers_is_ended(case: str, kind: Kind) -> None:
    reason = reasons.explain(CASES[case][0], CASES[case][1])
    assert reason is not None
    assert kind_of_leaving(reason.loss_of("r-worker-0-g1").nature) is kind


def test_the_newest_event_counts_whatever_their_order() -> None:
    events = [event("FailedScheduling", "Insufficient cpu", at=9),
              event("FailedScheduling", "Insufficient memory", at=1)]  # fmt: skip
    reason = reasons.explain(pod(node=""), events)
    assert reason is not None
    assert reason.event == "Insufficient cpu"


def test_a_missing_image_is_permanent_after_a_minute_or_three_tries() -> None:
    missing = waiting("ErrImagePull", PULL + "not found")
    once, often = (reasons.explain(missing, [event("Failed", PULL + "not found", count=n)])
                   for n in (1, 3))  # fmt: skip
    assert _natures(once, 0, 59, 60) == [None, None, LossNature.PERMANENT]
    assert _natures(often, 0) == [LossNature.PERMANENT]


def test_only_pulls_are_over_after_three_tries() -> None:
    """A kubelet tries to mount again after 0.5, 1, 2 s, ..."""
    mount = "MountVolume.SetUp failed for volume c: driver name csi.x not found"
    for reason, message in (
        ("FailedMount", mount),
        ("FailedMount", 'secret "keys" not found'),
        ("FailedAttachVolume", "Multi-Attach error for volume v"),
        ("FailedCreatePodSandBox", "failed to set up sandbox: cni plugin not initialized"),
    ):
        found = reasons.explain(waiting("ContainerCreating"), [event(reason, message, count=9)])
        assert _natures(found, 4, 59) == [None, None]


def test_why_a_mount_failed_is_kept_once_the_kubelet_only_says_that_it_timed_out() -> None:
    late = "Unable to attach or mount volumes: unmounted volumes=[d]: timed out waiting for the"
    events = [
        event("FailedMount", 'MountVolume.SetUp failed for "d" : hostPath type check failed', at=1),
        event("FailedMount", f"{late} condition", at=2),
    ]
    found = reasons.explain(waiting("ContainerCreating"), events)
    assert found is not None
    assert found.event.endswith("hostPath type check failed")
    found = reasons.explain(waiting("ContainerCreating"), events[1:])
    assert found is not None
    assert "timed out" in found.event


def test_a_mount_that_has_worked_since_is_no_reason_while_the_image_is_pulled() -> None:
    failed = event("FailedMount", "driver not found", at=1)
    pulling = event("Pulling", 'Pulling image "tf:1"', at=2)
    assert reasons.explain(waiting("ContainerCreating"), [failed, pulling]) is None


def test_an_init_container_that_has_done_its_work_and_a_sidecars_end_are_no_failure() -> None:
    done = {"terminated": {"reason": "Completed", "exitCode": 0}}
    found = waiting("PodInitializing")
    found["status"]["initContainerStatuses"] = [{"name": "data", "state": done}]
    assert reasons.explain(found) is None
    found = running()
    found["status"]["containerStatuses"].append({"name": "sidecar", "state": done})
    assert reasons.explain(found) is None


def test_an_init_container_that_failed_is_the_reason() -> None:
    failed = {"terminated": {"reason": "Error", "exitCode": 4, "message": "no data"}}
    found = pod("Failed", initContainerStatuses=[{"name": "data", "state": failed}])
    reason = reasons.explain(found)
    assert reason is not None
    assert (reason.nature, reason.event) == (LossNature.OWN_FAILURE, "no data")


def test_a_pod_waits_for_a_node_as_long_as_the_run_does() -> None:
    full = reasons.explain(unscheduled("Insufficient cpu"))
    assert _natures(full, 86400) == [None]


def test_a_quota_that_was_not_counted_for_a_minute_never_will_be() -> None:
    unknown = reasons.refused('pods "p" is forbidden: status unknown for quota: q, resources: pods')
    assert _natures(unknown, 0, 59, 60) == [None, None, LossNature.PERMANENT]


def _natures(reason: Reason | None, *lasted: float) -> list[LossNature | None]:
    assert reason is not None
    return [reason.after(seconds).nature for seconds in lasted]


@pytest.mark.parametrize(
    ("message", "what", "nature"),
    [
        (
            "exceeded quota: q, requested: pods=1, used: pods=4, limited: pods=4",
            "refuses the pod",
            None,
        ),
        (
            "exceeded quota: q, requested: limits.memory=8Gi, used: limits.memory=0, limited:"
            " limits.memory=4Gi",
            "refuses the pod",
            LossNature.PERMANENT,
        ),
        (
            "exceeded quota: q, requested: cpu=1500m,memory=1Gi, used: cpu=1,memory=0, limited:"
            " cpu=2,memory=1000Mi",
            "refuses the pod",
            LossNature.PERMANENT,
        ),
        ("status unknown for quota: q, resources: pods", "refuses the pod", None),
        ("failed quota: q: must specify limits.cpu", "refuses the pod", LossNature.PERMANENT),
        ("maximum memory usage per Container is 1Gi, but limit is 2Gi", "refuses the pod",
         LossNature.PERMANENT),
        ('violates PodSecurity "restricted:latest": x', "refuses the pod", LossNature.PERMANENT),
        ('failed calling webhook "w": connect: connection refused', "refuses the pod", None),
        ('admission webhook "w" denied the request: no', "refuses the pod", LossNature.PERMANENT),
        ("no PriorityClass with name high was found", "refuses the pod", LossNature.PERMANENT),
        ("something new", "refuses the pod", LossNature.PERMANENT),
    ],
)  # fmt: skip
def test_each_refusal_of_a_pod_has_its_words_and_class(
    message: str, what: str, nature: LossNature | None
) -> None:
    reason = reasons.refused(f'pods "p" is forbidden: {message}')
    assert what in reason.what
    assert reason.nature is nature
    assert message in reason.event
