"""A plan as JSON and back: what ``plan.json`` holds and ``plan --json`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from tfcluster.plan.plan import (
    CheckpointPlan,
    Command,
    Container,
    EnvVar,
    Interpreter,
    NodePlan,
    Plan,
    Resources,
    Supervision,
    TaskId,
    TaskPlan,
    Warm,
)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Plain JSON values; what is secret is left out, so the file may be shown to anybody."""
    data = asdict(plan)
    data["tasks"] = [_task_to_json(task) for task in plan.tasks]
    data["prepare"] = {node: command_to_json(c) for node, c in plan.prepare.items()}
    data["elsewhere"] = [_task_to_json(task) for task in plan.elsewhere]
    for node in data["nodes"]:
        if node["container"] is None:
            del node["container"]
        if node["warm"] is None:
            del node["warm"]
    if not plan.joins:
        del data["joins"]
    if not (plan.joins or plan.elsewhere):
        del data["elsewhere"]
    if not plan.preload:
        del data["preload"]
    if not plan.needs_estimator:
        del data["needs_estimator"]
    if not plan.withheld:
        del data["withheld"]
    return data


def plan_from_json(data: Mapping[str, Any]) -> Plan:
    """Read what `plan_to_json` wrote (secrets come back empty); unknown keys are ignored."""
    values = _known(Plan, data)
    values["nodes"] = tuple(_node_from_json(node) for node in data["nodes"])
    values["tasks"] = tuple(_task_from_json(task) for task in data["tasks"])
    values["elsewhere"] = tuple(_task_from_json(task) for task in data.get("elsewhere", ()))
    values["prepare"] = {n: _command_from_json(c) for n, c in data["prepare"].items()}
    values["supervision"] = Supervision(**_known(Supervision, data["supervision"]))
    checkpoints = _known(CheckpointPlan, data["checkpoints"])
    checkpoints["outputs"] = tuple(checkpoints["outputs"])
    values["checkpoints"] = CheckpointPlan(**checkpoints)
    values["resources"] = Resources(**_known(Resources, data.get("resources", {})))
    values["notes"] = tuple(data["notes"])
    values["preload"] = tuple(data.get("preload", ()))
    values["include"] = tuple(data.get("include", ()))
    values["withheld"] = tuple(data.get("withheld", ()))
    return Plan(**values)


def _known(kind: type, data: Mapping[str, Any]) -> dict[str, Any]:
    names = {f.name for f in fields(kind)}
    return {key: value for key, value in data.items() if key in names}


def _task_to_json(task: TaskPlan) -> dict[str, Any]:
    data = asdict(task) | {"id": str(task.id), "command": command_to_json(task.command)}
    if not task.has_own_command:
        del data["has_own_command"]
    return data


def command_to_json(command: Command) -> dict[str, Any]:
    hidden = [asdict(var) | ({"value": None} if var.secret else {}) for var in command.env]
    return asdict(command) | {"env": hidden}


def _node_from_json(data: Mapping[str, Any]) -> NodePlan:
    values = _known(NodePlan, data)
    if data["interpreter"] is not None:
        values["interpreter"] = Interpreter(**_known(Interpreter, data["interpreter"]))
    if (container := values.get("container")) is not None:
        lists = {name: _tuple(container[name]) for name in ("cores", "gpus")}
        values["container"] = Container(**_known(Container, container) | lists)
    if (warm := values.get("warm")) is not None:
        values["warm"] = Warm(**_known(Warm, warm))
    return NodePlan(**values)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _task_from_json(data: Mapping[str, Any]) -> TaskPlan:
    values = _known(TaskPlan, data)
    values["id"] = TaskId.parse(data["id"])
    values["command"] = _command_from_json(data["command"])
    for name in ("cores", "gpus"):
        values[name] = _tuple(data[name])
    return TaskPlan(**values)


def _command_from_json(data: Mapping[str, Any]) -> Command:
    env = tuple(
        EnvVar(**_known(EnvVar, var) | {"value": var["value"] or ""}) for var in data["env"]
    )
    return Command(tuple(data["argv"]), env, data["cwd"], tuple(data["unset"]))
