"""A coordinator whose pod was replaced and whose folder is lost: the tasks' pods still have files.

Without `runtime.kubernetes.run_volume` the run folder ends with the coordinator's pod. Its
successor reads the newest complete checkpoint of the chief from the chief's pod, through the seat,
before `KubeNodes` starts another agent there. The run goes on with the next attempt.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from tfcluster.agent.containers.pod_seat import PORT
from tfcluster.backends.kubernetes import pod_files, seat_client
from tfcluster.backends.kubernetes.kube_client import Cluster, Object
from tfcluster.backends.kubernetes.pod_reasons import is_over
from tfcluster.backends.kubernetes.run_objects import object_name
from tfcluster.checkpoints.gatherer import Gatherer
from tfcluster.checkpoints.store import Store
from tfcluster.errors import SetupError
from tfcluster.plans.plan import Plan
from tfcluster.plans.remote_paths import RUN, node_folder
from tfcluster.rundir import registry
from tfcluster.rundir.paths import RunPaths

_PATIENCE_S, _PAUSE_S = 300.0, 5.0


def restore(
    paths: RunPaths, cluster: Cluster, token: Path, *, patience_s: float | None = None
) -> tuple[int, Sequence[str]]:
    """Gather the checkpoints that the pods of an earlier coordinator have and the run folder lacks.

    Return the newest attempt (0 if no pod has files), and the names of the checkpoints to continue
    from if any is new. Raises SetupError where the cluster does not answer, or a living pod does
    not send its files within `patience_s`.
    """
    plan = registry.load_plan(paths)
    name = f"{object_name(paths.run_id)}-{plan.task(plan.chief).node}"
    until = time.monotonic() + (_PATIENCE_S if patience_s is None else patience_s)
    while True:
        pod = cluster.find(f"pods/{name}")
        if pod is None or not _has_files(pod):
            return 0, ()
        if (fetched := _fetch(paths, plan, pod["status"]["podIP"], token)) is not None:
            return fetched
        if time.monotonic() >= until:
            raise SetupError(
                f"the pod {name} has the run's files and does not send them",
                fix="the coordinator starts again and asks on; without that pod (`kubectl delete`)"
                " the training starts anew",
            )
        time.sleep(_PAUSE_S)


def _has_files(pod: Object) -> bool:
    return not is_over(pod) and bool(pod.get("status", {}).get("podIP"))


def _fetch(
    paths: RunPaths, plan: Plan, address: str, token: Path
) -> tuple[int, Sequence[str]] | None:
    """Gather the checkpoints in a pod; return its newest attempt and what was gathered, or None."""
    node = plan.task(plan.chief).node
    there = PurePosixPath(node_folder(node).replace(RUN, paths.run_id))
    saved = there / paths.task_checkpoints(plan.chief).relative_to(paths.root)
    argv = pod_files.sender_argv(paths.run_id, str(there), str(saved))
    command = seat_client.address_argv(f"{address}:{PORT}", token, argv)
    with tempfile.TemporaryDirectory(prefix=".rescued-", dir=paths.root) as made:
        folder = Path(made)
        store = Store(paths.checkpoints, keep=plan.checkpoints.keep)
        have = [entry for held in store.held for entry in held.checkpoint.files]
        if not asyncio.run(pod_files.receive(command, folder, have=have)):
            return None
        names = [path.name for path in folder.glob(f"{pod_files.ATTEMPTS}/attempt-*")]
        attempt = max((int(name.removeprefix("attempt-")) for name in names), default=0)
        if plan.checkpoints.dir is not None:
            return attempt, [f"the checkpoints in {plan.checkpoints.dir}"]
        before = set(store.held)
        Gatherer(folder, store, saves=paths.saves).gather_last()
        is_new = before != set(store.held)
        return attempt, [one.folder.name for one in store.state()] if is_new else []
