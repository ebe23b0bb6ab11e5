"""What a node is asked before the start, and what it answers (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tfcluster.agent import foreign_json
from tfcluster.nodes.remote_folders import Site
from tfcluster.plan.plan import Command, Plan
from tfcluster.supervision.connectivity import DialPlan

PATIENCE_S = 8.0
"""How long the nodes try to reach each other."""


@dataclass(frozen=True, slots=True)
class ProbeAnswer:
    """A node's report; see `agent.node.machine.facts`."""

    node: str
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    clock_ahead_s: float = 0.0
    """Against ours; the time its line took to come is in it."""
    free_bytes: int | None = None
    strange_names: Sequence[str] = ()
    not_listening: Sequence[tuple[int, str]] = ()
    unreachable: Sequence[tuple[str, str, str, int, str]] = ()
    """(node, task, host, port, why)."""
    gpu_trouble: str = ""
    """Why its GPUs are not known; empty where they are."""
    executable: str = ""
    cores: int = 0
    core_nodes: Sequence[Sequence[int]] = ()
    """Their numbers, by NUMA node; see `agent.node.limits`."""
    core_limit: float | None = None
    named: Sequence[str] = ()
    """Those of `machine.SHARED_OUT` that are set there, or by the spec for its first task."""
    shm_bytes: int | None = None
    port_range: Sequence[int] = ()
    proxies: Mapping[str, str] = field(default_factory=dict)
    unwritable: Sequence[tuple[str, str]] = ()
    """(folder, why)."""
    script_sha256: str | None = None
    imported: Mapping[str, Any] | None = None
    """What `import tensorflow` gave, where that was asked for."""
    ports: Sequence[int] = ()
    """Those of its tasks that were looked at."""
    peers: int = 0
    """Tasks of other nodes that it dialled: in a large run not all (`run.calls`)."""


def order_for(plan: Plan, site: Site, calls: DialPlan, *, deep: bool = False) -> dict[str, Any]:
    """What the probe of a node is to do; see `agent.node.probe`."""
    tasks = [task for task in plan.tasks if task.node == site.node]
    ports = calls.ports
    return {
        "run": site.run_id,
        "node": site.node,
        "mine": [
            {"host": t.host, "port": ports[t.id], "callers": calls.callers[t.id]}
            for t in tasks
            if t.id in ports
        ],
        "others": calls.of(site.node),
        "patience_s": PATIENCE_S,
        "folder": site.cache or str(site.paths.root),
        "folders": folders_of(plan, site.node),
        "script": _script(plan, site),
        "deep": deep,
    }


def folders_of(plan: Plan, node: str) -> list[str]:
    """Where the node's tasks will write besides the run's own folder."""
    shared = plan.checkpoints.dir
    found = [shared] if shared and "://" not in shared else []
    data = [
        var.value
        for task in plan.tasks
        if task.node == node
        for var in task.command.env
        if var.name == "TFDS_DATA_DIR" and "://" not in var.value and var.source != "tfcluster"
    ]
    return list(dict.fromkeys(found + data))


def _script(plan: Plan, site: Site) -> str | None:
    """The script of the plan's first task as the node has it, where one of its tasks runs it."""
    wanted = _below_cwd(plan.tasks[0].command)
    mine = (task.command for task in plan.tasks if task.node == site.node)
    same = next((one for one in mine if _below_cwd(one) == wanted), None)
    return script_of(site.command(same)) if same is not None else None


def _below_cwd(command: Command) -> str | None:
    script = script_of(command)
    return script and script.removeprefix(command.cwd)


def script_of(command: Command) -> str | None:
    """A task's own script, below its working directory; None for a module or a command."""
    below = command.cwd.rstrip("/") + "/"
    return next((word for word in command.argv[1:4] if word.startswith(below)), None)


def read(line: str, *, now: float, ports: Sequence[int] = (), peers: int = 0) -> ProbeAnswer:
    """Raises ValueError for what is no report: the node may be broken, or somebody else's."""
    try:
        data = foreign_json.parse_json_object(line)
        free, shm, sha256 = data["free_bytes"], data["shm_bytes"], data["script_sha256"]
        limit = data["core_limit"]
        return ProbeAnswer(
            node=str(data["node"]),
            python=str(data["python"]),
            packages=_texts(data["packages"]),
            gpus=tuple(map(str, data["gpus"])),
            clock_ahead_s=float(data["clock"]) - now,
            free_bytes=int(free),
            strange_names=tuple(map(str, data["strange_names"])),
            not_listening=tuple((int(port), str(why)) for port, why in data["not_listening"]),
            unreachable=tuple(
                (str(node), str(task), str(host), int(port), str(why))
                for node, task, host, port, why in data["unreachable"]
            ),
            gpu_trouble=str(data["gpu_trouble"]),
            executable=str(data["executable"]),
            cores=int(data["cores"]),
            core_nodes=tuple(tuple(map(int, node)) for node in data["core_nodes"]),
            core_limit=None if limit is None else float(limit),
            named=tuple(map(str, data["named"])),
            shm_bytes=None if shm is None else int(shm),
            port_range=tuple(map(int, data["port_range"])),
            proxies=_texts(data["proxies"]),
            unwritable=tuple((str(folder), str(why)) for folder, why in data["unwritable"]),
            script_sha256=None if sha256 is None else str(sha256),
            imported=_imported(data["imported"]),
            ports=tuple(ports),
            peers=peers,
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"not a probe's report: {error}") from error


def _texts(found: Mapping[object, object]) -> dict[str, str]:
    return {str(name): str(value) for name, value in found.items()}


def _imported(found: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """As `machine.tensorflow_imported` gives it."""
    if found is None:
        return None
    if "error" in found:
        return {"error": str(found["error"])}
    devices = [str(device) for device in found["devices"]]
    return {
        "version": str(found["version"]),
        "seconds": float(found["seconds"]),
        "devices": devices,
    }
