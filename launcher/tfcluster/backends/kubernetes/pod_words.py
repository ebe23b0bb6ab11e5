"""The words for what Kubernetes reports about a pod: tables of texts, and what follows (data).

A waiting reason with a limit (`Words.patience_s`) is permanent after that time: what a Secret that
is created a moment later would fix, or a registry that is away for a moment, must not end a run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

_WAITING, _PERMANENT = "waiting", "permanent"
_INFRASTRUCTURE, _PREEMPTION, _FAILURE = "infrastructure", "preemption", "failure"
_SILENT, _OUT_OF_MEMORY = "silent", "out_of_memory"

_PULL_S, _PULLS = 60.0, 3
"""Seconds, and attempts of the kubelet, for an image that the registry does not give."""
_AWAY_S: Final = 300.0
"""Seconds for what is away: a registry, a webhook."""
_MISSING_S: Final = 60.0
"""Seconds for an object that does not exist yet."""
_ATTACHED_S: Final = 480.0
"""Seconds for a volume that another node holds: the attach/detach controller takes it from a lost
node after 6 minutes (pkg/controller/volume/attachdetach, ReconcilerMaxWaitForUnmountDuration)."""


class Words(NamedTuple):
    """The words and the class of one reason (`pod_reasons.Reason`)."""

    what: str
    nature: str
    fix: str = ""
    patience_s: float | None = None
    tries: int | None = None
    """The attempt of the kubelet after which the reason is permanent, too."""


Table = tuple[tuple[str, Words], ...]
"""Pattern, searched in the server's text, and words; the first one counts."""

NORMAL: Final = frozenset({None, "ContainerCreating", "PodInitializing"})
"""Reasons of a waiting container that only takes its time."""
READ_MESSAGE: Final = "the message names what the cluster's rules do not allow"

# ── Scheduling (pkg/scheduler: FitError; one text for all nodes) ──

GATED = Words(
    "the pod waits for its queue: a controller (such as Kueue) holds it back",
    _WAITING,
    "`kubectl get workloads` shows Kueue's queue; runtime.kubernetes.queue names it",
)
NOT_SEEN = Words(
    "no scheduler has looked at the pod yet",
    _WAITING,
    "if it stays so: does the scheduler {scheduler} run in the cluster"
    " (runtime.kubernetes.scheduler_name)?",
)
SCHEDULING: Table = (
    (
        r'persistentvolumeclaim "[^"]*" not found',
        Words(
            "the pod's volume claim does not exist",
            _WAITING,
            "create it, or correct `claim` in runtime.kubernetes.volumes: `kubectl get pvc`",
            _MISSING_S,
        ),
    ),
    (
        r"",
        Words(
            "no node has a place for the pod now",
            _WAITING,
            "wait for other pods, ask for less in runtime.kubernetes.resources, or correct"
            " node_selector, affinity or tolerations: `kubectl describe nodes` shows all of it",
        ),
    ),
)

