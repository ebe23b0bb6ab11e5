"""The same look where a run stays on this machine: no process is started for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tfcluster.agent import cores, machine, ports
from tfcluster.plan.placement import is_loopback
from tfcluster.plan.plan import NodePlan, Plan, TaskPlan
from tfcluster.run import preflight
from tfcluster.run.launch import port_error
from tfcluster.run.look import Look
from tfcluster.run.preflight import Finding, Needs
from tfcluster.run.seen import Seen, folders_of


def look(plan: Plan) -> Look:
    """Before `up`: its agent holds the ports, and the plan has looked at Python and script."""
    seen = tuple(_seen(plan, node) for node in plan.nodes)
    needs = replace(_needs(plan), tensorflow=False)
    return Look(tuple(one.node for one in seen), seen, preflight.judge(seen, needs))


def look_longer(plan: Plan, *, folder: Path, locks: Path, deep: bool = False) -> Look:
    """For `doctor`: also whether each port is free, and what else a person may want to know.

    `folder`: below which runs' files will lie; `locks`: those of ports that other runs hold;
    `deep`: TensorFlow is imported, which takes seconds.
    """
    seen = tuple(_seen_longer(plan, node, folder, deep=deep) for node in plan.nodes)
    found = (*preflight.judge(seen, _needs(plan)), *_taken(plan, locks))
    return Look(tuple(one.node for one in seen), seen, ()).with_more(found)


def facts(node: str, folder: Path) -> Seen:
    """Of the machine, whatever Python its tasks have; `folder`: on whose disk runs lie."""
    names, trouble = machine.gpus()
    return Seen(
        node=node,
        gpus=tuple(names),
        gpu_trouble=trouble,
        free_bytes=machine.free_bytes(str(folder)),
        cores=cores.usable(),
        shm_bytes=machine.free_bytes("/dev/shm") if os.path.isdir("/dev/shm") else None,
        port_range=tuple(machine.port_range()),
        proxies=machine.proxies(os.environ),
    )


def _needs(plan: Plan) -> Needs:
    """GPUs, script and Estimator the plan has checked itself."""
    needs = preflight.needs_of(plan)
    return Needs(tensorflow=needs.tensorflow, gang=needs.gang, writes=needs.writes)


def _seen(plan: Plan, node: NodePlan, seen: Seen | None = None) -> Seen:
    tasks = [task for task in plan.listening if task.node == node.name]
    python = node.interpreter
    return replace(
        seen or Seen(node.name),
        python=(python.version or "") if python else "",
        packages=dict(python.packages) if python else {},
        executable=python.path if python else "",
        strange_names=_strange_names(tasks),
        unwritable=machine.unwritable(folders_of(plan, node.name)),
        ports=tuple(task.port for task in tasks if task.port),
    )


def _seen_longer(plan: Plan, node: NodePlan, folder: Path, *, deep: bool) -> Seen:
    seen = _seen(plan, node, facts(node.name, folder))
    imported = machine.tensorflow_imported(seen.executable) if deep and seen.executable else None
    return replace(seen, imported=imported)


def _strange_names(tasks: list[TaskPlan]) -> list[str]:
    """An address of this machine needs no look-up, which may take seconds."""
    hosts = dict.fromkeys(task.host for task in tasks if not is_loopback(task.host))
    return [host for host in hosts if not machine.is_own(host)]


def _taken(plan: Plan, locks: Path) -> Iterator[Finding]:
    for task in plan.tasks:
        fixed = task.port and plan.kind != "plain"
        if fixed and (holder := ports.taken_by(task.port, str(locks))) is not None:
            wanted = {"host": task.host, "port": task.port, "task": str(task.id)}
            error = port_error({**wanted, **holder})
            yield Finding(task.node, "ports", error.message, error.cure)
