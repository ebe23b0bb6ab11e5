"""The order for a node's probe before the start, and its answer (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.nodes.sites import Site
from tfcluster.plans.plan import Command, Gpu, Plan
from tfcluster.supervision.task_network import DialPlan
from tfcluster.typed_json import from_json

PATIENCE_S = 8.0
"""Time for the nodes to reach each other."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """The answer of a node's probe; see `agent.node.probe`."""

    node: str
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    clock_ahead_s: float = 0.0
    """Seconds that the node's clock is ahead of this machine's; includes the network delay."""
    free_bytes: int | None = None
    strange_names: Sequence[str] = ()
    not_listening: Sequence[tuple[int, str]] = ()
    unreachable: Sequence[tuple[str, str, str, int, str]] = ()
    """(node, task, host, port, why)."""
    wrong_names: Sequence[str] = ()
    """The hosts among these that the node cannot look up, or takes for itself."""
    gpu_trouble: str = ""
    """The reason why the GPUs are not known; empty if they are."""
    executable: str = ""
    cores: int = 0
    core_nodes: Sequence[Sequence[int]] = ()
    """The numbers of the usable cores, by NUMA node; see `agent.node.limits`."""
    core_limit: float | None = None
    named: Sequence[str] = ()
    """Variables of `machine.SHARED_OUT` and `machine.TRACKERS` set on the node, or by the spec for
    its first task."""
    visible_gpus: Sequence[Gpu] = ()
    """The GPUs in the CUDA_VISIBLE_DEVICES of the node, as a scheduler sets it, or of the spec."""
    interfaces: Sequence[tuple[str, str, bool]] = ()
    """(interface, address, whether TF_CONFIG names it)."""
    shm_bytes: int | None = None
    port_range: Sequence[int] = ()
    proxies: Mapping[str, str] = field(default_factory=dict)
    unwritable: Sequence[tuple[str, str]] = ()
    """(folder, why)."""
    absent: Sequence[str] = ()
    """The `shared` paths of its order that it does not see."""
    script_sha256: str | None = None
    imported: Mapping[str, Any] | None = None
    """The result of `import tensorflow`, if it was requested (`machine.import_tensorflow`)."""
    ports: Sequence[int] = ()
    """The ports of the node's tasks that were checked."""
    peers: int = 0
    """Number of other nodes' tasks that it dialled: in a large run not all, see `DialPlan`."""


def probe_order(
    plan: Plan, site: Site, dials: DialPlan, *, deep: bool = False, shared: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the order for the probe of a node; see `agent.node.probe`.

    `shared`: paths of this machine that the node should see.
    """
    tasks = [task for task in plan.tasks if task.node == site.node]
    ports = dials.ports
    return {
        "run": site.run_id,
        "node": site.node,
        "mine": [
            {"host": t.host, "port": ports[t.id], "callers": dials.callers[t.id]}
            for t in tasks
            if t.id in ports
        ],
        "others": dials.of(site.node),
        "patience_s": PATIENCE_S,
        "folder": site.cache or str(site.paths.root),
        "folders": folders_of(plan, site.node),
        "shared": list(shared),
        "script": _script(plan, site),
        "deep": deep,
    }


def folders_of(plan: Plan, node: str) -> list[str]:
    """Return the folders outside the run's own that the node's tasks will write to."""
    shared = plan.checkpoints.dir
    folders = [shared] if shared and "://" not in shared else []
    data = [
        var.value
        for task in plan.tasks
        if task.node == node
        for var in task.command.env
        if var.name == "TFDS_DATA_DIR" and "://" not in var.value and var.origin != "tfcluster"
    ]
    return list(dict.fromkeys(folders + data))


def _script(plan: Plan, site: Site) -> str | None:
    """Return the path on the node of the first task's script; None if no task there runs it."""
    script = _below_cwd(plan.tasks[0].command)
    commands = (task.command for task in plan.tasks if task.node == site.node)
    same = next((command for command in commands if _below_cwd(command) == script), None)
    return script_of(site.command(same)) if same is not None else None


def _below_cwd(command: Command) -> str | None:
    script = script_of(command)
    return script and script.removeprefix(command.cwd)


def script_of(command: Command) -> str | None:
    """Return the script of a command, below its working directory; None for modules and others."""
    below = command.cwd.rstrip("/") + "/"
    return next((word for word in command.argv[1:4] if word.startswith(below)), None)


def read_answer(line: str, *, now: float, ports: Sequence[int] = (), peers: int = 0) -> ProbeAnswer:
    """Read a probe's answer from its output; `now`: the time at which the line arrived.

    `ports` and `peers` are copied into the answer. Raises ValueError for anything else.
    """
    try:
        data = foreign_json.parse_json_object(line)
        data |= {"ports": ports, "peers": peers, "imported": _imported(data["imported"])}
        data["clock_ahead_s"] = float(data["clock"]) - now
        if missing := {field.name for field in fields(ProbeAnswer)} - data.keys():
            raise ValueError(f"without {', '.join(sorted(missing))}")
        return from_json(ProbeAnswer, data)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"not a probe's answer: {error}") from error


def _imported(result: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Check the value that `machine.import_tensorflow` returned."""
    if result is None:
        return None
    if "error" in result:
        return {"error": str(result["error"])}
    return {
        "version": str(result["version"]),
        "seconds": float(result["seconds"]),
        "devices": [str(device) for device in result["devices"]],
        "no_gpu": str(result.get("no_gpu", "")),
        "no_gpu_cause": str(result.get("no_gpu_cause", "")),
    }