IMAGE: Final = frozenset(
    {
        *("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"),
        *("ImageInspectError", "RegistryUnavailable", "SignatureValidationFailed"),
    }
)
_CHECK_IMAGE = "correct runtime.kubernetes.image, or push the image"
PULLS: Table = (
    (
        r"InvalidImageName|couldn't parse image|invalid reference format",
        Words("{image} is no valid name of an image", _PERMANENT, _CHECK_IMAGE),
    ),
    (
        r"ErrImageNeverPull|NeverPull|is not present with pull policy of Never",
        Words(
            "the node does not have the image {image}, and the pull policy is Never",
            _PERMANENT,
            "load it on every node, or remove imagePullPolicy from runtime.kubernetes.pod_template",
        ),
    ),
    (
        r"no match for platform|no matching manifest|exec format",
        Words(
            "the image {image} does not exist for the node's processor",
            _PERMANENT,
            "build it for that architecture, or choose nodes by"
            " runtime.kubernetes.node_selector kubernetes.io/arch",
        ),
    ),
    (
        r"toomanyrequests|no such host|dial tcp|i/o timeout|connection refused|connection reset"
        r"|TLS handshake|x509|server misbehaving|\b50[0234]\b|deadline exceeded|unexpected EOF"
        r"|RegistryUnavailable",
        Words(
            "the node cannot get the image {image} from its registry",
            _WAITING,
            "is the registry up, and may the nodes reach it? A registry that the cluster can"
            " reach, or the image on every node, helps",
            _AWAY_S,
        ),
    ),
    (
        r"",
        Words(
            "the image {image} cannot be pulled",
            _WAITING,
            "does it exist? Correct runtime.kubernetes.image, or push it. A private one needs a"
            " Secret: `kubectl create secret docker-registry NAME ...`, named in"
            " runtime.kubernetes.image_pull_secrets",
            *(_PULL_S, _PULLS),
        ),
    ),
)
_NOT_STARTED = Words("the container cannot be started", _WAITING, READ_MESSAGE, _MISSING_S)
CONTAINERS: Mapping[str, Words] = {
    "CreateContainerConfigError": _NOT_STARTED,
    "CreateContainerError": _NOT_STARTED,
    "RunContainerError": _NOT_STARTED,
    "CrashLoopBackOff": Words(
        "the container ends again and again", _WAITING, "`kubectl logs --previous POD` says why"
    ),
}
CONFIGS: Table = (
    (
        r"runAsNonRoot|breaks non-root policy",
        Words(
            "the container would run as root, which its pod does not allow",
            _PERMANENT,
            'set runtime.user: "1000:1000", or "0" for root, and leave runAsUser and runAsNonRoot'
            " out of runtime.kubernetes.pod_template",
        ),
    ),
    (
        r"(secret|configmap) \S+ not found|couldn't find key",
        Words(
            "a Secret or ConfigMap of the pod, or a key in it, does not exist",
            _WAITING,
            "create it, or correct runtime.kubernetes.env_from: `kubectl get secrets,configmaps`",
            _MISSING_S,
        ),
    ),
    (
        r"executable file not found|no such file or directory",
        Words(
            "the image has no program of that name",
            _PERMANENT,
            "the image needs Python 3.9 or newer at the path of runtime.python",
        ),
    ),
)
LATE_MOUNT: Final = (
    r"Unable to attach or mount volumes: .*: (timed out waiting for the condition"
    r"|context deadline exceeded)"
)
"""The end of a later event of the kubelet, which does not say why a mount has failed."""
STARTS: Table = (
    (
        r"(secret|configmap) \S+ not found|references non-existent",
        Words(
            "a Secret or ConfigMap of the pod's volumes, or a key in it, does not exist",
            _WAITING,
            "create it, or correct runtime.kubernetes.volumes: `kubectl get secrets,configmaps`",
            _MISSING_S,
        ),
    ),
    (
        r"Multi-Attach error|already used by|exclusively attached",
        Words(
            "another node holds the pod's volume",
            _WAITING,
            "a claim with access mode ReadWriteOnce serves one node only: use ReadWriteMany, or"
            " end the pods that use it",
            _ATTACHED_S,
        ),
    ),
    (
        r"",
        Words(
            "the node cannot set up the pod's network or a volume",
            _WAITING,
            "the message says why; `kubectl describe pvc` shows the state of a claim",
            _AWAY_S,
        ),
    ),
)

LARGER_THAN_QUOTA: Final = (
    "use fewer tasks, or ask for less in runtime.kubernetes.resources: the run's pods alone are"
    " more than the quota allows"
)
REFUSALS: Table = (
    (
        r"exceeded quota",
        Words(
            "the quota of the namespace is used up",
            _WAITING,
            "wait, or ask for less in runtime.kubernetes.resources: `kubectl describe quota`",
        ),
    ),
    (
        r"failed calling webhook",
        Words("an admission webhook of the cluster does not answer", _WAITING, "", _AWAY_S),
    ),
    (
        r"error looking up service account|serviceaccount \S+ not found",
        Words(
            "the pod's service account does not exist",
            _WAITING,  # a new namespace gets its account a moment later
            "create it, or correct runtime.kubernetes.service_account: `kubectl get sa`",
            30.0,
        ),
    ),
)

