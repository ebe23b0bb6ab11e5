"""The runs as the API describes them: the list of all, and everything about one."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from tfcluster import __version__
from tfcluster.agent import foreign_json
from tfcluster.backends import job_watch
from tfcluster.errors import RunFolderError, UnknownRunError
from tfcluster.plans.plan import Plan, TaskId
from tfcluster.preflight.rules import format_gpus
from tfcluster.rundir import registry, series
from tfcluster.rundir.figures import figures_of, state_json
from tfcluster.rundir.paths import RunPaths
from tfcluster.rundir.registry import DamagedRunError
from tfcluster.rundir.snapshot import RunSnapshot, describe_failure, to_json_numbers
from tfcluster.rundir.states import Status
from tfcluster.rundir.task_logs import rank
from tfcluster.typed_json import to_json
from tfcluster.ui import history, plan_view
from tfcluster.ui.event_lines import format_moment
from tfcluster.ui.formats import format_exit
from tfcluster.ui.log_excerpt import excerpt

_MOST_PLANNED = 100
"""The tasks whose plan a page gets: each TF_CONFIG has the addresses of all tasks."""
_LAST_LINES = 40
_OF_THE_RUN = ("run", "name", "started_at", "ended_at", "host", "background", "attempt")


def to_json_bytes(value: Any) -> bytes:
    """Return JSON in ASCII, so that no string, whatever a task has put into it, can break it."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"), default=dict).encode()
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), default=dict).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not isfinite(value):
        return to_json_numbers({"": value})[""]
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


class RunIndex:
    """All runs of a home; a state is read again only when it has changed."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._files: dict[str, job_watch.WatchedState] = {}
        self._rows: dict[str, tuple[RunSnapshot, Status, dict[str, Any]]] = {}
        self._lock = threading.Lock()

    @property
    def folder(self) -> Path:
        return self.home / "runs"

    def find(self, run_id: str) -> RunPaths:
        """Return the paths of a run of this home; raises UnknownRunError for any other name."""
        paths = RunPaths.of(run_id, self.home)
        is_name = run_id not in ("", ".", "..") and "/" not in run_id and "\0" not in run_id
        if is_name and is_plain(paths.root, is_folder=True):
            return paths
        raise UnknownRunError(f"there is no run {run_id!r}", fix="the first page lists all runs")

    def snapshots(self, *, ended_after: float) -> list[RunSnapshot]:
        """Return the states of runs that are live, lost, or have ended after this time."""
        self.rows()
        with self._lock:
            known = [replace(state, status=status) for state, status, _ in self._rows.values()]
        return [
            state
            for state in known
            if registry.is_open(state) or (state.ended_at or 0.0) > ended_after
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row for each run, newest first."""
        rows: dict[str, dict[str, Any]] = {}
        with self._lock:
            for name in _names(self.folder):
                paths = RunPaths.of(name, self.home)
                if is_plain(paths.root, is_folder=True) and (row := self._row(paths)):
                    rows[name] = row
            for name in self._files.keys() - rows.keys():
                del self._files[name]
                self._rows.pop(name, None)
        return sorted(rows.values(), key=lambda row: row["started_at"] or 0.0, reverse=True)

    def _row(self, paths: RunPaths) -> dict[str, Any]:
        """Return the row of a run; empty for one that may just begin."""
        file = self._files.setdefault(paths.run_id, job_watch.WatchedState(paths))
        snapshot, damage = file.read(), file.damage
        if damage is not None and (snapshot is None or not damage.may_pass):
            self._rows.pop(paths.run_id, None)
            if damage.may_be_new:
                return {}
            return _describe_row(_damaged_snapshot(paths, damage), "damaged")
        assert snapshot is not None
        status = current_status(snapshot)
        known = self._rows.get(paths.run_id)
        if known is None or known[0] is not snapshot or known[1] is not status:
            known = (snapshot, status, _describe_row(snapshot, status))
            self._rows[paths.run_id] = known
        return known[2]


