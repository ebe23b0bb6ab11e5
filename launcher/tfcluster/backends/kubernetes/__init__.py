"""The backend `kubernetes`: each task runs in a pod of its own, which tfcluster itself makes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tfcluster.kinds import BackendKind, Capabilities
from tfcluster.node_loss import LossNature

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tfcluster.spec.fields import Mistake
    from tfcluster.spec.model import ClusterSpec
    from tfcluster.spec.sections import Runtime

GPU = re.compile("/gpu$|^nvidia.com/")
"""The names of resources that are GPUs; NVIDIA's device plugin calls parts of one ``mig-…``."""

MEMORY_FIX = (
    "raise memory in runtime.kubernetes.resources.limits, or use smaller batches or shuffle"
    " buffers, and no cache() in memory; files in an emptyDir with medium Memory count, too"
)
_HINTS = {
    "out-of-memory": MEMORY_FIX,
    "memory": MEMORY_FIX,
    "sigkill": "possible causes: more memory than runtime.kubernetes.resources.limits allows, or a"
    " node without memory or disk space: `kubectl describe pod` and `kubectl get events`",
    "disk-full": "the pod's disk is full: raise ephemeral-storage in"
    " runtime.kubernetes.resources.limits or the `size` of the emptyDir, or keep large files on a"
    " volume (runtime.kubernetes.volumes); if it is the node's disk, `kubectl describe node`",
    "bus-error": "/dev/shm is full, which counts as memory of the pod, or a volume is: raise memory"
    " in runtime.kubernetes.resources.limits",
    "name-lookup": "the cluster's DNS does not know a host name: check it in the script; does DNS"
    " run (`kubectl get pods -n kube-system -l k8s-app=kube-dns`), and may the pods reach it (port"
    " 53 in the egress rules of a NetworkPolicy)?",
}
"""The hints for tasks in pods."""
_LOST = (
    "pod-lost",
    "the cluster lost the pod: `kubectl get events` and `kubectl get nodes` show more",
)
_LOSSES = {
    LossNature.INFRASTRUCTURE: _LOST,
    LossNature.SILENT: _LOST,
    LossNature.OWN_FAILURE: _LOST,
    LossNature.OUT_OF_MEMORY: (
        "pod-out-of-memory",
        "raise memory in runtime.kubernetes.resources.limits, or use smaller batches and shuffle"
        " buffers",
    ),
    LossNature.PREEMPTED: (
        "pod-preempted",
        "the cluster gave its place to another pod, drained its node, or somebody deleted it;"
        " runtime.kubernetes.priority_class decides which pods may be preempted",
    ),
    LossNature.PERMANENT: (
        "pod-permanent",
        "another pod would end the same way: correct what the message names; `kubectl describe"
        " pod` shows all of it",
    ),
}


class KubernetesKind(BackendKind):
    """Pods named after their tasks; their host names, `worker-0.RUN`, are known once a run is."""

    capabilities = Capabilities(
        makes_nodes=True,
        has_image=True,
        has_own_network=True,
        has_one_task=True,
        loses_files=True,
        ends_alone=True,
        clears_up=True,
    )
    nodes = "tfcluster.backends.kubernetes.kube_nodes:KubeNodes"
    jobs = "tfcluster.backends.kubernetes.submitted.kube_jobs"
    leftovers = "tfcluster.backends.kubernetes.submitted.kube_jobs"
    exposure = (
        "TensorFlow listens in the pods, without a password: a NetworkPolicy lets only the run's"
        " own pods reach it, if the cluster's network enforces policies"
    )
    data_fix = "put data into a volume (runtime.kubernetes.volumes)"
    hints = _HINTS
    losses = _LOSSES
    why_no_addresses = "Kubernetes chooses the nodes"

    def find_mistakes(self, spec: ClusterSpec) -> Iterator[Mistake]:
        from tfcluster.backends.kubernetes import pod_spec_rules  # imports pydantic

        return pod_spec_rules.find_mistakes(spec)

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return task, ""

    def gives_gpus(self, runtime: Runtime) -> bool:
        limits = runtime.kubernetes.resources.limits.items()
        return any(GPU.search(name) and str(number) != "0" for name, number in limits)

    def image(self, runtime: Runtime) -> str | None:
        return runtime.kubernetes.image or runtime.image


KIND = KubernetesKind()
