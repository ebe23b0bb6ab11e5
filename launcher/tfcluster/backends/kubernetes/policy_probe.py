"""A try with a pod that NetworkPolicies keep out: does the cluster's network enforce them?

The API server accepts policies whether or not the network plugin (CNI) enforces them, so only a
connection tells.
"""

from __future__ import annotations

import asyncio
from typing import Final

from tfcluster.agent.containers.pod_seat import PORT
from tfcluster.backends.jobs import Obstacle, Outlook
from tfcluster.backends.kubernetes import run_objects, run_pods
from tfcluster.backends.kubernetes.cluster.kube_client import Cluster, Object, soon
from tfcluster.backends.kubernetes.pod_reasons import has_terminated
from tfcluster.backends.kubernetes.run_objects import RUN, PodRun

_CONNECT_S: Final = 5
_WITHIN_S: Final = 120.0
_POLL_S: Final = 0.5
_REACHED, _KEPT_OUT = 0, 3
_TRY: Final = f"""
import socket, sys
try:
    socket.create_connection((sys.argv[1], {PORT}), {_CONNECT_S})
except OSError:
    sys.exit({_KEPT_OUT})
"""
_WHO: Final = "pods of the cluster that do not belong to the run"


async def probe(cluster: Cluster, run: PodRun, owner: Object, task: Object) -> Outlook:
    """Return whether a pod outside of `run` reaches the seat of the pod `task`.

    It has the image and the place of a task's pod. Raises SetupError.
    """
    body = _stranger(run, task)
    path = f"pods/{body['metadata']['name']}"
    await soon(cluster.create, "pods", run_objects.with_owner(body, owner))
    try:
        code = await _exit_code(cluster, path)
    finally:
        await soon(cluster.delete, path, grace_s=0)
    if code == _KEPT_OUT:
        return Outlook((), f"the cluster enforces NetworkPolicies: they keep out {_WHO}")
    if code == _REACHED:
        what = f"the cluster does not enforce NetworkPolicies: {_WHO} reach TensorFlow's ports,"
        fix = "use a network plugin (CNI) that enforces them, or share the cluster with nobody else"
        found = Obstacle("network", f"{what} which ask for no password", fix, is_fatal=False)
        return Outlook((found,))
    return Outlook((), "whether the cluster enforces NetworkPolicies could not be tried")


def _stranger(run: PodRun, task: Object) -> Object:
    """Return a pod like that of a task, without the label by which the policy knows the run."""
    node = run.plan.nodes[0]
    body = run_pods.task_pod(run, node.name, 1)
    metadata, spec = body["metadata"], body["spec"]
    metadata["name"] = f"{run.name}-stranger"
    metadata["labels"] = {k: v for k, v in metadata["labels"].items() if not k.startswith(RUN)}
    del spec["hostname"], spec["subdomain"]
    container = next(c for c in spec["containers"] if c["name"] == run_pods.TASK_CONTAINER)
    container["command"] = [node.python, "-I", "-S", "-c", _TRY, task["status"]["podIP"]]
    return body


async def _exit_code(cluster: Cluster, path: str) -> int | None:
    """Return the exit code of a pod's container; None if it has none in time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + _WITHIN_S
    while loop.time() < until:
        pod = await soon(cluster.find, path)
        if pod is None:
            return None
        if has_terminated(pod):
            states = pod["status"].get("containerStatuses") or ()
            codes = [each["state"].get("terminated", {}).get("exitCode") for each in states]
            return next((code for code in codes if code is not None), None)
        await asyncio.sleep(_POLL_S)
    return None