def is_plain(path: Path, *, is_folder: bool = False) -> bool:
    """Return whether `path` is a regular file or a folder: no link, no pipe, no device."""
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(mode) if is_folder else stat.S_ISREG(mode)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def current_status(snapshot: RunSnapshot) -> Status:
    """Return the status: `lost` if the run is not over but its coordinator is gone."""
    return Status.LOST if registry.has_lost_coordinator(snapshot) else snapshot.status


def _describe_row(snapshot: RunSnapshot, status: str) -> dict[str, Any]:
    row: dict[str, Any] = {name: getattr(snapshot, name) for name in _OF_THE_RUN}
    exit_code = f" ({snapshot.exit_code})" if snapshot.exit_code else ""
    gathering = ", gathering" if snapshot.gathering else ""
    row |= {
        "status": str(status),
        "status_text": f"{str(status).replace('_', ' ')}{exit_code}{gathering}",
        "tasks": len(snapshot.tasks),
        "restarts": len(snapshot.restarts),
        "reason": history.format_short_reason(snapshot),
    }
    return row | figures_of(snapshot).to_json()


@dataclass(frozen=True, slots=True)
class RunFiles:
    """The contents of a run's files, each as far as it can be read."""

    paths: RunPaths
    snapshot: RunSnapshot
    """The state; an empty one if the run is damaged."""
    status: str
    """``damaged`` if the state cannot be read."""
    plan: Plan | None
    """The plan at the addresses of the run's tasks."""
    problem: str
    """The reason why there is no plan; else empty."""
    spec: Mapping[str, Any]
    """The spec, without the values of secrets."""
    nodes: tuple[Mapping[str, Any], ...]
    """Each node's name, backend, place, Python, packages and GPUs."""


def read_files(paths: RunPaths) -> RunFiles:
    """Read the files of a run. Raises DamagedRunError for a run that may just begin."""
    try:
        snapshot = registry.load(paths)
        status = str(snapshot.status)
    except DamagedRunError as error:
        if error.may_be_new:
            raise
        snapshot, status = _damaged_snapshot(paths, error), "damaged"
    plan, problem = None, ""
    try:
        plan = registry.with_addresses(registry.load_plan(paths), snapshot)
    except RunFolderError as error:
        problem = error.message
    return RunFiles(
        paths=paths,
        snapshot=snapshot,
        status=status,
        plan=plan,
        problem=problem,
        spec=_read(paths.spec),
        nodes=tuple(_describe_nodes(paths, plan)) if plan is not None else (),
    )


