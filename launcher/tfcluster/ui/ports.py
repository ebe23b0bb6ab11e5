"""Who can reach the ports of a run: TensorFlow's gRPC servers ask nobody for a password."""

from __future__ import annotations

from collections.abc import Sequence

from tfcluster.plan.plan import Plan
from tfcluster.ui.formats import plural

_MOST_LISTED = 16


def who_listens(plan: Plan, *, where: str = "a task's machine") -> str:
    """Which servers a run opens, and to whom."""
    if all(node.container is not None for node in plan.nodes):
        return (
            "TensorFlow listens in the containers, without a password: no port is published, and"
            " besides the run's own containers only the daemon's machine itself reaches them"
        )
    if plan.kind == "tuner":
        return f"KerasTuner's chief listens on {plan.listening[0].host}, without a password"
    return f"TensorFlow listens on every address of {where}, without a password"


def open_ports(plan: Plan, ports: Sequence[int]) -> str:
    """One line for the start panel; `ports` of the tasks that listen, 0: still to be chosen."""
    known = sorted({port for port in ports if port})
    if all(node.network == "private" and node.container is None for node in plan.nodes):
        return "none: the network is private, only the tasks of this run are in it"
    if not known:
        shown = f"{plural(len(ports), 'port')}, chosen at the start"
    elif len(known) > _MOST_LISTED:
        shown = f"{len(known)} ports, {known[0]} to {known[-1]}"
    else:
        shown = ", ".join(map(str, known))
    here = all(node.backend == "local" for node in plan.nodes)
    return f"{shown}: {who_listens(plan, where='this machine' if here else 'its host')}"