OUT_OF_MEMORY = Words(
    "its container was killed: it used more memory than its limit (OOMKilled)",
    _OUT_OF_MEMORY,
    "raise memory in runtime.kubernetes.resources.limits, or use smaller batches or shuffle"
    " buffers; files in an emptyDir with medium Memory count, too",
)
PREEMPTED = Words(
    "a pod with a higher priority took its place",
    _PREEMPTION,
    "runtime.kubernetes.priority_class decides which pods may be preempted",
)
EVICTED_BY_API = Words("it was evicted (kubectl drain, an autoscaler or a rebalancer)", _PREEMPTION)
DELETED = Words("the pod was deleted (kubectl delete, or a controller of the cluster)", _PREEMPTION)
TAINTED = Words("its node got a taint that the pod does not tolerate", _PREEMPTION)
BY_QUEUE = Words("the queue (Kueue) took its place back", _PREEMPTION)
BY_KUBELET = Words("its node ended the pod", _INFRASTRUCTURE)
NODE_LOST = Words("its node {node} does not answer", _SILENT)
NODE_REMOVED = Words("its node {node} does not exist any more", _INFRASTRUCTURE)
DISRUPTIONS: Mapping[str, Words] = {
    "PreemptionByScheduler": PREEMPTED,
    "EvictionByEvictionAPI": EVICTED_BY_API,
    "DeletionByPodGC": NODE_REMOVED,
}
"""Reason of the condition DisruptionTarget → words."""

OVER_OWN_LIMITS: Final = (
    r"emptyDir volume .* exceeds|usage exceeds the total limit|exceeded its local ephemeral"
)
"""The words of a kubelet for a pod that it evicts for the pod's own sake; the code is the same."""
EVICTED_FOR_ITSELF = Words(
    "it was evicted: it wrote more to local disk than its limits allow",
    _FAILURE,
    "raise ephemeral-storage in runtime.kubernetes.resources.limits, or `size` of the"
    " emptyDir; checkpoints belong on a claim or in an object store",
)
EVICTED = Words(
    "it was evicted: its node ran out of memory, disk space or processes",
    _INFRASTRUCTURE,
    "a memory request as high as the real use keeps the pod: it is evicted last",
)
_SHUTDOWN = Words("its node {node} is shutting down", _PREEMPTION)
REJECTED = Words("the node {node} refused the pod after its scheduling", _INFRASTRUCTURE)
_NOT_ALLOWED = Words("the node {node} does not allow the pod's settings", _PERMANENT, READ_MESSAGE)
STATUS: Mapping[str, Words] = {
    "Preempting": Words("a critical pod of its node {node} took its place", _PREEMPTION),
    "Preempted": PREEMPTED,
    "NodeLost": NODE_LOST,
    "NodeShutdown": _SHUTDOWN,
    "Shutdown": _SHUTDOWN,
    "Terminated": _SHUTDOWN,
    "UnexpectedAdmissionError": REJECTED,
    "NodeAffinity": REJECTED,
    "AppArmor": _NOT_ALLOWED,
    "SysctlForbidden": _NOT_ALLOWED,
    "DeadlineExceeded": Words(
        "the pod's activeDeadlineSeconds is over",
        _PERMANENT,
        "remove activeDeadlineSeconds from runtime.kubernetes.pod_template:"
        " supervision.run_deadline_s ends a run in time",
    ),
}
"""``status.reason`` of a pod that ended → words. Shutdown (1.20), Terminated (1.22): the graceful
shutdown of a node (pkg/kubelet/nodeshutdown), which is how clouds take back spot machines."""

_CANNOT_RUN = Words(
    "its container cannot run the command",
    _PERMANENT,
    "the image needs Python 3.9 or newer at the path of runtime.python",
)
TERMINATIONS: Mapping[str, Words] = {
    "StartError": _CANNOT_RUN,
    "ContainerCannotRun": _CANNOT_RUN,
    "ContainerStatusUnknown": Words(
        "its node lost the container, and how it ended is not known", _INFRASTRUCTURE
    ),
    "Unknown": Words("its node's container runtime lost the container", _INFRASTRUCTURE),
}
EXIT_CODES: Mapping[int, Words] = {
    137: Words("its container was killed (SIGKILL: exit code 137)", _INFRASTRUCTURE),
    143: Words("its container was ended (SIGTERM: exit code 143)", _INFRASTRUCTURE),
}
"""Exit codes of a container that no known reason explains: PID 1 never ends by a signal of ours."""

GONE: Mapping[str, Words] = {
    "Preempted": PREEMPTED,
    "TaintManagerEviction": Words(
        "its node does not answer or got a taint, and the pod was deleted", _SILENT
    ),
    "NodeNotReady": Words("its node did not answer, and the pod was deleted", _SILENT),
    "Evicted": EVICTED,
    "EvictedByVolcano": PREEMPTED,
}
"""Reason of an event of a pod whose object is gone → words."""