def _damaged_snapshot(paths: RunPaths, error: DamagedRunError) -> RunSnapshot:
    return RunSnapshot(
        run=paths.run_id,
        name=paths.run_id,
        status=Status.LOST,
        tasks=[],
        host="",
        boot_id="",
        pid=0,
        pid_start=0,
        started_at=error.changed_at,
        reason=f"{paths.state.name} cannot be read: {error.why}",
        hint=error.fix,
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return foreign_json.read_json_object(path)
    except (OSError, ValueError):
        return {}


def _describe_nodes(paths: RunPaths, plan: Plan) -> Iterator[Mapping[str, Any]]:
    """Yield what plan and preflight know of each node; preflight has asked the node itself."""
    seen = _read(paths.preflight).get("seen")
    answers = [a for a in seen if isinstance(a, dict)] if isinstance(seen, list) else []
    by_node = {str(answer.get("node")): answer for answer in answers}
    for node in plan.nodes:
        answer, python = by_node.get(node.name, {}), node.interpreter
        packages, gpus = answer.get("packages"), answer.get("gpus")
        if not isinstance(packages, dict):
            packages = python.packages if python is not None else {}
        hosts = dict.fromkeys(task.host for task in plan.tasks if task.node == node.name)
        image = node.container.image if node.container is not None else None
        yield {
            "node": node.name,
            "backend": node.backend,
            "place": node.destination or image or ", ".join(host for host in hosts if host),
            "python": str(answer.get("python") or (python.version if python else None) or ""),
            "packages": {str(name): str(version) for name, version in packages.items()},
            "gpus": format_gpus([str(gpu) for gpu in gpus]) if isinstance(gpus, list) else "",
        }


def describe_run(paths: RunPaths) -> dict[str, Any]:
    """Return everything about a run but its curves and logs; of a damaged run what can be read.

    Raises DamagedRunError for a run that may just begin.
    """
    files = read_files(paths)
    state = state_json(files.snapshot) | {"status": files.status, "folder": str(paths.root)}
    return {
        "snapshot": state,
        "facts": history.list_facts(files.snapshot, has_timeline=True),
        "plan": _describe_plan(files),
        "nodes": files.nodes,
        "spec": files.spec,
        "diagnosis": _describe_diagnosis(paths, files.snapshot),
    }


def describe_report(paths: RunPaths, *, now: float) -> dict[str, Any]:
    """Return everything about a run but its logs; `now`: seconds since 1970."""
    run = describe_run(paths)
    about = {"run": paths.run_id, "status": run["snapshot"]["status"]}
    about |= {"made_at": now, "made_by": __version__}
    return about | run | {"history": describe_history(paths)}


def describe_history(paths: RunPaths, *, most: int = series.POINTS) -> dict[str, Any]:
    """Return the curves of a run, each with at most `most` points, and its timeline."""
    history = series.read_history(paths, most=most).to_json()
    return history | {"timeline": [describe_moment(moment) for moment in history["timeline"]]}


def describe_moment(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event of a timeline with its sentence, if it has one."""
    line = format_moment(event)
    return {**event} if line is None else {**event, "text": line.text, "kind": line.kind}


def _describe_plan(files: RunFiles) -> dict[str, Any]:
    """Return the commands and variables of all tasks, without the values of secrets."""
    plan = files.plan
    if plan is None:
        return {"problem": files.problem}
    facts = {name: getattr(plan, name) for name in ("name", "kind", "strategy", "notes")}
    culprit = (history.root_cause(files.snapshot) or {}).get("task")
    ids = [task.id for task in plan.tasks]
    shown = [*ids[:_MOST_PLANNED], *(id for id in ids[_MOST_PLANNED:] if str(id) == culprit)]
    facts |= {"tasks": [_describe_task(plan, task_id) for task_id in shown]}
    return facts | {"left_out": len(plan.tasks) - len(shown)}


def _describe_task(plan: Plan, task_id: TaskId) -> dict[str, Any]:
    described: dict[str, Any] = to_json(plan_view.task_json(plan, task_id))
    config = next((v["value"] for v in described["env"] if v["name"] == "TF_CONFIG"), None)
    try:
        described["tf_config"] = None if config is None else foreign_json.parse_json_object(config)
    except ValueError:
        described["tf_config"] = None
    return described | {"start": plan_view.start_line(plan.task(task_id))}


def _describe_diagnosis(paths: RunPaths, snapshot: RunSnapshot) -> dict[str, Any] | None:
    """Return why the run did not succeed, with the last lines of the task that failed first.

    Where no task is known to be the cause, these are the chief's.
    """
    cause = history.root_cause(snapshot)
    if cause is not None:
        log, lines_of = history.log_of_cause(snapshot), cause.get("task")
        described = {
            name: cause.get(name) for name in ("task", "attempt", "reason", "hint", "docs")
        }
        described |= {
            "how": format_exit(cause.get("exit_code"), cause.get("signal")),
            "collateral": history.collateral(snapshot),
            "text": [*history.format_fix(cause), *history.format_consequences(snapshot)],
        }
    else:
        message, fix = describe_failure(snapshot)
        if not message or (snapshot.status is Status.INTERRUPTED and not snapshot.reason):
            return None
        chief = min(snapshot.tasks, key=lambda task: rank(task.task), default=None)
        log, lines_of = (chief.log, chief.task) if chief is not None else (None, None)
        described = {
            "task": None,
            "reason": snapshot.reason or message,
            "text": [f"→ {snapshot.hint or fix}"],
        }
    path = paths.root / (log or "")
    is_inside = path.resolve().is_relative_to(paths.root.resolve())  # the state may be foreign
    lines = excerpt(path, _LAST_LINES) if is_inside and is_plain(path) else ()
    return described | {"log": log, "lines_of": lines_of, "lines": lines}
