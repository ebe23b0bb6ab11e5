"""The start of pods before a coordinator comes: they import what their tasks import.

A pod has the bundle and the order on a volume, so its seat needs nobody for that
(`agent.early_agent`). The coordinator gives the same order later.
"""

from __future__ import annotations

import json
from typing import Any

from tfcluster.agent import catalogue as msg
from tfcluster.agent.containers.pod_early import BUNDLE, ORDERS
from tfcluster.backends import bundle
from tfcluster.backends.kubernetes.run_objects import HOME_FOLDER, PodRun
from tfcluster.plans import preloading
from tfcluster.plans.remote_paths import CACHE, NodePaths

FILES = (BUNDLE, ORDERS)


def seat_options(run: PodRun, task: str) -> list[str]:
    """Return the options for the seat of a task's pod."""
    return [f"--preload={task}"] if preloading.preload_on(run.plan, task) is not None else []


def files(run: PodRun) -> dict[str, bytes]:
    """Return the `FILES` for the volume of the pods; none if they import nothing ahead."""
    if not is_used(run):
        return {}
    orders: list[dict[str, Any]] = []
    of: dict[str, int] = {}
    for node in run.plan.nodes:
        if (order := _order(run, node.name)) is None:
            continue
        fields = {"process": vars(order.process), "key": order.key, "within_s": order.within_s}
        if fields not in orders:
            orders.append(fields)
        of[node.name] = orders.index(fields)
    built = bundle.build()
    about = {"digest": built.digest, "orders": orders, "of": of}
    return {BUNDLE: built.zip_bytes, ORDERS: json.dumps(about).encode()}


def is_used(run: PodRun) -> bool:
    """Return whether any pod of the run imports ahead: `plan.preload` is empty otherwise."""
    return bool(run.plan.preload)


def _order(run: PodRun, node: str) -> msg.Preload | None:
    found = preloading.preload_on(run.plan, node)
    if found is None:
        return None
    paths = NodePaths(CACHE.replace("~", HOME_FOLDER), run.run_id)
    return preloading.order(paths.command(found.command), run.run_id)
