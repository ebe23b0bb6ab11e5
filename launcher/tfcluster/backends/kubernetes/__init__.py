"""The backend `kubernetes`: each task runs in a pod of its own, which tfcluster itself makes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tfcluster.kinds import Capabilities, Kind

if TYPE_CHECKING:
    from tfcluster.spec.sections import Runtime

_GPU = re.compile("/gpu$|^nvidia.com/")
"""The names of resources that are GPUs; NVIDIA's device plugin calls parts of one ``mig-…``."""


class KubernetesKind(Kind):
    """Pods named after their tasks; their host names, `worker-0.RUN`, are known once a run is."""

    capabilities = Capabilities(makes_nodes=True, in_containers=True, clears_up=True)
    nodes = "tfcluster.backends.kubernetes.kube_nodes:KubeNodes"
    jobs = "tfcluster.backends.kubernetes.submitted.kube_jobs"
    is_reached_from_outside = True
    leftovers = "tfcluster.backends.kubernetes.submitted.kube_jobs"
    exposure = (
        "TensorFlow listens in the pods, without a password: a NetworkPolicy lets only the run's"
        " own pods reach it, if the cluster's network enforces policies"
    )
    why_no_addresses = "Kubernetes chooses the nodes"

    def place(self, task: str, number: int, host: str, runtime: object) -> tuple[str, str]:
        return task, ""

    def gives_gpus(self, runtime: Runtime) -> bool:
        limits = runtime.kubernetes.resources.limits.items()
        return any(_GPU.search(name) and str(number) != "0" for name, number in limits)

    def image(self, runtime: Runtime) -> str | None:
        return runtime.kubernetes.image or runtime.image


KIND = KubernetesKind()
